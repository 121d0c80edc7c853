"""How long a published insight takes until it is shown, beside a load from 100 to 20,000 insights a second.

A reader has a channel of their own; a probe publishes as many insights there as their plan requires. Three moments follow:
the *command* (`feeds.rebuild-requested`), the *clusters* (`feeds.clusters-rebuilt`), each by the broker's time of its record,
and the *read* (a `GET` of the feed with `If-None-Match`, repeated every 50 ms, that is no longer a 304). All are counted from
the moment before the probe's first insight was handed to the producer. The load goes to other channels of the same topic
without readers, so it shares broker, sink, outbox and the agents of channels with the probes. The peer is the least that any
product on Kafka needs: the acknowledgement of the probe's last record by the same broker under the same load.

Each rate lasts 10 s, or `minutes` each. A probe that is not answered within 20 s counts as 20 s and is reported as lost. The
plans are those of the tests (2 s of cooldown), the ticks 1 s and 0.25 s. Where the stack cannot keep up, `stored` is less.

    python -m tests.bench.latency [--minutes M] [--rates 100,1000] [--ticks 1,0.25]
"""

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from highwater.schemas.feeds import CLUSTERS_REBUILT, INSIGHT_INGESTED, REBUILD_REQUESTED
from highwater.streams.clock import ProductClock
from tests.bench.figures import Figure, figure, point
from tests.bench.league_stack import league_product
from tests.bench.pipeline import _cpu_seconds, _groups
from tests.product import Product

RATES = (100, 1_000, 5_000, 20_000)
TICKS = (1.0, 0.25)
SECONDS = 10.0
READERS = 20
# What the plan of the readers asks for (`tests/product.py`), so one probe makes one rebuild due.
PROBE = 20
# A reader is probed this often: longer than the cooldown and two of the longer ticks, so that no probe waits for the one before.
PROBE_EVERY_SECONDS = 6.0
PROBE_SECONDS_MAX = 20.0
WARM_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05
LOAD_CHANNELS = 200
# Between two hand-overs of the load: short against a tick, long against the work of one.
_SLICE_SECONDS = 0.01
# In one turn at most, so that probes are not held up where the load cannot be made at the requested rate.
_SLICE_MAX = 1_000
OURS, PEER = "highwater", "Kafka alone, to the acknowledgement"
OF = "insights/s"
STEPS = ("command", "clusters", "read")
CLOCK = ProductClock()


@dataclass(slots=True)
class Probe:
    """When one was published, and when each step came of it; milliseconds since 1970, None: not yet."""

    user: str
    at_ms: float
    acknowledged_ms: float | None = None
    seen_ms: dict[str, float] = field(default_factory=dict)

    def took_ms(self, step: str) -> float:
        """Until a step, at most what a probe is waited for."""
        seen = self.seen_ms.get(step)
        return PROBE_SECONDS_MAX * 1000 if seen is None else seen - self.at_ms


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen at one rate. `stored`: insights a second that had a row when the load ended."""

    rate: int
    published: float
    stored: float
    probes: list[Probe]
    cpu_seconds_per_million: float
    memory_mb: float


def run(runs: int = 1, minutes: float | None = None) -> list[Figure]:
    """All figures, the first run's alone: the curve has many points, and each holds all probes of its time."""
    del runs
    return measure(RATES, TICKS, SECONDS if minutes is None else minutes * 60)


def measure(rates: Sequence[int], ticks: Sequence[float], seconds: float) -> list[Figure]:
    """A stack a tick, each rate in turn."""
    found: list[Figure] = []
    for tick in ticks:
        stack = league_product(keep=("HIGHWATER_POLICY",), HIGHWATER_TICK_SECONDS=str(tick))
        with stack as product, _readers(product) as readers:
            readers.probe_all(WARM_SECONDS_MAX)  # windows, models and connections: not counted
            for rate in rates:
                found += _figures(f"tick {tick:g} s", _measured(product, readers, rate, seconds))
    return found


# -- probes --------------------------------------------------------------------------------------------------------------


class Readers:
    """Users with a channel each, what is published for them, and what is seen of it."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.codec = product.codec()
        self.producer = Producer({**product.producer_config(), "acks": "all", "linger.ms": 1})
        self.users = [f"reader-{uuid.uuid4()}" for _ in range(READERS)]
        for user in self.users:
            product.subscribe(user, [f"of-{user}"])
        self._open: dict[str, Probe] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=watch, daemon=True) for watch in (self._watch_log, self._watch_feeds)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.producer.flush(10)

    def probe(self, user: str) -> Probe:
        """Publish what makes a rebuild of a reader due."""
        made = Probe(user, float(CLOCK()))
        with self._lock:
            self._open[user] = made

        def acknowledged(error: Any, _: Message) -> None:
            if error is None:
                made.acknowledged_ms = float(CLOCK())

        for _ in range(PROBE):
            self.publish(f"of-{user}", acknowledged)
        self.producer.poll(0)
        return made

    def publish(self, channel: str, acknowledged: Callable[[Any, Message], None] | None = None) -> None:
        """Hand one insight to the producer."""
        insight_id = str(uuid.uuid4())
        event = {
            "insight_id": insight_id, "channel_id": channel, "ts": CLOCK(), "text": f"A change of {channel}: {insight_id[:8]}",
            "url": None, "embedding": None, "embedding_model": None,
        }  # fmt: skip
        value = self.codec.encode(INSIGHT_INGESTED, event)
        while True:
            try:
                self.producer.produce(INSIGHT_INGESTED, value, channel, on_delivery=acknowledged)
            except BufferError:
                self.producer.poll(0.01)  # full: the broker is slower than the load
            else:
                return

    def probe_all(self, seconds_max: float) -> None:
        """Probe each reader once and wait until all have read."""
        probes = [self.probe(user) for user in self.users]
        self.until_read(probes, seconds_max)
        lost = sum("read" not in one.seen_ms for one in probes)
        assert lost == 0, f"{lost} of {len(probes)} readers saw nothing within {seconds_max:.0f} s"

    def until_read(self, probes: Sequence[Probe], seconds_max: float) -> None:
        """Wait until all have read, or the time is up."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline and any("read" not in one.seen_ms for one in probes):
            self.producer.poll(0)
            time.sleep(POLL_SECONDS)

    def _seen(self, user: str, step: str, at_ms: float) -> None:
        with self._lock:
            probe = self._open.get(user)
            if probe is not None and at_ms >= probe.at_ms:
                probe.seen_ms.setdefault(step, at_ms)

    def _watch_log(self) -> None:
        topics = {REBUILD_REQUESTED: "command", CLUSTERS_REBUILT: "clusters"}
        brokers = self.product.environment["KAFKA_BOOTSTRAP_SERVERS"]
        consumer = Consumer({"bootstrap.servers": brokers, "group.id": "bench"})
        places = [TopicPartition(topic, p, end) for topic in topics for p, end in self.product.ends(topic).items()]
        consumer.assign(places)
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                event = self.codec.decode(str(message.topic()), message.value())
                self._seen(event["user_id"], topics[str(message.topic())], float(message.timestamp()[1]))
        consumer.close()

    def _watch_feeds(self) -> None:
        asyncio.run(self._poll_feeds())

    async def _poll_feeds(self) -> None:
        base = self.product.http.base_url
        await asyncio.gather(*[self._poll_feed(str(base.host), base.port or 80, user) for user in self.users])

    async def _poll_feed(self, host: str, port: int, user: str) -> None:
        """Poll while a probe of the reader is open, on a connection of that time: a server closes unused ones."""
        tag = b""
        while not self._stop.is_set():
            await asyncio.sleep(POLL_SECONDS)
            if self._open_probe(user) is not None:
                tag = await self._poll_until_read(host, port, user, tag)

    async def _poll_until_read(self, host: str, port: int, user: str, tag: bytes) -> bytes:
        """Ask until the reader has seen what was published; the tag of what was seen last."""
        reader, writer = await asyncio.open_connection(host, port)
        request = f"GET /api/users/{user}/feed HTTP/1.1\r\nHost: {host}:{port}\r\n".encode()
        while (probe := self._open_probe(user)) is not None and not self._stop.is_set():
            writer.write(request + tag + b"\r\n")
            status, found = await _answer(reader)
            at_ms = float(CLOCK())
            await asyncio.sleep(
                POLL_SECONDS
            )  # the command is in the log before, and may be read from there a little later
            if status == 200 and found != tag:
                tag = found
                # A feed that changed before its command is one of an earlier probe, or of the subscription.
                if probe.seen_ms.get("command", at_ms + 1) <= at_ms:
                    self._seen(user, "read", at_ms)
        writer.close()
        return tag

    def _open_probe(self, user: str) -> Probe | None:
        with self._lock:
            probe = self._open.get(user)
        return None if probe is None or "read" in probe.seen_ms else probe


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and tag of one answer, the tag as the line that asks for a change of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    fields = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in lines[1:] if line}
    await reader.readexactly(int(fields.get(b"content-length", b"0")))
    tag = fields.get(b"etag")
    return int(lines[0].split(b" ", 2)[1]), b"" if tag is None else b"If-None-Match: " + tag + b"\r\n"


@contextmanager
def _readers(product: Product) -> Iterator[Readers]:
    readers = Readers(product)
    try:
        yield readers
    finally:
        readers.close()


# -- one rate ------------------------------------------------------------------------------------------------------------


def _measured(product: Product, readers: Readers, rate: int, seconds: float) -> Measured:
    groups = _groups(product)
    cpu, rows = _cpu(groups), _rows(product)
    probes: list[Probe] = []
    began, sent, turn = time.monotonic(), 0, 0
    while (passed := time.monotonic() - began) < seconds:
        wanted = min(int(passed * rate), sent + _SLICE_MAX)
        while sent < wanted:
            readers.publish(f"load-{sent % LOAD_CHANNELS}")
            sent += 1
        readers.producer.poll(0)
        if passed >= turn * PROBE_EVERY_SECONDS / READERS:  # the readers in turn
            probes.append(readers.probe(readers.users[turn % READERS]))
            turn += 1
        if sent >= int(passed * rate):
            time.sleep(_SLICE_SECONDS)
    took = time.monotonic() - began
    stored = _rows(product) - rows
    readers.until_read(probes, PROBE_SECONDS_MAX)
    everything = sent + PROBE * len(probes)
    _until_stored(product, rows + everything)
    spent = (_cpu(groups) - cpu) * 1e6 / everything
    memory = sum(_peak_mb(pid) for name in ("sinks", "worker", "workers") for pid in groups.get(name, []))
    return Measured(rate, sent / took, stored / took, probes, spent, memory)


def _cpu(groups: dict[str, list[int]]) -> float:
    return sum(_cpu_seconds(pids) for pids in groups.values())


def _rows(product: Product) -> int:
    return int(product.sql("SELECT coalesce(sum(current_seq), 0) FROM channels")[0][0])


def _until_stored(product: Product, wanted: int) -> None:
    """Records that one rate left in the log are no part of the next."""
    deadline = time.monotonic() + 60
    while _rows(product) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def _figures(with_tick: str, found: Measured) -> list[Figure]:
    ours = f"{OURS}, {with_tick}"
    at = float(found.rate)
    figures = []
    for step in STEPS:
        took = [one.took_ms(step) for one in found.probes]
        figures += _percentiles(f"publish to {step}", ours, took)
    acknowledged = [one.acknowledged_ms - one.at_ms for one in found.probes if one.acknowledged_ms is not None]
    if acknowledged:
        figures += _percentiles("publish to command", f"{PEER}, {with_tick}", acknowledged)
    lost = sum("read" not in one.seen_ms for one in found.probes)
    if lost:
        print(f"{ours}, {found.rate}/s: {lost} of {len(found.probes)} probes were lost", file=sys.stderr)
    figures += [
        figure("published", ours, OF, [found.published]),
        figure("stored while it was published", ours, OF, [found.stored]),
        figure("CPU, all", ours, "CPU s a million", [found.cpu_seconds_per_million]),
        figure("peak memory of sinks, workers and worker", ours, "MB", [found.memory_mb]),
    ]
    return [point(one, at, OF) for one in figures]


def _percentiles(name: str, system: str, took_ms: Sequence[float]) -> list[Figure]:
    p99 = float(np.percentile(took_ms, 99))
    return [
        figure(f"{name}, p50", system, "ms", [statistics.median(took_ms)]),
        figure(f"{name}, p99", system, "ms", [p99]),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rates", type=lambda text: tuple(map(int, text.split(","))), default=RATES)
    parser.add_argument("--ticks", type=lambda text: tuple(map(float, text.split(","))), default=TICKS)
    given = parser.parse_args()
    for one in measure(given.rates, given.ticks, SECONDS if given.minutes is None else given.minutes * 60):
        print(json.dumps(one))
