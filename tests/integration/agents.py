"""A worker process against a real broker, and the other roles as it sees them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import caused_by
from highwater.schemas.topics import PARTITIONS, TOPICS, all_topics
from tests.integration.connecting import free_port
from tests.integration.copies import Copies, Copy

# Above the 60 s after which a worker that hangs ends itself: then its own line says why, and not only this deadline.
WAIT_SECONDS = 60.0  # a takeover waits out a session, a rebalance and a recovery; far less on an idle machine
TICK_SECONDS = 0.25
CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
CONSUMED = (
    "streams.tick",
    "feeds.channel-advanced",
    "feeds.user-changed",
    "feeds.novelty",
    "feeds.rebuild-finished",
    "league.match-changed",
    "queries.pipeline-stage",
    "queries.run-archived",
    "jobs.usage-recorded",
    "chunks.ingest-progressed",
    "chunks.queries-served",
)
DECIDED = (
    "feeds.channel-dirty",
    "feeds.rebuild-requested",
    "league.refresh-requested",
    "cache.prewarm-requested",
    "queries.stage-requested",
    "jobs.usage-flushed",
    "chunks.ingest-decided",
    "chunks.namespace-rated",
    "chunks.sweep-requested",
)
# Agents that count a tick as applied: of channels, users, seasons, runs, usage, ingests and namespaces.
AGENTS = 7

# The composition root in miniature: fixed schema ids instead of a registry.
WORKER = """
import os, sys, time
from contextlib import closing
from functools import partial
from highwater.connectors.kafka.changelogs import read_changelogs
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnknownSchemaError
from highwater.schemas.topics import TOPICS
from highwater.streams import app, versioned_rows
from highwater.streams.app import run_worker
from highwater.streams.clock import ProductClock
from highwater.streams.restoring import Batch
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging

ahead_ns, real_ns = int(os.environ.get("HIGHWATER_TEST_CLOCK_AHEAD_SECONDS", 0)) * 10**9, time.time_ns
time.time_ns = lambda: real_ns() + ahead_ns
app._ANSWER_SECONDS_MAX = float(os.environ.get("HIGHWATER_TEST_ANSWER_SECONDS", app._ANSWER_SECONDS_MAX))

versioned_rows.WRITES_NAMES = "HIGHWATER_TEST_NAMED_ROWS" in os.environ  # as the next release does

async def learn(schema_id):
    raise UnknownSchemaError(schema_id)

settings = read_settings({k: v for k, v in os.environ.items() if not k.startswith("HIGHWATER_TEST_")})
configure_logging("info", "json")
codec = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
reads = partial(read_changelogs, settings.kafka_client())
hold = os.environ.get("HIGHWATER_TEST_HOLD_RESTORING")  # a file: while it is there, nothing is read after the first records

def held(spans):
    with closing(reads(spans)) as batches:
        for batch in batches:
            yield batch
            while batch.records and hold and os.path.exists(hold):
                time.sleep(0.05)
                yield Batch((), {})

clock = ProductClock(settings.clock_file)
sys.exit(run_worker(settings, codec, clock, learn=learn, read_changelogs=held, app_id=sys.argv[1]))
"""

_COPIES = Copies(WORKER, ["highwater.connectors.kafka.changelogs", "highwater.streams.app"])
atexit.register(_COPIES.close)

POLICY = """
[plans.free]
novelty_count_min = 3
rebuild_interval_seconds = 7200
active_within_seconds = 864000
cooldown_seconds = 600
[plans.eager]
cooldown_seconds = 0
"""


def empty(kafka_address: str) -> None:
    """Make the catalogue's topics and empty them: a new group would read the ticks of earlier tests."""
    admin = AdminClient({"bootstrap.servers": kafka_address})
    known = admin.list_topics(timeout=10).topics
    missing = [
        NewTopic(t.name, num_partitions=t.partitions, replication_factor=1, config=t.config())
        for t in all_topics()
        if t.name not in known
    ]
    for future in admin.create_topics(missing).values() if missing else ():
        future.result(10)
    # Records of a compacted topic cannot be deleted; no worker reads such a topic of the catalogue.
    emptied = [t for t in all_topics() if t.cleanup == "delete"]
    places = [TopicPartition(t.name, p) for t in emptied for p in range(t.partitions)]

    def ends() -> list[TopicPartition] | None:
        """One past the last offset of each; None while a new partition has no leader yet."""
        found = admin.list_offsets({place: OffsetSpec.latest() for place in places})
        try:
            return [TopicPartition(p.topic, p.partition, future.result(10).offset) for p, future in found.items()]
        except KafkaException:
            return None

    marks = until(ends, "every partition has a leader")
    for future in admin.delete_records(marks).values():
        future.result(10)


def until_caught_up(kafka_address: str, group: str, *topics: str) -> None:
    """Wait until a group has committed all there is of topics."""
    with contextlib.closing(Consumer({"bootstrap.servers": kafka_address, "group.id": group})) as reader:

        def is_caught_up() -> bool:
            places = reader.committed([TopicPartition(topic, p) for topic in topics for p in range(8)], timeout=10)
            wanted = [TopicPartition(place.topic, place.partition, OFFSET_END) for place in places]
            ends = reader.offsets_for_times(wanted, timeout=10)
            return all(place.offset >= end.offset for place, end in zip(places, ends, strict=True))

        until(is_caught_up, "all is committed")


def until(look: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """The first true answer within a deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = look()
        if answer:
            return answer
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {what}")


@dataclass
class Worker:
    """One worker process with its own group, state folder and clock."""

    kafka: str
    folder: Path
    app_id: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")
    settings: dict[str, str] = field(default_factory=dict)
    process: Copy | None = None
    port: int = 0
    offset_seconds: float = 0.0

    def start(self) -> Worker:
        """Start and wait until ready."""
        self.launch()
        until(lambda: self.ready() == {}, f"ready; {self.folder}/worker.log")
        return self

    def launch(self) -> None:
        """Start."""
        self.port = free_port()
        policy = self.folder / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
        environment |= {
            "KAFKA_BOOTSTRAP_SERVERS": self.kafka,
            "HIGHWATER_TICK_SECONDS": str(TICK_SECONDS),
            "HIGHWATER_DATA_DIR": str(self.folder / "data"),
            "HIGHWATER_HEALTH_PORT": str(self.port),
            "HIGHWATER_CLOCK_FILE": str(self.folder / "clock"),
            "HIGHWATER_POLICY": str(policy),
            "HIGHWATER_REBUILD_SECONDS_MAX": "100",
        } | self.settings
        with (self.folder / "worker.log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
            files = (nothing.fileno(), log.fileno(), log.fileno())
            self.process = _COPIES.start(environment, self.app_id, files=files, cwd=self.folder)

    def ready(self) -> dict[str, str] | None:
        """Why it is not ready; None while nothing answers."""
        assert self.process is not None
        assert self.process.poll() is None, f"the worker ended: {self.log()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return dict(json.load(answer)["unready"])
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error)["unready"])
        except OSError:
            return None

    def degraded(self) -> dict[str, str]:
        """The degraded services."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
            return dict(json.load(answer)["degraded"])

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return self.metric_of(name, "")

    def metric_of(self, name: str, label: str) -> float:
        """Sum of a metric over the series with a label, such as `topic="streams.tick"`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.split("{")[0].split(" ")[0] == name and label in line
        )

    def after_ticks(self, count: int) -> None:
        """Wait until every agent has applied this many more ticks in every partition, more or less."""
        goal = self.metric("highwater_ticks_total") + AGENTS * PARTITIONS * count
        until(lambda: self.metric("highwater_ticks_total") >= goal, f"{count} ticks")

    def until_committed(self, *answers: Answer) -> None:
        """Wait until what caused each decision is committed: from then on no restart repeats it, even one without state."""
        causes = [cause for answer in answers if (cause := caused_by(answer.headers)) is not None]
        assert len(causes) == len(answers) > 0
        with contextlib.closing(Consumer({"bootstrap.servers": self.kafka, "group.id": self.app_id})) as reader:
            places = [TopicPartition(cause.topic, cause.partition) for cause in causes]
            until(
                lambda: all(
                    place.offset > cause.offset
                    for place, cause in zip(reader.committed(places, timeout=10), causes, strict=True)
                ),
                "all is committed",
            )

    def now(self) -> int:
        """The product's time of this worker."""
        return time.time_ns() // 1_000_000 + int(self.offset_seconds * 1000)

    def move_clock(self, seconds: float) -> None:
        """Let the product's time jump ahead."""
        self.offset_seconds += seconds
        (self.folder / "clock.new").write_text(str(self.offset_seconds), encoding="ascii")
        (self.folder / "clock.new").replace(self.folder / "clock")

    def restorations(self) -> list[int]:
        """Records of each restoration that was begun, by the log."""
        lines = [json.loads(line) for line in self.log().splitlines() if '"tables_restoring"' in line]
        return [line["records"] for line in lines if "records" in line]

    def lose_state(self) -> None:
        """Delete its local tables, once it has ended."""
        shutil.rmtree(self.folder / "data")

    def end(self, how: signal.Signals) -> int:
        """Send a signal and wait for the exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        """Kill it if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)

    def log(self) -> str:
        """The log of the worker."""
        return (self.folder / "worker.log").read_text(encoding="utf-8")


class Kafka:
    """Sends events as the other roles would, and reads what the worker answered."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "linger.ms": 1})
        self._address = address
        self._seen: dict[str, list[Any]] = {}
        self._answers: dict[str, list[tuple[bytes, Answer]]] = {}
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
        topics = [*DECIDED, *(TOPICS[name].dead_letter for name in CONSUMED)]
        known = self._consumer.list_topics(timeout=10).topics
        # The end of each partition, in one request for all; a hundred would take most of the time of a short test.
        ends = [
            TopicPartition(topic, partition, OFFSET_END) for topic in topics for partition in known[topic].partitions
        ]
        self._consumer.assign(self._consumer.offsets_for_times(ends, timeout=10))

    def close(self) -> None:
        """Close the sockets."""
        self._consumer.close()

    def send_bytes(self, topic: str, value: bytes | None, **where: Any) -> None:
        """Send raw bytes and wait for the broker."""
        self._producer.produce(topic, value, **where)
        assert self._producer.flush(10) == 0

    def send(self, topic: str, key: str, **event: Any) -> None:
        """Send an event with a murmur2 key."""
        self.send_bytes(topic, CODEC.encode(topic, event), key=key.encode())

    def advanced(self, channel_id: str, head: int, arrived_at: int = 1) -> None:
        """As the insights sink does."""
        self.send("feeds.channel-advanced", channel_id, channel_id=channel_id, head=head, arrived_at=arrived_at)

    def fill_heads(self, app_id: str, rows: int, *, at_ms: int = 0) -> None:
        """Rows of channels without events, in the changelog as a worker would have written them; 0: now."""
        changelog = f"{app_id}-channel_heads-changelog"
        for number in range(rows):
            self._producer.produce(changelog, key=f"filled-{number}", value=b"[1,null,0]", timestamp=at_ms)
        assert self._producer.flush(60) == 0

    def changed(self, user_id: str, revision: int, **changes: Any) -> None:
        """As the users sink does."""
        event = {
            "user_id": user_id,
            "revision": revision,
            "plan": None,
            "last_active_at": None,
            "subscribed": [],
            "unsubscribed": [],
            "rebuild_demanded": False,
            "rebuild_forced": False,
            "erased": False,
        }
        self.send("feeds.user-changed", user_id, **(event | changes))

    def novelty(self, user_id: str, **heads: int) -> None:
        """As the fan-out does: one record in the partition of the user."""
        event = {"heads": [{"channel_id": name, "head": head, "users": [user_id]} for name, head in heads.items()]}
        self.send_bytes("feeds.novelty", CODEC.encode("feeds.novelty", event), partition=partition_of(user_id))

    def finished(self, request: Any, hwm: dict[str, int], **times: int | None) -> None:
        """As the rebuild worker does."""
        event = {
            "user_id": request.event["user_id"],
            "request_position": request.position,
            "outcome": "rebuilt",
            "reason": "",
            "cluster_version": 1,
            "hwm": hwm,
            "last_clustered_at": None,
            "last_checked_at": None,
            "finished_at": 1,
        }
        self.send("feeds.rebuild-finished", event["user_id"], **(event | times))

    def poll(self) -> None:
        """Read the available messages."""
        for message in self._consumer.consume(1000, 0.05):
            assert message.error() is None, message.error()
            self._seen.setdefault(message.topic(), []).append(message)

    def requests(self, user_id: str) -> list[Answer]:
        """Requests of a user so far."""
        return self.answers("feeds.rebuild-requested", user_id)

    def dirty(self, channel_id: str | None = None) -> list[Answer]:
        """The channels published as dirty so far."""
        return self.answers("feeds.channel-dirty", channel_id)

    def dead_letters(self, topic: str) -> list[Any]:
        """Dead letters of a topic so far."""
        self.poll()
        return self._seen.get(TOPICS[topic].dead_letter, [])

    def answers(self, topic: str, key: str | None) -> list[Answer]:
        """Decisions of a topic so far, of one key or of all; each is decoded once, however often a test looks."""
        self.poll()
        answers = self._answers.setdefault(topic, [])
        answers += [(m.key(), Answer(m)) for m in self._seen.get(topic, [])[len(answers) :]]
        return [answer for its_key, answer in answers if key is None or its_key == key.encode()]


class Answer:
    """An event of the worker."""

    def __init__(self, message: Any) -> None:
        self.event = CODEC.decode(message.topic(), message.value())
        self.position = f"{message.topic()}/{message.partition()}/{message.offset()}"
        self.partition = message.partition()
        self.headers = message.headers()


def partition_of(key: str) -> int:
    """Where murmur2 puts a key."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS
