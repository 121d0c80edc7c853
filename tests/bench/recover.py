"""How long a worker takes from its start to ready when its tables hold many keys, with its local state lost and with it kept.

The rows are channel heads, written to the changelogs as the systems write them; all of it is on one broker with 8 partitions.
Kafka Streams restores the same keys into a store of the same kind. Each ended in good order before, so that no worker waits
for the session of a dead member.

    python -m tests.bench.recover [--runs N] [--keys N]
"""

import argparse
import json
import shutil
import signal
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from aiokafka.partitioner import murmur2
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from highwater.deploy.local.stack import LocalStack
from highwater.schemas.topics import PARTITIONS
from tests.bench import streams_peer
from tests.bench.figures import Figure, figure, point
from tests.bench.streams_peer import Cost, cost_of, line_of
from tests.integration.agents import AGENTS, Worker, empty

KEYS = (1_000, 10_000, 100_000, 1_000_000)
WORKER = "highwater worker"
LOST, KEPT, DECIDES = "local state lost", "local state kept", "local state lost, first tick decided"
WAIT_SECONDS = 300.0

Measured = dict[tuple[str, str, str, int], list[float]]  # name, system, unit, keys -> a value each run


def fill(address: str, topic: str, keys: int, row: Callable[[int], tuple[bytes, bytes]]) -> None:
    """Write a row per key to the partition in which its worker reads it."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 20,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for number in range(keys):
        key, value = row(number)
        producer.produce(topic, key=key, value=value, partition=(murmur2(key) & 0x7FFFFFFF) % PARTITIONS)
        if number % 5_000 == 0:
            producer.poll(0)
    if producer.flush(WAIT_SECONDS):
        raise RuntimeError(f"{topic} could not be filled")


def make(address: str, *topics: str) -> None:
    """Compacted topics."""
    admin = AdminClient({"bootstrap.servers": address})
    made = [NewTopic(name, PARTITIONS, 1, config={"cleanup.policy": "compact"}) for name in topics]
    for future in admin.create_topics(made).values():
        future.result(WAIT_SECONDS)


def of_worker(number: int) -> tuple[bytes, bytes]:
    """A clean channel's row."""
    return b"channel-%07d" % number, b"[%d,null,0]" % number


def of_streams(number: int) -> tuple[bytes, bytes]:
    """The same as the peer keeps it: two numbers of eight bytes."""
    return b"channel-%07d" % number, number.to_bytes(8, "big") + (0).to_bytes(8, "big")


def until(is_so: Callable[[], bool], pause_seconds: float = 0.01) -> None:
    """Wait for something, minutes on a busy machine; a query costs the queried system, hence the pause."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WAIT_SECONDS:.0f} s")
        time.sleep(pause_seconds)


def _ours(address: str, folder: Path, keys: int, runs: int) -> Iterator[tuple[str, float, Cost]]:
    empty(address)
    folder.mkdir()
    worker = Worker(address, folder)
    worker.launch()
    until(lambda: worker.ready() == {})  # the changelogs are there
    worker.end(signal.SIGTERM)
    fill(address, f"{worker.app_id}-channel_heads-changelog", keys, of_worker)
    for _ in range(runs):
        shutil.rmtree(folder / "data")
        for kind in (LOST, KEPT):
            began = time.monotonic()
            worker.launch()
            until(lambda: worker.ready() == {})
            assert worker.process is not None
            yield kind, time.monotonic() - began, cost_of(worker.process.pid)
            if kind == LOST:
                until(lambda: worker.metric("highwater_ticks_total") >= AGENTS * PARTITIONS)
                yield DECIDES, time.monotonic() - began, cost_of(worker.process.pid)
            worker.end(signal.SIGTERM)


def _peer(command: list[str], folder: Path, runs: int) -> Iterator[tuple[str, float, Cost]]:
    for _ in range(runs):
        shutil.rmtree(folder, ignore_errors=True)
        for kind in (LOST, KEPT):
            began = time.monotonic()
            with streams_peer.running(command) as process:
                line_of(process, "running")
                yield kind, time.monotonic() - began, cost_of(process.pid)


def _streams(address: str, folder: Path, keys: int, runs: int) -> Iterator[tuple[str, float, Cost]]:
    classes = folder / "classes"
    classes.mkdir(parents=True)
    command = streams_peer.compiled(classes)
    if command is None:
        return
    app = f"streams-{uuid.uuid4().hex[:8]}"
    make(address, f"{app}-events", f"{app}-rows-changelog")
    fill(address, f"{app}-rows-changelog", keys, of_streams)
    state = folder / "state"
    options = [address, f"{app}-events", app, str(state), "at_least_once", str(streams_peer.CACHE_BYTES), "0"]
    yield from _peer([*command, *options], state, runs)


def run(runs: int = 1, *, keys: tuple[int, ...] = KEYS) -> list[Figure]:
    """Seconds and processor seconds from start to ready, and peak memory, by the number of keys."""
    found: Measured = defaultdict(list)
    systems = {WORKER: _ours, streams_peer.STREAMS: _streams}
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as name, LocalStack(Path(name) / "parts") as stack:
        address = str(stack.addresses.kafka)
        for count in keys:
            for system, measure in systems.items():
                for kind, seconds, cost in measure(address, Path(name) / f"{system[0]}{count}", count, runs):
                    found[kind, system, "s", count].append(seconds)
                    found[kind, system, "CPU s", count].append(cost.cpu_seconds)
                    found[kind, system, "MB", count].append(cost.peak_mb)
    return [
        point(figure(f"recover, {kind}", system, unit, values), count, "keys")
        for (kind, system, unit, count), values in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keys", type=int, default=0, help="One number of keys only.")
    given = parser.parse_args()
    for one_figure in run(given.runs, keys=(given.keys,) if given.keys else KEYS):
        print(json.dumps(one_figure))
