"""A topic to a file: 1,000,000 Avro events (real commit subjects, 8 partitions) to JSON lines and to Parquet, events/s.

Each system is measured from its start to its end, one at a time on the same topic. Its memory is the peak of the resident
memory of all its processes together, sampled twenty times a second; shared memory counts in each of them. Peers: kcat with
its JSON envelope (it has no Avro: values stay bytes) and the loop that one writes by hand with confluent-kafka, fastavro and
orjson or pyarrow, given the same client settings as ours. `HW_EVENTS=N` makes it N events.

    python -m tests.bench.replay [--runs N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.registry import Registry
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS
from highwater.streams.settings import read_settings
from tests.bench.data import insights
from tests.bench.figures import Figure, figure

TOPIC = "feeds.insight-ingested"
EVENTS = int(os.environ.get("HW_EVENTS", "1000000"))
BATCH = 10_000
# Each look takes about a millisecond, a fiftieth of a core.
SAMPLED_SECONDS = 0.05


def publish(kafka: str, registry_url: str) -> None:
    """The topic, filled once."""
    client = read_settings({"KAFKA_BOOTSTRAP_SERVERS": kafka, "SCHEMA_REGISTRY_URL": registry_url}).kafka_client()
    asyncio.run(Admin(client).ensure_topics([TOPICS[TOPIC]], replication_factor=1))
    registry = Registry(registry_url)
    asyncio.run(registry.register([TOPICS[TOPIC]]))
    codec = asyncio.run(registry.codec([TOPICS[TOPIC]]))
    producer = Producer({**client, "linger.ms": 50, "compression.type": "lz4", "partitioner": "murmur2_random"})
    for i, line in enumerate(itertools.islice(itertools.cycle(insights()), EVENTS)):
        event = event_from_json(TOPIC, {**line, "insight_id": f"{line['insight_id']}-{i}"})
        while True:
            try:
                producer.produce(TOPIC, codec.encode(TOPIC, event), event["channel_id"])
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def by_hand(kafka: str, path: str, kind: str) -> None:
    """The plain loop: consume, decode, write."""
    import fastavro
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    from highwater.schemas.avro_files import parsed_schema

    schema = parsed_schema(TOPICS[TOPIC].schema)
    file = Path(path).open("wb")  # noqa: SIM115 - it lives as long as the process
    writer: Any = None

    def write(rows: list[dict[str, Any]]) -> None:
        nonlocal writer
        if kind == "jsonl":
            dump = orjson.dumps
            file.write(b"".join([dump(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]))
            return
        table = pa.Table.from_pylist(rows, schema=None if writer is None else writer.schema)
        writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)

    held: list[dict[str, Any]] = []
    for messages in _consumed(kafka):
        for message in messages:
            body = io.BytesIO(message.value())
            body.seek(5)
            value = fastavro.schemaless_reader(body, schema, None)
            key = message.key()
            held.append(
                {
                    "topic": TOPIC,
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": message.timestamp()[1],
                    "key": key.decode() if key is not None else None,
                    "value": value,
                }
            )
        if len(held) >= (100_000 if kind == "parquet" else BATCH):
            write(held)
            held = []
    if held:
        write(held)
    if writer is not None:
        writer.close()
    file.close()


def _consumed(kafka: str) -> Iterator[list[Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "peer",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1_000_000,
        }
    )
    places = [TopicPartition(TOPIC, p, 0) for p in range(TOPICS[TOPIC].partitions)]
    left = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    consumer.assign(places)
    while left > 0:
        messages = consumer.consume(BATCH, 0.2)
        left -= len(messages)
        yield messages
    consumer.close()


def measured(command: list[str], environment: dict[str, str], output: Path | None) -> tuple[float, float]:
    """Events a second of a system, and the peak in MB of the memory of all its processes."""
    peak_bytes = 0
    with (output or Path(os.devnull)).open("wb") as file:
        started = time.monotonic()
        process = psutil.Popen(command, env=environment, stdout=file)
        while True:
            peak_bytes = max(peak_bytes, resident_bytes(process))
            with contextlib.suppress(psutil.TimeoutExpired):
                status = process.wait(SAMPLED_SECONDS)
                break
        seconds = time.monotonic() - started
    assert status == 0, command
    return EVENTS / seconds, peak_bytes / 2**20


def resident_bytes(process: psutil.Process) -> int:
    """What a process and those below it have resident; one that ends meanwhile counts as nothing."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def systems(kafka: str, folder: Path) -> dict[str, tuple[list[str], Path | None, Callable[[], int]]]:
    """Command, file of its standard output, and how many events it wrote, by name."""
    import pyarrow.parquet as pq

    python = sys.executable
    lines, table = folder / "out.jsonl", folder / "out.parquet"

    def line_count() -> int:
        with lines.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))

    def row_count() -> int:
        return int(pq.read_metadata(table).num_rows)

    ours = [python, "-m", "highwater.api.cli.main", "replay", TOPIC, "-o"]
    peer = [python, "-m", "tests.bench.replay", "--peer"]
    found: dict[str, tuple[list[str], Path | None, Callable[[], int]]] = {
        "highwater, JSON lines": ([*ours, str(lines)], None, line_count),
        "confluent-kafka + fastavro + orjson, JSON lines": ([*peer, "jsonl", kafka, str(lines)], None, line_count),
        "highwater, Parquet": ([*ours, str(table)], None, row_count),
        "confluent-kafka + fastavro + pyarrow, Parquet": ([*peer, "parquet", kafka, str(table)], None, row_count),
    }
    if shutil.which("kcat"):
        kcat = ["kcat", "-b", kafka, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q", "-J"]
        found["kcat, JSON envelope, values undecoded"] = (kcat, lines, line_count)
    return found


def run(runs: int = 3) -> list[Figure]:
    """The figures, on an embedded stack of the benchmark's own."""
    speeds: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as name, LocalStack(Path(name) / "data") as stack:
        folder, found = Path(name), stack.addresses
        assert found.kafka is not None
        publish(found.kafka, found.schema_registry or "")
        environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": found.kafka,
            "SCHEMA_REGISTRY_URL": found.schema_registry or "",
            "HIGHWATER_DATA_DIR": str(folder / "none"),
        }
        for _ in range(runs):
            for system, (command, output, count) in systems(found.kafka, folder).items():
                rate, peak = measured(command, environment, output)
                assert count() == EVENTS, f"{system} wrote {count()}"
                speeds.setdefault(system, []).append(rate)
                memory.setdefault(system, []).append(peak)
    return [figure("replay", system, "events/s", values) for system, values in speeds.items()] + [
        figure("replay memory", system, "MB", values) for system, values in memory.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", nargs=3, metavar=("KIND", "KAFKA", "FILE"))
    given = parser.parse_args()
    if given.peer:
        by_hand(given.peer[1], given.peer[2], given.peer[0])
    else:
        for one in run(given.runs):
            print(json.dumps(one))
