"""Three brokers under a running Highwater: a replica that is behind leads, and elections that lose nothing. On demand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from highwater.api.chaos.election import UncleanElection
from highwater.connectors.kafka.truncation import COMMAND
from highwater.deploy.local.kafka import Kafka
from highwater.deploy.local.stack import LocalStack
from tests.integration.agents import until
from tests.product import POLICY

INGESTED = "feeds.insight-ingested"
_CHANNELS = 12
_SECONDS_MAX = 300.0
_COMMAND_SECONDS_MAX = 900.0
# Each stops or kills one broker: its partitions get other leaders, and later return to it.
_ELECTIONS = 24
# A killed broker is replaced as a leader after its session of nine seconds; one that is stopped hands over.
_ABSENT_SECONDS = 12.0

pytestmark = [
    pytest.mark.skipif("HIGHWATER_THREE_BROKERS" not in os.environ, reason="minutes; HIGHWATER_THREE_BROKERS=1"),
    pytest.mark.timeout(3_600),
]


@dataclass
class Product:
    """Its services with three brokers, and its roles, which a supervisor starts again when they end."""

    servers: LocalStack
    folder: Path
    api: str = ""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command with the addresses of these services."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIGHWATER_", "KAFKA_"))}
        own = {
            "HIGHWATER_DATA_DIR": str(self.folder / "roles"),
            "HIGHWATER_POLICY": str(self.folder / "policy.toml"),
            "HIGHWATER_TICK_SECONDS": "1",
        }
        return subprocess.run(
            [sys.executable, "-P", "-m", "highwater.api.cli.main", *arguments],
            env={**clean, **self.servers.addresses.environment(), **own},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What it prints with --json."""
        done = self.run(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def client(self) -> dict[str, str]:
        """The settings of a Kafka client."""
        return {"bootstrap.servers": self.servers.addresses.kafka or "", "log_level": "0"}

    def losses(self) -> list[asyncpg.Record]:
        """Every loss that was ever noted."""

        async def ask() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.servers.addresses.database)
            try:
                return list(await connection.fetch("SELECT * FROM log_truncations"))
            finally:
                await connection.close()

        return asyncio.run(ask())


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    """All of it, ready, with readers of every channel."""
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    with LocalStack(tmp_path / "servers", brokers=3, late_seconds=60.0) as servers:
        made = Product(servers, tmp_path)
        try:
            done = made.run("up", "--detach", "--no-sample")
            assert done.returncode == 0, done.stderr
            made.api = made.json("status")["api"]
            for number in range(6):
                channels = {"channels": [f"channel-{c}" for c in range(_CHANNELS)]}
                for method, path, body in (
                    ("PUT", "plan", {"plan": "pro"}),
                    ("POST", "activity", {}),
                    ("PUT", "subscriptions", channels),
                ):
                    url = f"{made.api}/api/users/reader-{number}/{path}"
                    answer = httpx2.request(method, url, json=body, timeout=60)
                    assert answer.status_code == 202, answer.text
            yield made
        finally:
            made.run("down")


@dataclass
class Writer:
    """Writes insights without a pause until it is stopped; `accepted` has the position of each that was acknowledged."""

    api: str
    name: str
    accepted: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
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
        self._thread.join(120)

    def write(self, number: int) -> httpx2.Response:
        """One insight."""
        event = {
            "insight_id": f"{self.name}-{number}",
            "channel_id": f"channel-{number % _CHANNELS}",
            "ts": "2026-11-20T00:00:00Z",
            "text": f"Fix the {('parser', 'cache', 'broker')[number % 3]} when the input of case {number % 7} is empty",
        }
        answer = httpx2.post(f"{self.api}/api/events/{INGESTED}", json=event, timeout=60)
        if answer.status_code == httpx2.codes.ACCEPTED:
            self.accepted[event["insight_id"]] = answer.json()["positions"][0]
        else:
            assert answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE, answer.text
            self.refused.append(answer.json()["detail"])
        return answer

    def _write(self) -> None:
        number = 0
        while not self._ended.wait(0.05):
            self.write(number)
            number += 1


def more(writer: Writer, count: int) -> None:
    """Wait until this number of further ones is accepted."""
    goal = len(writer.accepted) + count
    until(lambda: len(writer.accepted) >= goal, f"writes are accepted: {writer.refused[-1:]}", _SECONDS_MAX)


def test_a_replica_that_is_behind_leads(product: Product):
    """Of every topic the tail is lost while all runs: each reader and the API say so, and the repair makes all of it whole."""
    writer, later = Writer(product.api, "one"), Writer(product.api, "two")
    election = UncleanElection(product.servers, product.client())
    writer.start()
    try:
        more(writer, 40)
        before = set(writer.accepted)
        election.hold()
        held = set(writer.accepted)
        more(writer, 40)
        lost = set(writer.accepted) - held
    finally:
        writer.stop()
    # What was acknowledged and not read is lost without a trace.
    until(lambda: is_read(product), "every consumer has read the log", _SECONDS_MAX)
    later.start()
    try:
        election.take_over()
        election.come_back()
        until(lambda: COMMAND in (later.refused or [""])[-1], "the API refuses writes with the command", _SECONDS_MAX)
    finally:
        later.stop()

    until(lambda: product.json("status")["ready"], "every role is ready again", _SECONDS_MAX)
    assert COMMAND in httpx2.get(f"{product.api}/readyz", timeout=60).json()["degraded"]["log"]
    bad = {one["name"]: one for one in product.json("doctor") if one["state"] == "bad"}
    assert {"consumer insights", "consumer fanout", "consumer mirror", "consumer worker"} <= bad.keys()
    assert all(COMMAND in one["remedy"] for one in bad.values())
    assert any("lost its tail" in (one["problem"] or "") for one in product.json("lag"))
    statuses = {name: read(product.api, name, writer.accepted[name]) for name in (min(before), max(lost))}
    assert list(statuses.values()) == [200, 503], statuses

    repaired: list[dict[str, Any]] = []

    def is_whole() -> bool:
        """A producer that waited for a partition may find that another one lost its tail too."""
        repaired.extend(product.json("repair-log", "--execute"))
        return is_read(product) and not product.json("repair-log")

    until(is_whole, "no partition is left to repair, and every consumer has read the log", _SECONDS_MAX)
    assert INGESTED in {one["topic"] for one in repaired}
    moved = {before: now for one in repaired for before, now in one["moved"].items()}
    until(lambda: writer.write(1_000_000).status_code == httpx2.codes.ACCEPTED, "writes are accepted", _SECONDS_MAX)
    gone = {read(product.api, name, position) for name, position in writer.accepted.items() if position in moved}
    assert gone == {410}
    for name in lost & {name for name, position in writer.accepted.items() if position in moved}:
        assert read(product.api, name, moved[writer.accepted[name]]) == httpx2.codes.OK, name
    until(lambda: is_read(product), "every consumer has read the log", _SECONDS_MAX)
    found = product.json("verify")
    assert found["differences"] == 0, found
    assert not [one for one in product.json("doctor") if one["state"] == "bad"]


def read(api: str, name: str, position: str) -> int:
    """The status of reading an insight no older than a position."""
    channel = f"channel-{int(name.rsplit('-', 1)[1]) % _CHANNELS}"
    headers = {"X-Min-Position": position, "X-Max-Wait-Ms": "10000"}
    return httpx2.get(f"{api}/api/insights/{channel}/{name}", headers=headers, timeout=60).status_code


def is_read(product: Product) -> bool:
    """Whether no consumer but the readers of ticks, of which one comes every second, has a record left."""
    groups = product.json("lag")
    return all(group["events"] == 0 or (group["seconds"] or 0) < 5 for group in groups)


def test_elections_without_loss_report_none(product: Product):
    """Brokers are stopped and killed in turn under load: leaders change dozens of times, and no partition is stopped."""
    writer = Writer(product.api, "one")
    writer.start()
    try:
        more(writer, 20)
        names = product.servers.names_of(Kafka.name)
        for number in range(_ELECTIONS):
            name = names[number % len(names)]
            (product.servers.kill_part if number % 2 else product.servers.stop_part)(name)
            threading.Event().wait(_ABSENT_SECONDS)
            product.servers.start_part(name)
            until(lambda: is_in_sync(product), "all replicas are in sync", _SECONDS_MAX)
            admin = AdminClient(product.client())  # kept: without the client its future would never be resolved
            admin.elect_leaders(ElectionType.PREFERRED).result(60)
            more(writer, 5)
            assert product.losses() == []
    finally:
        writer.stop()
    until(lambda: product.json("status")["ready"], "every role is ready", _SECONDS_MAX)
    until(lambda: is_read(product), "every consumer has read the log", _SECONDS_MAX)
    for name in writer.accepted:
        assert read(product.api, name, writer.accepted[name]) == httpx2.codes.OK, name
    assert product.json("repair-log") == []
    found = product.json("verify")
    assert found["differences"] == 0, found


def is_in_sync(product: Product) -> bool:
    """Whether every replica of every partition is in sync."""
    try:
        topics = AdminClient(product.client()).list_topics(timeout=10).topics
    except KafkaException:
        return False
    return all(len(one.isrs) == len(one.replicas) for topic in topics.values() for one in topic.partitions.values())
