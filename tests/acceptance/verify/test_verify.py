"""`highwater verify` on a separate product: nothing differs after real input with kills in between, and each planted difference
is found with the event that it starts at.

It is separate, since faults planted in a log stay there, and since "nothing differs" holds only for a product whose rows no test
wrote: tests that share one write rows by SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from highwater.api.cli.verify import run_verification
from highwater.connectors.verify.report import Report
from highwater.connectors.verify.run import PARTS
from highwater.connectors.verify.tables import changelog_of
from highwater.deploy.local import postgres
from highwater.deploy.local.stack import Addresses, LocalStack
from highwater.streams.feeds.dirty import Channel, encode_channel
from highwater.streams.feeds.state import decode_user, encode_user
from highwater.streams.settings import read_settings
from tests.product import Product

CHANNELS = [f"channel-{number}" for number in range(4)]
USERS = [f"reader-{number}" for number in range(5)]
REQUESTED = "feeds.rebuild-requested"
MODELS_ONLY = ("verify", "--only", "models")
# A separate product, four restarted roles, and ten verifications: two minutes on an idle machine, six beside four stacks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
_SECONDS_MAX = 400


@pytest.fixture(scope="module")
def own(shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A product that no other test uses."""
    folder: Path = tmp_path_factory.mktemp("verify")
    with contextlib.ExitStack() as running:
        local = running.enter_context(LocalStack(folder / "parts", shared_registry))
        yield running.enter_context(Product(folder / "data", local))


@dataclasses.dataclass(frozen=True)
class Planted:
    """The planted faults, and the findings of a verification: a user and its mark, the position of a decision."""

    user: str
    place: int
    decision: str
    report: Report


def verified(product: Product, *parts: str) -> Report:
    """The findings of the command."""
    settings = read_settings(product.environment)
    return asyncio.run(run_verification(settings, parts or PARTS, is_quiet=True))


def found(report: Report) -> dict[tuple[str, str, str], Any]:
    """The differences by what they are of, key and field."""
    return {(checked.name, one.key, one.field): one for checked, one in report.listed()}


def insights(first: int, count: int) -> list[dict[str, Any]]:
    """Insights on a handful of subjects."""
    subjects = ("consumer group rebalance", "broker quota throttle", "schema registry cache", "log segment cleaner")
    return [
        {
            "insight_id": f"i-{number}",
            "channel_id": CHANNELS[number % 4],
            "text": f"{subjects[number % 3]} changed in part {number // 7}",
            "ts": "2026-11-01T12:00:00Z",
        }
        for number in range(first, first + count)
    ]


def test_nothing_differs_after_kills(own: Product) -> None:
    """Insights, subscriptions, matches, votes and chunks, with every role killed while they are dealt with."""
    for user in USERS:
        own.subscribe(user, CHANNELS)
    own.publish("feeds.insight-ingested", insights(0, 400))
    own.kill("worker")
    matches = [
        {
            "match_id": f"m-{number}", "season": "2026", "round": "1", "kickoff": "2026-11-01T12:00:00Z", "home": "A",
            "away": "B", "time_unknown": False, "status": "scheduled",
        }
        for number in range(30)
    ]  # fmt: skip
    own.publish("league.match-scheduled", matches)
    own.kill("sinks")
    results = [
        {
            "match_id": one["match_id"], "season": "2026", "home_goals": 1, "away_goals": 0,
            "finalized_at": "2026-11-01T14:00:00Z",
        }
        for one in matches
    ]  # fmt: skip
    own.publish("league.match-finalized", results)
    votes = [
        {"match_id": f"m-{n % 30}", "user_id": USERS[n % 5], "choice": "home", "ts": "2026-11-01T11:00:00Z"}
        for n in range(60)
    ]
    own.publish("league.vote-cast", votes)
    named = {"kind": "rename", "cluster_id": "none-of-theirs", "label": "Mine"}
    own.publish("feeds.clusters-curated", [{"user_id": user, "ts": 1, **named} for user in USERS])
    own.kill("workers")
    own.publish("feeds.insight-ingested", insights(400, 400))
    assert own.http.request("DELETE", f"/api/users/{USERS[4]}/data").status_code == 202
    own.kill("materializers")
    own.until(lambda: settled(own), "clusters are not made", seconds=_SECONDS_MAX)
    report = verified(own)
    assert [(checked.name, one.as_json()) for checked, one in report.listed()] == []
    compared = {checked.name: checked.compared for checked in report.checked}
    # Six matches had the votes of the erased user only.
    assert (compared["insights"], compared["league_vote_counts"], compared["cluster_curations"]) == (800, 24, 4)
    assert min(compared[name] for name in ("users", "channel_heads", REQUESTED, "user_clusters", "league_matches")) > 0
    assert [one.name for one in report.checked if one.skipped] == []


def settled(product: Product) -> bool:
    """Whether all remaining readers have read everything."""
    rows = product.sql(
        "SELECT u.user_id FROM user_stats AS u JOIN user_cluster_hwm AS h USING (user_id) JOIN channels AS c USING (channel_id) "
        "WHERE u.in_flight IS NULL GROUP BY u.user_id HAVING count(*) = 4 AND bool_and(h.last_seq = c.current_seq)"
    )
    stored = product.sql("SELECT sum(current_seq) AS n FROM channels")[0]["n"]
    erased = not product.sql("SELECT 1 FROM subscriptions WHERE user_id = $1", USERS[4])
    counted = product.sql("SELECT count(*) AS n FROM league_vote_counts WHERE home + draw + away > 0")[0]["n"]
    return erased and len(rows) == len(USERS) - 1 and (stored, counted) == (800, 24)


@pytest.fixture(scope="module")
def planted(own: Product) -> Planted:
    """A row of each store, and an unjustified decision; verified once for all tests."""
    own.sql("UPDATE insights SET text = 'planted' WHERE insight_id = 'i-7'")
    own.sql("UPDATE league_matches SET home_goals = 9 WHERE match_id = 'm-3'")
    own.sql("DELETE FROM subscriptions WHERE user_id = $1 AND channel_id = $2", USERS[0], CHANNELS[1])
    own.sql("UPDATE user_clusters SET noise = noise + 1 WHERE user_id = $1 AND cluster_version = 1", USERS[1])
    user, place = plant_row(own)
    plant(own, changelog_of("channel_heads"), CHANNELS[2], encode_channel(Channel(200, 12_345)))
    decision = plant_decision(own)
    return Planted(user, place, decision, verified(own))


def test_what_is_planted_is_found(planted: Planted) -> None:
    """Each is named with its event, and nothing else is."""
    report = planted.report
    differences = found(report)
    assert differences["insights", "i-7", "text"].found == "planted"
    assert differences["insights", "i-7", "text"].position.startswith("feeds.insight-ingested/")
    assert differences["league_matches", "m-3", "home_goals"].expected == 1
    assert differences["subscriptions", f"{USERS[0]}|{CHANNELS[1]}", "row"].found is None
    assert differences["user_clusters", f"{USERS[1]}|1", "noise"].position.startswith("feeds.clusters-rebuilt/")
    assert differences["users", planted.user, f"channels.{CHANNELS[0]}.hwm"].found == planted.place
    assert differences["channel_heads", CHANNELS[2], "dirty_since"].found == 12_345
    assert differences[REQUESTED, USERS[2], "decision"].position == planted.decision
    # The goals of a match differ from its event as well as from what the log gives.
    assert report.differences == 8
    assert sum(one.differences_count for one in report.checked if one.part == "tables") == 2


@pytest.mark.usefixtures("planted")
def test_the_command_says_what_differs_and_what_it_did_not_compare(own: Product) -> None:
    """Exit 1, a line a difference with the event it starts at, and everything that is left out by name."""
    done = own.cli(*MODELS_ONLY, check=False)
    assert done.returncode == 1
    assert "read models insights i-7: text is planted, the log says broker quota throttle" in done.stdout
    assert "(starts at feeds.insight-ingested/" in done.stdout
    assert "not compared, read model jobs: status and all that follows" in done.stdout
    assert "not compared, part tables: all of it" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" compared, 3 differences")


def test_a_part_that_takes_too_long_ends_with_what_it_waits_for(own: Product) -> None:
    """In one line, and its database goes with it."""
    done = own.cli(*MODELS_ONLY, "--timeout", "0.001", check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("highwater:")]
    assert line.startswith("highwater: models were not compared within 0.001 s (--timeout gives more); waiting for ")
    assert shadow_ids(own) == []


def test_one_at_a_time_and_what_a_killed_one_left_is_replaced(own: Product) -> None:
    """A second one is refused while the first is there; after a SIGKILL the next takes its place, and Ctrl-C leaves nothing."""
    command = [str(Path(sys.executable).parent / "highwater"), *MODELS_ONLY]
    first = subprocess.Popen(command, env=own.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        own.until(lambda: shadow_ids(own), "the first verification made no database", seconds=_SECONDS_MAX)
        os.kill(first.pid, signal.SIGSTOP)
        second = own.cli(*MODELS_ONLY, check=False)
        assert (second.returncode, second.stdout) == (1, "")
        assert "another verification is in progress" in second.stderr
    finally:
        first.kill()
        first.wait()
    (left,) = shadow_ids(own)
    third = subprocess.Popen(command, env=own.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own.until(
        lambda: shadow_ids(own) not in ([], [left]), "the third verification made no database", seconds=_SECONDS_MAX
    )
    third.send_signal(signal.SIGINT)
    assert third.wait(60) == 130
    assert shadow_ids(own) == []
    assert {one.name for one in verified(own, "models").checked} >= {"insights", "league_matches", "subscriptions"}
    assert shadow_ids(own) == []


def shadow_ids(product: Product) -> list[int]:
    """The databases of verifications; a recreated one has another id."""
    return [row["oid"] for row in product.sql("SELECT oid FROM pg_database WHERE datname LIKE 'highwater_verify%'")]


def test_a_role_that_may_make_no_database_is_told_the_remedy(
    own: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, at once. It uses another server, since the right cannot be removed from the owner of our server."""
    monkeypatch.setattr(postgres, "BOOTSTRAP", postgres.BOOTSTRAP.replace(" CREATEDB", ""))
    given = dataclasses.replace(own.parts.addresses, database=None)
    address = own.environment["DATABASE_URL"]
    with LocalStack(tmp_path / "parts", given) as other:
        own.environment["DATABASE_URL"] = str(other.addresses.database)
        try:
            done = own.cli(*MODELS_ONLY, check=False)
        finally:
            own.environment["DATABASE_URL"] = address
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "which highwater may not make (permission denied to create database)" in line
    assert "as an administrator run ALTER ROLE highwater CREATEDB, or leave them out by --only tables" in line


def test_what_the_log_lost_is_said_and_is_no_difference(own: Product, planted: Planted) -> None:
    """Events that retention removed: each table, model, decision and effect that needs them says so, the others are compared."""
    before = {one.name: one for one in planted.report.checked if one.part != "effects"}
    lost = ("league.vote-cast", "league.match-changed", "feeds.channel-advanced", REQUESTED)
    admin = AdminClient({"bootstrap.servers": own.environment["KAFKA_BOOTSTRAP_SERVERS"]})
    for topic in lost:
        ends = own.ends(topic)
        asked = [TopicPartition(topic, partition, (end + 1) // 2) for partition, end in ends.items() if end]
        for future in admin.delete_records(asked).values():
            future.result(30)
    report = verified(own)
    skipped = {(one.part, one.name) for one in report.checked if one.skipped}
    assert skipped == {
        ("tables", "channel_heads"), ("tables", "matches"), ("effects", "league_matches"),
        ("read models", "league_votes"), ("read models", "league_predictions"), ("read models", "league_vote_counts"),
    }  # fmt: skip
    after = {one.name: one for one in report.checked if one.part != "effects"}
    assert after["league_votes"].skipped == "the log of league.vote-cast no longer has its beginning"
    # The remaining part of a topic is judged, the removed part is counted, and decisions without inputs are not differences.
    assert 0 < after[REQUESTED].compared < before[REQUESTED].compared
    assert any("no longer has its beginning" in why for why in after[REQUESTED].left_out)
    assert after["feeds.channel-dirty"].differences_count == 0
    assert after["league.refresh-requested"].differences_count == 0
    assert any("the log of league.match-changed" in why for why in after["league.refresh-requested"].left_out)
    # Faults planted elsewhere are found as before.
    assert after["insights"].differences_count == before["insights"].differences_count == 1
    assert after["users"].differences_count == before["users"].differences_count == 1


def plant_row(own: Product) -> tuple[str, int]:
    """A row of a table that no event made: its key, and the mark that it has now."""
    topic, user = changelog_of("users"), USERS[3]
    last = [one for one in own.records(topic) if one.key() == user.encode()][-1]
    row = decode_user(last.value())
    row.channels[CHANNELS[0]].hwm += 1
    producer = Producer(own.producer_config())
    producer.produce(topic, encode_user(row), last.key(), partition=last.partition())
    assert producer.flush(10) == 0
    return user, row.channels[CHANNELS[0]].hwm


def plant(own: Product, topic: str, key: str, value: bytes) -> None:
    """Another last row of a key of a changelog."""
    last = [one for one in own.records(topic) if one.key() == key.encode()][-1]
    producer = Producer(own.producer_config())
    producer.produce(topic, value, last.key(), partition=last.partition())
    assert producer.flush(10) == 0


def plant_decision(own: Product) -> str:
    """A rebuild for novelty where there is none: its position."""
    codec, user = own.codec(), USERS[2]
    last = [one for one in own.records(REQUESTED) if one.key() == user.encode()][-1]
    event = {**codec.decode(REQUESTED, last.value()), "pending": 0, "trigger": "novelty"}
    at: list[str] = []
    producer = Producer(own.producer_config())
    producer.produce(
        REQUESTED,
        codec.encode(REQUESTED, event),
        last.key(),
        partition=last.partition(),
        headers=[*last.headers(), ("ce_id", uuid.uuid4().hex.encode())],
        on_delivery=lambda _error, message: at.append(f"{REQUESTED}/{message.partition()}/{message.offset()}"),
    )
    assert producer.flush(10) == 0
    return at[0]
