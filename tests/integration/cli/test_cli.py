"""The command line against the real parts, run as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import asyncpg
from confluent_kafka import Producer

from highwater.api.cli.checks import Check, check_embedder
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.groups import committed
from highwater.connectors.models.local_model import MINILM
from highwater.streams.settings import read_settings
from tests.integration.commands import PROGRAM, printed, run, tail

TOPIC = "feeds.user-active"


def active(user_id: str, ts: object = "2020-01-01T00:00:00Z") -> str:
    """A line of the topic."""
    return json.dumps({"user_id": user_id, "ts": ts}) + "\n"


def test_init_a_second_time_has_nothing_to_do(environment):
    """`init` is idempotent and says so."""
    assert printed(run(environment, "init", "--json")) == {"migrations": [], "topics": [], "schemas": []}


def test_published_lines_are_read_back(environment, tmp_path):
    """A gzip file is published whole; tail shows value, key and the headers of CloudEvents at the reported position."""
    user = uuid.uuid4().hex
    path = tmp_path / "events"
    path.write_bytes(gzip.compress((active(user, 1000) + "\n" + active(user, 5000)).encode()))
    told = printed(run(environment, "publish", TOPIC, str(path), "--rebase-to", "2026-01-01T00:00:10Z", "--json"))
    assert (told["published"], told["rejected"]) == (2, 0)
    first, last = tail(environment, TOPIC, 2)
    assert list(told["positions"].values()) == [last["position"]]
    assert [first["value"]["ts"], last["value"]["ts"]] == ["2026-01-01T00:00:06Z", "2026-01-01T00:00:10Z"]
    assert (user, TOPIC, "/cli/publish") == (last["key"], last["headers"]["ce_type"], last["headers"]["ce_source"])
    assert first["headers"]["ce_id"] != last["headers"]["ce_id"]


def test_bad_lines_are_reported_kept_and_skipped(environment, tmp_path):
    """The good lines of a pipe arrive, bad ones are named by number and kept as they were, and the status is 1."""
    rejects = tmp_path / "rejects"
    lines = active("good") + "nonsense\n" + '{"user_id": "x"}\n' * 8 + active("good")
    done = run(environment, "publish", TOPIC, "-", "--rejects", str(rejects), "--rebase-to", "now", stdin=lines)
    assert done.returncode == 1
    assert "line 2: not JSON" in done.stderr
    assert "4 more bad lines" in done.stderr
    assert "published 2 events" in done.stdout
    assert rejects.read_text() == "nonsense\n" + '{"user_id": "x"}\n' * 8


def test_a_truncated_file_fails_after_what_was_read(environment, tmp_path):
    """An interrupted gzip file gives one line on standard error with the number of published events."""
    path = tmp_path / "torn.gz"
    path.write_bytes(gzip.compress("".join(active(uuid.uuid4().hex) for _ in range(5000)).encode())[:-2000])
    done = run(environment, "publish", TOPIC, str(path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "events were published" in done.stderr


def test_ctrl_c_says_what_was_acknowledged(environment):
    """A publish that is interrupted sees through what it handed over, says how much, and ends with 130."""
    process = subprocess.Popen(
        [*PROGRAM, "publish", TOPIC, "-", "--rate", "20"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    follower = subprocess.Popen(
        [*PROGRAM, "tail", TOPIC, "-n", "0", "--json"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert follower.stdout is not None
    user = uuid.uuid4().hex
    process.stdin.write(active(user) * 600)  # half a minute of events, and less than a pipe holds
    process.stdin.flush()
    assert json.loads(follower.stdout.readline())["value"]["user_id"]  # it is in the middle of it
    follower.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    follower.communicate(timeout=60)
    assert (process.returncode, follower.returncode) == (130, 130)
    assert "interrupted" in said
    assert "Traceback" not in said


def test_a_reader_that_leaves_ends_tail_quietly(environment):
    """`tail … | head` prints what head wanted and nothing else."""
    run(environment, "publish", TOPIC, "-", stdin=active("someone") * 500)
    command = f"{sys.executable} -m highwater.api.cli.main tail {TOPIC} --from-beginning --json | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["position"].startswith(TOPIC)


def test_undecodable_records_are_shown_as_such(environment, stack):
    """An invalid record is shown with the reason and its bytes, and does not end tail."""
    produce(stack, TOPIC, b"garbage", key=b"\xff", headers=[])
    shown = tail(environment, TOPIC, 1)[0]
    assert (shown["bytes_base64"], shown["key"]) == ("Z2FyYmFnZQ==", "\\xff")
    assert "magic byte" in shown["undecodable"]


def produce(stack: Any, topic: str, value: bytes, *, key: bytes, headers: list[tuple[str, bytes]]) -> None:
    """Put one record on a topic as any client would."""
    producer = Producer({"bootstrap.servers": stack.kafka})
    producer.produce(topic, value, key, headers=headers)
    assert producer.flush(30) == 0


def test_dead_letters_are_listed_redriven_and_dropped(environment, stack):
    """A dead letter is returned unchanged to the partition it came from, and is deleted only by an explicit command."""
    topic, origin = "feeds.plan-changed", "feeds.plan-changed/5/0"
    headers = [("ce_id", b"77"), ("dlq_reason", b"not_avro"), ("dlq_detail", b"d"), ("dlq_origin", origin.encode())]
    produce(stack, f"{topic}.dlq", b"\x01bytes", key=b"ada", headers=headers)
    counted = {row["topic"]: row for row in printed(run(environment, "dlq", "list", "--json"))}
    assert counted[topic]["reasons"] == {"not_avro": 1}
    letters = printed(run(environment, "dlq", "list", topic, "--json"))
    assert [(origin, "not_avro", "ada")] == [(row["origin"], row["reason"], row["key"]) for row in letters]
    assert printed(run(environment, "dlq", "show", topic, "--json"))["bytes_base64"] == "AWJ5dGVz"

    assert printed(run(environment, "dlq", "redrive", f"{topic}.dlq", "--json"))["redriven"] == 1
    redriven = tail(environment, topic, 1)[0]
    assert redriven["position"].startswith(f"{topic}/5/")
    assert {"ce_id": "77", "dlq_redriven_from": f"{topic}.dlq/0/0"}.items() <= redriven["headers"].items()
    assert {"dlq_redriven_by", "dlq_redriven_at", "dlq_redrives"} == set(redriven["headers"]) - {
        "ce_id",
        "dlq_redriven_from",
    }

    assert run(environment, "dlq", "drop", topic).returncode == 2
    assert printed(run(environment, "dlq", "drop", topic, "--yes", "--json")) == {"dropped": 1}
    assert printed(run(environment, "dlq", "list", topic, "--json")) == []


async def test_reset_sets_table_and_kafka_alike(environment, stack):
    """A dry run changes nothing; with --execute the positions and the group's offsets are at the same place."""
    run(environment, "publish", TOPIC, "-", stdin=active("resetting") * 3)
    client = {"bootstrap.servers": stack.kafka}

    async def stored() -> list[tuple[int, int, str]]:
        connection = await asyncpg.connect(stack.database)
        try:
            query = (
                """SELECT partition, next, topic_id FROM positions WHERE "group" = 'users' AND topic = $1 ORDER BY 1"""
            )
            return [tuple(row) for row in await connection.fetch(query, TOPIC)]
        finally:
            await connection.close()

    before = await stored()
    arguments = ("reset", "highwater-users", "--to", "latest", "--topic", TOPIC, "--json")
    assert printed(await asyncio.to_thread(run, environment, *arguments))["executed"] is False
    assert before == await stored()

    told = printed(await asyncio.to_thread(run, environment, *arguments, "--execute"))
    after = await stored()
    topic_id = (await Admin(client).topic_ids([TOPIC]))[TOPIC]
    assert [(row["partition"], row["after"], topic_id) for row in told["partitions"]] == after
    in_kafka = {
        place: offset for place, offset in (await committed(client, "highwater-users")).items() if place[0] == TOPIC
    }
    assert {(TOPIC, partition): offset for partition, offset, _ in after} == in_kafka


def test_lag_counts_events_and_seconds(environment):
    """After a reset to the beginning a group is behind by all there is; at the end it is behind by nothing."""
    run(environment, "publish", "feeds.user-erased", "-", stdin=active("erased") * 2)
    arguments = ("reset", "users", "--topic", "feeds.user-erased", "--execute", "--to")
    for target, is_behind in (("earliest", True), ("latest", False)):
        assert run(environment, *arguments, target).returncode == 0
        users = next(row for row in printed(run(environment, "lag", "--json")) if row["group"] == "users")
        events = sum(row["events"] for row in users["partitions"] if row["topic"] == "feeds.user-erased")
        assert is_behind == (events >= 2)
        assert not is_behind or users["seconds"] >= 0


def test_describe_shows_what_the_broker_holds(environment):
    """The contract and the live offsets stand side by side, without differences on a fresh broker."""
    shown = printed(run(environment, "describe", TOPIC, "--json"))
    assert (shown["key"], len(shown["live"]["partitions"]), shown["live"]["differences"]) == ("user_id", 8, [])


async def test_doctor_says_what_makes_vectors(environment, tmp_path):
    """The model by its name and its backlog; a missing, damaged or unreachable one is shown with the remedy."""

    async def check(**more: str) -> Check:
        (found,) = await check_embedder(read_settings({"DATABASE_URL": environment["DATABASE_URL"], **more}))
        return found

    found = await check()
    assert (found.state, found.detail.startswith(f"local: {MINILM.basis_id}; ")) == ("ok", True)
    assert found.detail.endswith("wait for a vector")
    shutil.copytree(read_settings({}).model_dir, tmp_path / "models")
    (tmp_path / "models" / f"{MINILM.name}.onnx").write_bytes(b"other")
    found = await check(HIGHWATER_MODEL_DIR=str(tmp_path / "models"))
    assert (found.state, "fetch --models" in found.remedy) == ("bad", True)
    found = await check(HIGHWATER_MODEL_DIR=str(tmp_path), HIGHWATER_EMBEDDER="local")
    assert (found.state, "cannot be read: No such file" in found.detail) == ("bad", True)
    found = await check(HIGHWATER_MODEL_DIR=str(tmp_path))
    assert (found.state, found.detail.startswith("builtin: ")) == ("warning", True)


def test_doctor_finds_fresh_parts_well(environment):
    """Every part of a stack is healthy; an unavailable one is named, and makes the status 1."""
    # The consumers of this session's stack are run by other tests, if at all: their lag is none of this one's business.
    checks = {row["name"]: row["state"] for row in json.loads(run(environment, "doctor", "--json").stdout)}
    assert {"ok"} == {
        checks[name] for name in ("kafka", "topics", "schemas", "database", "migrations", "redis", "embedder")
    }
    away = run({**environment, "REDIS_URL": "redis://127.0.0.1:1/0"}, "doctor", "--json")
    assert away.returncode == 1
    assert next(row["state"] for row in json.loads(away.stdout) if row["name"] == "redis") == "bad"


def test_a_part_that_is_away_is_one_line(environment, tmp_path: Path):
    """A broker that does not answer ends a command with 1 and one line, without the client library's own noise."""
    done = run({**environment, "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, "publish", TOPIC, "-", stdin=active("x"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Kafka does not answer" in done.stderr
