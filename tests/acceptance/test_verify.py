"""`highwater verify` on a product of its own, since what is planted in a log stays there: nothing differs after real input with
kills in between, and each planted difference is found with the event that it starts at.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from api.cli.verify import run_verification
from connectors.verify.report import Report
from connectors.verify.run import PARTS
from connectors.verify.tables import changelog_of
from deploy.local.stack import LocalStack
from streams.feeds.state import decode_user, encode_user
from streams.settings import read_settings
from tests.product import Product

CHANNELS = [f"channel-{number}" for number in range(4)]
USERS = [f"reader-{number}" for number in range(5)]
REQUESTED = "feeds.rebuild-requested"
# A product of its own, six roles started anew, and three verifications: two minutes on an idle machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A product that nobody else looks at."""
    folder: Path = tmp_path_factory.mktemp("verify")
    with contextlib.ExitStack() as running:
        local = running.enter_context(LocalStack(folder / "parts"))
        yield running.enter_context(Product(folder / "data", local))


def verified(product: Product, *parts: str) -> Report:
    """What the command finds."""
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
    own.kill("workers")
    own.publish("feeds.insight-ingested", insights(400, 400))
    own.http.request("DELETE", f"/api/users/{USERS[4]}")
    own.until(lambda: settled(own), "clusters are not made", seconds=120)
    report = verified(own)
    assert [(checked.name, one.as_json()) for checked, one in report.listed()] == []
    compared = {checked.name: checked.compared for checked in report.checked}
    assert (compared["insights"], compared["league_vote_counts"]) == (800, 30)
    assert min(compared[name] for name in ("users", "channel_heads", REQUESTED, "user_clusters", "league_matches")) > 0
    assert [one.name for one in report.checked if one.skipped] == []


def settled(product: Product) -> bool:
    """Whether everybody who is left has seen everything."""
    rows = product.sql(
        "SELECT u.user_id FROM user_stats AS u JOIN user_cluster_hwm AS h USING (user_id) JOIN channels AS c USING (channel_id) "
        "WHERE u.in_flight IS NULL GROUP BY u.user_id HAVING count(*) = 4 AND bool_and(h.last_seq = c.current_seq)"
    )
    return len(rows) >= len(USERS) - 1 and product.sql("SELECT sum(current_seq) AS n FROM channels")[0]["n"] == 800


def test_what_is_planted_is_found(own: Product) -> None:
    """A row of each store, and a decision that nobody was entitled to; each is named with its event."""
    own.sql("UPDATE insights SET text = 'planted' WHERE insight_id = 'i-7'")
    own.sql("UPDATE league_matches SET home_goals = 9 WHERE match_id = 'm-3'")
    own.sql("DELETE FROM subscriptions WHERE user_id = $1 AND channel_id = $2", USERS[0], CHANNELS[1])
    own.sql("UPDATE user_clusters SET noise = noise + 1 WHERE user_id = $1 AND cluster_version = 1", USERS[1])
    user, place = plant_row(own)
    decision = plant_decision(own)

    report = verified(own)
    differences = found(report)
    assert differences["insights", "i-7", "text"].found == "planted"
    assert differences["insights", "i-7", "text"].position.startswith("feeds.insight-ingested/")
    assert differences["league_matches", "m-3", "home_goals"].expected == 1
    assert differences["subscriptions", f"{USERS[0]}|{CHANNELS[1]}", "row"].found is None
    assert differences["user_clusters", f"{USERS[1]}|1", "noise"].position.startswith("feeds.clusters-rebuilt/")
    assert differences["users", user, f"channels.{CHANNELS[0]}.hwm"].found == place
    assert differences[REQUESTED, USERS[2], "decision"].position == decision
    # The goals of a match differ from its event as well as from what the log gives.
    assert report.differences == 7
    assert verified(own, "tables").differences == 1


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
