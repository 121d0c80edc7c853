"""The compose file's own commands and environments as processes on three brokers, of which one is killed. On demand."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from confluent_kafka import Producer
from redis import Redis

from highwater.deploy.local.ports import PortBook
from highwater.schemas.topics import TOPICS, all_topics, dead_letter_topic
from tests.compose import API_KEY
from tests.conftest import Stack
from tests.integration.agents import until
from tests.integration.commands import PROGRAM, run
from tests.integration.databases import make_database
from tests.integration.deploy.three_brokers import START_SECONDS_MAX, Brokers, Installation, Running, is_up
from tests.product import POLICY

_REDIS_NUMBER = 14
_HEADERS = {"Authorization": f"Bearer {API_KEY}"}
_CHANNELS = 12
_USERS = 6
# Acknowledged writes between two failures: with two writers a few seconds, so that each failure meets writes in flight.
_WRITES_BETWEEN = 60
_SETTLE_SECONDS_MAX = 300.0

pytestmark = [
    pytest.mark.skipif("HIGHWATER_THREE_BROKERS" not in os.environ, reason="minutes; HIGHWATER_THREE_BROKERS=1"),
    pytest.mark.timeout(1_800),
]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """The file's three, started."""
    made = Brokers(tmp_path / "kafka", PortBook(tmp_path))
    made.folder.mkdir()
    try:
        made.start()
        until(lambda: is_up(made), "three brokers", START_SECONDS_MAX)
        yield made
    finally:
        made.stop()
        made.ports.release()
        shutil.rmtree(made.folder)


@pytest.fixture
def installation(stack: Stack, brokers: Brokers, tmp_path: Path) -> Installation:
    """The file's own on these brokers, with a database and a Redis number that are empty."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    redis = f"{stack.redis.rsplit('/', 1)[0]}/{_REDIS_NUMBER}"
    with Redis.from_url(redis) as client:
        client.flushdb()
    there = {
        "KAFKA_BOOTSTRAP_SERVERS": brokers.addresses,
        "SCHEMA_REGISTRY_URL": stack.schema_registry,
        "DATABASE_URL": asyncio.run(make_database(stack.database, "three_brokers")),
        "REDIS_URL": redis,
        "REDIS_CACHE_URL": redis,
        # Seconds of cooldown instead of minutes, so that there are decisions to compare.
        "HIGHWATER_POLICY": str(policy),
    }
    return Installation(brokers, there, tmp_path)


def test_the_file_runs_as_it_says_and_outlives_a_broker(installation: Installation):
    """`init` and every role start by the file, each is healthy by its own check; one broker is killed: writes continue."""
    brokers = installation.brokers
    with installation.running() as roles:
        for one in roles:
            # Another address of this machine, as another container has: a listener on 127.0.0.1 does not answer there.
            assert httpx2.get(f"http://127.0.0.2:{one.port}/metrics").status_code == 200

        before = brokers.leaders()
        assert {topic.name for topic in all_topics()} <= set(before)
        assert any(name.endswith("-changelog") for name in before)
        assert "__consumer_offsets" in before
        brokers.processes["kafka-2"].send_signal(signal.SIGKILL)
        port = next(one.port for one in roles if one.role == "api")
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=_HEADERS, timeout=120) as api:
            for number in range(100):  # users of every partition
                event = {"user_id": f"user-{number}", "ts": 1_790_000_000_000}
                answer = api.post("/api/events/feeds.user-active", json=event)
                assert answer.is_success, answer.text
        until(lambda: min(map(min, brokers.leaders().values())) >= 2, "every partition has a leader and two in sync")
        assert write_everywhere(brokers) == []
        for one in roles:
            until(one.is_healthy, f"{one.name} is healthy on two brokers", START_SECONDS_MAX)
        assert {one.name: one.process.poll() for one in roles} == {one.name: None for one in roles}


def write_everywhere(brokers: Brokers) -> list[str]:
    """The refusals of one record with acks=all to each partition of the topics without readers."""
    refused: list[str] = []
    producer = Producer({**brokers.client("highwater"), "acks": "all", "delivery.timeout.ms": 60_000})
    for topic in map(dead_letter_topic, TOPICS.values()):
        for partition in range(topic.partitions):
            producer.produce(
                topic.name,
                b"",
                partition=partition,
                on_delivery=lambda error, record: (
                    error and refused.append(f"{record.topic()}/{record.partition()}: {error}")
                ),
            )
    assert producer.flush(90) == 0
    return refused


@dataclass
class Writer:
    """A client that writes insights without a pause, by whichever API answers, each until it is acknowledged."""

    addresses: Sequence[str]
    name: str
    acknowledged: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._write, name=self.name)
        self._thread.start()

    def stop(self) -> None:
        """End after the write in progress."""
        self._ended.set()
        assert self._thread is not None
        self._thread.join(180)
        assert not self._thread.is_alive()

    def _write(self) -> None:
        addresses = itertools.cycle(self.addresses)
        address = next(addresses)
        with httpx2.Client(headers=_HEADERS, timeout=60) as api:
            for number in itertools.count():
                channel = f"channel-{number % _CHANNELS}"
                event = {
                    "insight_id": f"{self.name}-{number}",
                    "channel_id": channel,
                    "ts": "2026-11-20T00:00:00Z",
                    "text": f"Fix the {('parser', 'cache', 'broker')[number % 3]} when the input of case {number % 7} is empty",
                }
                while not self._ended.is_set():
                    try:
                        answer = api.post(f"{address}/api/events/feeds.insight-ingested", json=event)
                    except httpx2.TransportError:  # that API was killed
                        address = next(addresses)
                        continue
                    if answer.is_success:
                        self.acknowledged.append(event["insight_id"])
                        break
                    self.failed.append(f"{answer.status_code} {answer.text[:200]}")
                    assert answer.status_code in {429, 503}, answer.text
                    address = next(addresses)
                if self._ended.is_set():
                    return


def subscribe(api: httpx2.Client) -> None:
    """Readers of the channels, active and on the plan with the lowest threshold, so that there is something to decide."""
    for number in range(_USERS):
        channels = {"channels": [f"channel-{c}" for c in range(_CHANNELS)]}
        for method, path, body in (
            ("PUT", "plan", {"plan": "pro"}),
            ("POST", "activity", {}),
            ("PUT", "subscriptions", channels),
        ):
            answer = api.request(method, f"/api/users/reader-{number}/{path}", json=body)
            assert answer.status_code == 202, answer.text


def test_one_of_each_of_two_is_killed_under_load(installation: Installation):
    """Two of each role, one of each and a broker killed while clients write: nothing acknowledged is lost, `verify` is clean."""
    with installation.running(count=2) as roles:
        addresses = [f"http://127.0.0.1:{one.port}" for one in roles if one.role == "api"]
        with httpx2.Client(base_url=addresses[0], headers=_HEADERS, timeout=60) as api:
            subscribe(api)
        writers = [Writer(addresses, f"{name}-{uuid.uuid4().hex[:6]}") for name in ("one", "two")]
        for writer in writers:
            writer.start()
        try:
            kill_one_of_each(installation, roles, writers)
        finally:
            for writer in writers:
                writer.stop()
        survivors = [one for one in roles if one.number == 2]
        assert {one.name: one.process.poll() for one in survivors} == {one.name: None for one in survivors}
        for one in survivors:
            until(one.is_healthy, f"{one.name} is healthy with the others gone", START_SECONDS_MAX)
        acknowledged = {name for writer in writers for name in writer.acknowledged}
        environment = installation.environment("init")
        until(lambda: is_read(environment), "every consumer has read the log", _SETTLE_SECONDS_MAX)
        rows = asyncio.run(
            fetch(installation.there["DATABASE_URL"], "SELECT insight_id, channel_id, seq FROM insights")
        )
        assert sorted(acknowledged - {row["insight_id"] for row in rows}) == []
        assert len(rows) == len({row["insight_id"] for row in rows})
        by_channel: dict[str, list[int]] = {}
        for row in rows:
            by_channel.setdefault(row["channel_id"], []).append(row["seq"])
        assert {name: sorted(seqs) for name, seqs in by_channel.items()} == {
            name: list(range(1, len(seqs) + 1)) for name, seqs in by_channel.items()
        }
        found = verified(environment)
        assert asyncio.run(fetch(installation.there["DATABASE_URL"], "SELECT 1 FROM user_clusters")), (
            "nothing was decided"
        )
        assert (found["differences"], found["compared"] > len(rows)) == (0, True), found


def kill_one_of_each(installation: Installation, roles: Sequence[Running], writers: Sequence[Writer]) -> None:
    """One after the other a broker and the first of each role; after each, writes continue."""

    def until_written(count: int, what: str) -> None:
        goals = [len(writer.acknowledged) + count for writer in writers]
        until(
            lambda: all(len(writer.acknowledged) >= goal for writer, goal in zip(writers, goals, strict=True)),
            f"writes are acknowledged {what}: {[writer.failed[-1:] for writer in writers]}",
            _SETTLE_SECONDS_MAX,
        )

    until_written(_WRITES_BETWEEN, "by all")
    broker = installation.brokers.processes["kafka-2"]
    for name, process in [("kafka-2", broker), *((one.name, one.process) for one in roles if one.number == 1)]:
        process.send_signal(signal.SIGKILL)
        begun = time.monotonic()
        until_written(1, f"after the end of {name}")
        print(f"{name}: writes after {time.monotonic() - begun:.1f} s")
        until_written(_WRITES_BETWEEN, f"without {name}")


def is_read(environment: dict[str, str]) -> bool:
    """Whether no consumer has a record left to read."""
    done = run(environment, "lag", "--json")
    if done.returncode != 0:
        return False
    return all(group["events"] == 0 for group in json.loads(done.stdout))


def verified(environment: dict[str, str]) -> dict[str, Any]:
    """The output of `highwater verify`."""
    done = subprocess.run(
        [*PROGRAM, "verify", "--json"], env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def fetch(database: str, statement: str) -> list[asyncpg.Record]:
    """Rows of a statement."""
    connection = await asyncpg.connect(database)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
