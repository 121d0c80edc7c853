"""Events folded into a table: the highest head of each of 2,000 channels, durable, there again after kill -9.

The worker's own path of `feeds.channel-advanced`, from the topic into the table and its changelog, beside Kafka Streams with its
cache (a row a key and commit). What librdkafka fetches and columns decode, kept in memory alone, is the ceiling of a fold in one
process of Python. After the last event the worker is killed; once it runs again, its changelog must hold the highest head of each
channel. Of few events the worker has folded most before it can be asked: then it has no figure.

    python -m tests.bench.fold [--runs N] [--events N]
"""

import argparse
import json
import shutil
import signal
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import orjson
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from highwater.connectors.kafka.changelogs import read_changelogs
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.topics import PARTITIONS
from highwater.streams.restoring import Span
from tests.bench import streams_peer
from tests.bench.figures import Figure, figure, point
from tests.bench.recover import fill, make, until
from tests.bench.streams_peer import Cost, cost_of, line_of
from tests.integration.agents import CODEC, CONSUMED, DECIDED, Worker

TOPIC = "feeds.channel-advanced"
EVENTS = (1_000, 10_000, 100_000, 1_000_000)
KEYS = 2_000
WORKER, CEILING = "highwater worker", "in memory alone: librdkafka, columns, a dict"

Fold = tuple[float, float, Cost | None]  # seconds and processor seconds of the fold, and what the process took in all


def event_of(number: int) -> tuple[bytes, bytes]:
    """The key and the event of one advance; heads rise."""
    channel = f"channel-{number * 7919 % KEYS:05d}"
    event = {"channel_id": channel, "head": number + 1, "arrived_at": 1_700_000_000_000 + number, "retractions": 0}
    return channel.encode(), CODEC.encode(TOPIC, event)


def highest(count: int) -> dict[str, int]:
    """The head of each channel after N events."""
    return {f"channel-{number * 7919 % KEYS:05d}": number + 1 for number in range(count)}


def fresh(address: str) -> None:
    """The catalogue's topics that the worker reads and writes, without a record."""
    admin = AdminClient({"bootstrap.servers": address})
    names = [*CONSUMED, *DECIDED, *(f"{name}.dlq" for name in CONSUMED)]
    known = set(admin.list_topics(timeout=60).topics)
    old = [name for name in names if name in known]
    for future in admin.delete_topics(old).values() if old else ():
        future.result(60)
    until(lambda: not known.intersection(names).intersection(admin.list_topics(timeout=60).topics))
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(60)


def _kept(address: str, changelog: str) -> dict[str, int]:
    """The head of each channel, by what a changelog would restore."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "bench"})
    ends = {p: reader.get_watermark_offsets(TopicPartition(changelog, p), timeout=60)[1] for p in range(PARTITIONS)}
    reader.close()
    left = {(changelog, p): end for p, end in ends.items() if end}
    rows: dict[bytes, bytes | None] = {}
    batches = read_changelogs({"bootstrap.servers": address}, {place: Span(0, end - 1) for place, end in left.items()})
    while left:
        batch = next(batches)
        for record in batch.records:
            rows[record.key() or b""] = record.value()
        for place, end in batch.ends.items():
            if end >= left.get(place, end):
                left.pop(place, None)
    batches.close()
    return {key.decode(): orjson.loads(row)[0] for key, row in rows.items() if row is not None}


def _ours(address: str, folder: Path, count: int, runs: int) -> Iterator[Fold]:
    for number in range(runs):
        fresh(address)
        fill(address, TOPIC, count, event_of)
        place = folder / str(number)
        place.mkdir(parents=True)
        worker = Worker(address, place)
        worker.launch()
        process = worker.process
        assert process is not None
        until(lambda worker=worker: worker.ready() is not None and _consumed(worker) > 0, 0.02)
        first, began, cpu_began = _consumed(worker), time.monotonic(), cost_of(process.pid).cpu_seconds
        until(lambda worker=worker: _consumed(worker) >= count, 0.05)
        seconds, cost = time.monotonic() - began, cost_of(process.pid)
        share = count / max(1, count - first)  # what was folded before the first look took as long as the rest
        worker.end(signal.SIGKILL)
        worker.launch()
        changelog, expected = f"{worker.app_id}-channel_heads-changelog", highest(count)
        until(lambda changelog=changelog, expected=expected: _kept(address, changelog) == expected, 0.5)
        worker.end(signal.SIGTERM)
        if first <= count / 2:
            yield seconds * share, (cost.cpu_seconds - cpu_began) * share, cost


def _consumed(worker: Worker) -> float:
    return worker.metric_of("highwater_events_consumed_total", f'topic="{TOPIC}"')


def _peer(address: str, count: int, command: list[str], topic: str) -> Fold:
    make(address, topic)
    fill(address, topic, count, event_of)
    with streams_peer.running(command) as process:
        _, seconds, cpu_seconds = line_of(process, "folded")
        return float(seconds), float(cpu_seconds), cost_of(process.pid)


def _streams(address: str, folder: Path, count: int, runs: int) -> Iterator[Fold]:
    classes = folder / "classes"
    classes.mkdir(parents=True)
    command = streams_peer.compiled(classes)
    for _ in range(0 if command is None else runs):
        app, state = f"streams-{uuid.uuid4().hex[:8]}", folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        options = [
            address,
            f"{app}-events",
            app,
            str(state),
            "at_least_once",
            str(streams_peer.CACHE_BYTES),
            str(count),
        ]
        yield _peer(address, count, [*(command or ()), *options], f"{app}-events")


def _ceiling(address: str, _: Path, count: int, runs: int) -> Iterator[Fold]:
    topic = f"ceiling-{uuid.uuid4().hex[:8]}"
    make(address, topic)
    fill(address, topic, count, event_of)
    for _ in range(runs):
        spans = {(topic, p): Span(0, count) for p in range(PARTITIONS)}
        heads: dict[str, int] = {}
        seen, began, cpu_began = 0, time.monotonic(), time.process_time()
        batches = read_changelogs({"bootstrap.servers": address}, spans)
        while seen < count:
            records = next(batches).records
            seen += len(records)
            for event in CODEC.decode_many(TOPIC, [record.value() for record in records]) if records else ():
                if event is not None and heads.get(event["channel_id"], 0) < event["head"]:
                    heads[event["channel_id"]] = event["head"]
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
        batches.close()
        if heads != highest(count):
            raise AssertionError("the ceiling did not fold every event")
        yield seconds, cpu_seconds, None


def run(runs: int = 1, *, events: tuple[int, ...] = EVENTS) -> list[Figure]:
    """Events a second, processor seconds a million and peak memory, by the number of events."""
    found: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    systems = {WORKER: _ours, streams_peer.STREAMS: _streams, CEILING: _ceiling}
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as name, LocalStack(Path(name) / "parts") as stack:
        address = str(stack.addresses.kafka)
        for count in events:
            for system, measure in systems.items():
                for seconds, cpu_seconds, cost in measure(address, Path(name) / f"{system[0]}{count}", count, runs):
                    found["fold", system, "events/s", count].append(count / seconds)
                    found["fold", system, "CPU s a million", count].append(cpu_seconds / count * 1e6)
                    if cost is not None:
                        found["fold", system, "MB", count].append(cost.peak_mb)
    return [
        point(figure(one, system, unit, values), count, "events")
        for (one, system, unit, count), values in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--events", type=int, default=0, help="One number of events only.")
    given = parser.parse_args()
    for one_figure in run(given.runs, events=(given.events,) if given.events else EVENTS):
        print(json.dumps(one_figure))
