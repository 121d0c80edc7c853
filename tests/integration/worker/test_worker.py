"""The worker against a real broker: events in, decisions out, through restarts, poison and lost state."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from highwater.deploy.local.stack import LocalStack
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import caused_by, header
from highwater.schemas.topics import PARTITIONS, TOPICS, all_topics
from tests import ROOT

# Above the 60 s after which a worker that hangs ends itself: then its own line says why, and not only this deadline.
WAIT_SECONDS = 60.0  # a takeover waits out a session, a rebalance and a recovery; far less on an idle machine
TICK_SECONDS = 0.25
REPOSITORY = ROOT
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
import os, sys
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnknownSchemaError
from highwater.schemas.topics import TOPICS
from highwater.streams.app import run_worker
from highwater.streams.clock import ProductClock
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging

async def learn(schema_id):
    raise UnknownSchemaError(schema_id)

settings = read_settings({k: v for k, v in os.environ.items() if not k.startswith("HIGHWATER_TEST_")})
configure_logging("info", "json")
codec = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
sys.exit(run_worker(settings, codec, ProductClock(settings.clock_file), learn=learn, app_id=sys.argv[1]))
"""

POLICY = """
[plans.free]
novelty_count_min = 3
rebuild_interval_seconds = 7200
active_within_seconds = 864000
cooldown_seconds = 600
[plans.eager]
cooldown_seconds = 0
"""


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker that these tests have to themselves: they empty its topics."""
    with LocalStack(tmp_path_factory.mktemp("worker") / "data") as local:
        yield str(local.addresses.kafka)


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
    # Of a compacted topic no records can be deleted; no worker reads one of the catalogue.
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


def is_caught_up(kafka_address: str, group: str, *topics: str) -> bool:
    """Whether a group has committed all there is of topics."""
    with contextlib.closing(Consumer({"bootstrap.servers": kafka_address, "group.id": group})) as reader:
        places = reader.committed([TopicPartition(topic, p) for topic in topics for p in range(8)], timeout=10)
        return all(place.offset >= reader.get_watermark_offsets(place, timeout=10)[1] for place in places)


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
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    offset_seconds: float = 0.0

    def start(self) -> Worker:
        """Start and wait until ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
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
            "PYTHONPATH": str(REPOSITORY),
        } | self.settings
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, self.app_id], env=environment, cwd=self.folder, stderr=log, stdout=log
            )
        until(lambda: self.ready() == {}, f"ready; {self.folder}/worker.log")
        return self

    def ready(self) -> dict[str, str] | None:
        """What is not ready; None while nothing answers."""
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

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def after_ticks(self, count: int) -> None:
        """Wait until every agent has applied so many more ticks in every partition, more or less."""
        goal = self.metric("highwater_ticks_total") + AGENTS * PARTITIONS * count
        until(lambda: self.metric("highwater_ticks_total") >= goal, f"{count} ticks")

    def now(self) -> int:
        """The product's time of this worker."""
        return time.time_ns() // 1_000_000 + int(self.offset_seconds * 1000)

    def move_clock(self, seconds: float) -> None:
        """Let the product's time jump ahead."""
        self.offset_seconds += seconds
        (self.folder / "clock.new").write_text(str(self.offset_seconds), encoding="ascii")
        (self.folder / "clock.new").replace(self.folder / "clock")

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
        """What the worker wrote."""
        return (self.folder / "worker.log").read_text(encoding="utf-8")


class Kafka:
    """Sends events as the other roles would, and reads what the worker answered."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "linger.ms": 1})
        self._address = address
        self._seen: dict[str, list[Any]] = {}
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
        topics = [*DECIDED, *(TOPICS[name].dead_letter for name in CONSUMED)]
        places = []
        for topic in topics:
            for partition in range(len(self._consumer.list_topics(topic, timeout=10).topics[topic].partitions)):
                end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
                places.append(TopicPartition(topic, partition, end))
        self._consumer.assign(places)

    def close(self) -> None:
        """Let go of the sockets."""
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
        """Take in what has come."""
        for message in self._consumer.consume(1000, 0.05):
            assert message.error() is None, message.error()
            self._seen.setdefault(message.topic(), []).append(message)

    def requests(self, user_id: str) -> list[Answer]:
        """Requests of a user so far."""
        return self.answers("feeds.rebuild-requested", user_id)

    def dirty(self, channel_id: str | None = None) -> list[Answer]:
        """Channels told so far."""
        return self.answers("feeds.channel-dirty", channel_id)

    def dead_letters(self, topic: str) -> list[Any]:
        """Dead letters of a topic so far."""
        self.poll()
        return self._seen.get(TOPICS[topic].dead_letter, [])

    def answers(self, topic: str, key: str | None) -> list[Answer]:
        """Decisions of a topic so far, of one key or of all."""
        self.poll()
        return [Answer(m) for m in self._seen.get(topic, []) if key is None or m.key() == key.encode()]


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


@pytest.fixture
def kafka(request: pytest.FixtureRequest, kafka_address: str) -> Iterator[Kafka]:
    """The other roles; made after the topics are."""
    request.getfixturevalue("lone" if "lone" in request.fixturenames else "worker")
    with contextlib.closing(Kafka(kafka_address)) as roles:
        yield roles


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """A user of one test alone."""
    return f"user-{request.node.name}-{uuid.uuid4().hex[:8]}"


def subscribed(kafka: Kafka, worker: Worker, user: str, *channels: str, **changes: Any) -> None:
    """An active user with subscriptions, and a request answered long enough ago to count as clustered just now."""
    kafka.changed(user, 1, subscribed=list(channels), last_active_at=worker.now(), **changes)


def the(answers: Callable[[], list[Answer]], count: int) -> list[Answer]:
    """So many answers; more of them are a fault."""
    found = until(lambda: found if len(found := answers()) >= count else None, f"{count} answers")
    assert len(found) == count
    return found


def clustered(worker: Worker, kafka: Kafka, user: str) -> tuple[Answer, dict[str, int]]:
    """The first request of a user (never clustered is due at once), with an empty mark to answer it by."""
    (first,) = the(lambda: kafka.requests(user), 1)
    return first, {}


@pytest.fixture
def lone(kafka_address: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Workers of one test alone, not started yet."""
    empty(kafka_address)
    made: list[Worker] = []

    def make(**given: Any) -> Worker:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Worker(kafka_address, folder, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_tick_tells_no_more_channels_than_its_cap(kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """Of many dirty channels each tick tells at most the cap, the oldest of a partition first, and in the end all."""
    lone(settings={"HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK": "3"}).start()
    names = [f"{user}-{number}" for number in range(60)]
    for number, name in enumerate(names):
        kafka.advanced(name, 1, arrived_at=1_000_000 - number)
    ours = set(names)

    def all_told() -> list[Answer] | None:
        found = [a for a in kafka.dirty() if a.event["channel_id"] in ours]
        return found if len({a.event["channel_id"] for a in found}) == len(ours) else None

    answers = until(all_told, "all told")
    per_tick: dict[int, int] = {}
    for answer in answers:
        per_tick[answer.event["tick"]] = per_tick.get(answer.event["tick"], 0) + 1
    assert max(per_tick.values()) <= 3
    for partition in range(PARTITIONS):
        since = [a.event["dirty_since"] for a in answers if a.partition == partition]
        told_before_all_came = 3  # the first may be told before an older one arrives
        assert since[told_before_all_came:] == sorted(since[told_before_all_came:])


def test_killed_and_robbed_of_its_state_it_decides_the_same(
    kafka: Kafka, user: str, lone: Callable[..., Worker]
) -> None:
    """After SIGKILL and the loss of all local state, marks, cooldowns and flights are as they were."""
    worker = lone().start()
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    kafka.novelty(user, a=3)
    kafka.advanced(user, 7)
    the(lambda: kafka.dirty(user), 1)
    worker.after_ticks(2)
    assert worker.end(signal.SIGKILL) == -signal.SIGKILL
    shutil.rmtree(worker.folder / "data")
    worker.start()
    worker.after_ticks(3)
    assert len(kafka.requests(user)) == 1
    assert len(kafka.dirty(user)) == 1
    worker.move_clock(601)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 3)


def test_another_worker_takes_over(kafka_address: str, kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """Of two workers one is killed: the other serves all partitions, and no decision is lost or taken twice."""
    one = lone().start()
    other = lone(app_id=one.app_id).start()
    users = [f"{user}-{number}" for number in range(16)]
    for name in users:
        subscribed(kafka, one, name, "a")
    for name in users:
        the(lambda name=name: kafka.requests(name), 1)
    one.end(signal.SIGKILL)
    for name in users:
        kafka.finished(kafka.requests(name)[0], {}, last_clustered_at=other.now())
        kafka.novelty(name, a=5)
    # Topics have no order among themselves: the clock moves on once the new owner has dealt with the answers.
    until(lambda: is_caught_up(kafka_address, one.app_id, "feeds.rebuild-finished", "feeds.novelty"), "caught up")
    other.move_clock(700)
    for name in users:
        assert the(lambda name=name: kafka.requests(name), 2)[1].event["pending"] == 5


def test_sigterm_ends_it_in_order(lone: Callable[..., Worker]) -> None:
    """SIGTERM is a clean stop within seconds, exit code 0, and the next start is ready within seconds."""
    worker = lone().start()
    started = time.monotonic()
    assert worker.end(signal.SIGTERM) == 0
    assert time.monotonic() - started < 8
    started = time.monotonic()
    worker.start()
    assert time.monotonic() - started < 10


@pytest.fixture(scope="module")
def shared_worker(kafka_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker shared by the tests that leave it running; they come last, since only one may run at a time."""
    empty(kafka_address)
    with contextlib.closing(Worker(kafka_address, tmp_path_factory.mktemp("worker"))) as shared:
        yield shared.start()


@pytest.fixture
def worker(shared_worker: Worker) -> Worker:
    """The shared worker, alive."""
    assert shared_worker.ready() == {}
    return shared_worker


def test_an_advance_is_told_at_the_next_tick(worker: Worker, kafka: Kafka, user: str) -> None:
    """An advanced channel is told once, with its head, the time of its first advance and the tick that caused it."""
    kafka.advanced(user, 5, arrived_at=worker.now() - 10)
    (told,) = the(lambda: kafka.dirty(user), 1)
    assert told.event["head"] == 5
    cause = caused_by(told.headers)
    assert cause is not None
    assert (cause.topic, cause.partition) == ("streams.tick", partition_of(user))
    kafka.advanced(user, 5)
    kafka.advanced(user, 4)
    worker.after_ticks(3)
    assert len(kafka.dirty(user)) == 1
    kafka.advanced(user, 6)
    assert [a.event["head"] for a in the(lambda: kafka.dirty(user), 2)] == [5, 6]


def test_novelty_leads_to_a_request_with_its_inputs(worker: Worker, kafka: Kafka, user: str) -> None:
    """Enough novelty for an active subscriber is requested at the next tick, with all the decision was made from."""
    active_at = worker.now()
    kafka.novelty(user, a=4)  # ahead of the subscription: it counts once that is known
    kafka.changed(user, 1, subscribed=["a"], last_active_at=active_at, plan="pro")
    (request,) = the(lambda: kafka.requests(user), 1)
    tick = caused_by(request.headers)
    assert request.event["tick_position"] == str(tick)
    assert header(request.headers, "ce_id") == f"{tick}#feeds.rebuild-requested#{user}"
    expected = {
        "user_id": user,
        "forced": False,
        "trigger": "time",  # never clustered, and 4 is below the 20 of pro
        "pending": 4,
        "plan": "pro",
        "last_active_at": active_at,
        "last_clustered_at": None,
        "last_enqueued_at": None,
    }
    assert {key: request.event[key] for key in expected} == expected
    assert request.partition == partition_of(user)


def test_two_channels_lead_to_one_request(worker: Worker, kafka: Kafka, user: str) -> None:
    """A user reached through several channels is evaluated once, on the sum."""
    subscribed(kafka, worker, user, "a", "b")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    worker.move_clock(700)
    kafka.novelty(user, a=2, b=2)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 4)
    worker.after_ticks(3)
    assert len(kafka.requests(user)) == 2


def test_the_end_of_a_cooldown_is_revisited_without_another_event(worker: Worker, kafka: Kafka, user: str) -> None:
    """Who is held back by the cooldown alone is requested when it ends, though nothing more is heard of the user."""
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    kafka.novelty(user, a=3)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(601)
    _, second = the(lambda: kafka.requests(user), 2)
    assert second.event["trigger"] == "novelty"
    assert second.event["planned_at"] - second.event["last_enqueued_at"] >= 600_000


def test_time_triggers_again_after_a_check(worker: Worker, kafka: Kafka, user: str) -> None:
    """With little novelty the time since the last check counts, whatever it found."""
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_checked_at=worker.now())
    kafka.novelty(user, a=1)
    worker.move_clock(7000)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(300)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("time", 1)


def test_an_unsubscribed_channel_does_not_count(worker: Worker, kafka: Kafka, user: str) -> None:
    """Novelty of a channel that was left is not pending, and counts again from its mark when it is joined again."""
    subscribed(kafka, worker, user, "a", "b", plan="eager")
    first, _ = clustered(worker, kafka, user)
    kafka.changed(user, 2, unsubscribed=["b"])
    kafka.finished(first, {"a": 0, "b": 1}, last_clustered_at=worker.now())
    kafka.novelty(user, a=1, b=9)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    kafka.changed(user, 3, subscribed=["b"])
    _, second = the(lambda: kafka.requests(user), 2)
    assert second.event["pending"] == 9  # 1 of a, 8 of b


def test_an_answer_clears_the_way_for_the_next_request(worker: Worker, kafka: Kafka, user: str) -> None:
    """In flight nothing more is requested; the answer moves the marks and what came meanwhile is requested."""
    subscribed(kafka, worker, user, "a", plan="eager")
    kafka.novelty(user, a=3)
    first, _ = clustered(worker, kafka, user)
    kafka.novelty(user, a=10)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    kafka.finished(first, {"a": 3}, last_clustered_at=worker.now())
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 7)


def test_a_request_without_answer_is_repeated_after_its_deadline(worker: Worker, kafka: Kafka, user: str) -> None:
    """A lost answer holds a user back until the deadline of the request and no longer."""
    subscribed(kafka, worker, user, "a", plan="eager")
    kafka.novelty(user, a=3)
    clustered(worker, kafka, user)
    worker.move_clock(390)  # the deadline is four times the 100 s of a rebuild
    worker.after_ticks(6)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(15)
    the(lambda: kafka.requests(user), 2)


def test_a_demand_ignores_activity_and_cooldown(worker: Worker, kafka: Kafka, user: str) -> None:
    """An operator's demand is served for an inactive user, once."""
    kafka.changed(user, 1, subscribed=["a"])
    kafka.changed(user, 2, rebuild_demanded=True)
    (request,) = the(lambda: kafka.requests(user), 1)
    assert request.event["trigger"] == "manual"
    kafka.finished(request, {}, last_clustered_at=worker.now())
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1


def test_an_erased_user_is_not_brought_back(worker: Worker, kafka: Kafka, user: str) -> None:
    """After an erasure neither novelty nor an older change leads to a request; a newer one does."""
    kafka.changed(user, 4, subscribed=["a"])
    kafka.changed(user, 5, erased=True)
    kafka.changed(user, 3, subscribed=["a"], last_active_at=worker.now())
    kafka.novelty(user, a=50)
    worker.after_ticks(4)
    assert kafka.requests(user) == []
    kafka.changed(user, 6, subscribed=["a"], last_active_at=worker.now())
    (request,) = the(lambda: kafka.requests(user), 1)
    assert request.event["pending"] == 0


@pytest.mark.parametrize("topic", CONSUMED)
@pytest.mark.parametrize("garbage", [b"", b"\xff garbage", b"\0\0\0\0\x01\xff\xff\xff", None, b"\0\0\1\0\0x"])
def test_garbage_is_dead_lettered_and_the_stream_goes_on(
    worker: Worker, kafka: Kafka, user: str, topic: str, garbage: bytes | None
) -> None:
    """Bytes that are no event go to the dead-letter topic as they came, with origin and reason."""
    before = len(kafka.dead_letters(topic))
    kafka.send_bytes(topic, garbage, key=b"k", headers=[("ce_id", b"from-outside")], partition=3)
    letter = until(lambda: kafka.dead_letters(topic)[before:], "a dead letter")[0]
    assert (letter.key(), letter.value()) == (b"k", garbage)
    assert header(letter.headers(), "ce_id") == "from-outside"
    assert (header(letter.headers(), "dlq_origin") or "").startswith(f"{topic}/3/")
    assert header(letter.headers(), "dlq_group") == worker.app_id
    assert header(letter.headers(), "dlq_reason") in {"empty_value", "not_wire_format", "not_avro", "unknown_schema"}
    kafka.advanced(user, 1)
    the(lambda: kafka.dirty(user), 1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(worker: Worker, kafka: Kafka, user: str, codec: str, kafka_address: str) -> None:
    """A batch of any compression reaches the agent: a missing codec must not silence the worker."""
    producer = Producer(
        {
            "bootstrap.servers": kafka_address,
            "compression.type": codec,
            "partitioner": "murmur2_random",
            "linger.ms": 50,
        }
    )
    for head in range(1, 101):
        event = {"channel_id": user, "head": head, "arrived_at": 1}
        producer.produce("feeds.channel-advanced", CODEC.encode("feeds.channel-advanced", event), key=user.encode())
    assert producer.flush(10) == 0
    until(lambda: [a for a in kafka.dirty(user) if a.event["head"] == 100], "the last head of the batch")
