"""Rows per second from a topic into PostgreSQL, beside PostgreSQL's own COPY of the same rows in the same run.

The sink's figure holds everything an insight goes through: poll, Avro, checks, embedding, numbering, COPY, outbox,
positions, commit; by one process and by two. The peer's holds the COPY alone, in one transaction: into an ordinary table with the
same indexes, which is written ahead to the log as ours is; into a temporary one, which is not; into a bare one.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import Surroundings
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.clock import ProductClock, monotonic_seconds, to_datetime
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests import ROOT
from tests.bench.figures import Figure, figure
from tests.bench.ingest_process import DIMENSIONS

TOPIC = "feeds.insight-ingested"
EMPTY = "TRUNCATE positions, outbox, insights, channels"
SAMPLE = ROOT / "api" / "sample" / "commits.jsonl.gz"
ROWS_MAX = 50_000
COLUMNS = (
    "insight_id",
    "channel_id",
    "seq",
    "ts",
    "arrived_at",
    "text",
    "embedding",
    "source_partition",
    "source_offset",
)


def events(path: Path) -> list[dict[str, Any]]:
    """At most 50,000 real insights; a short file is repeated under fresh ids."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [event_from_json(TOPIC, json.loads(line)) for line in lines]
    rounds = -(-ROWS_MAX // len(found))
    many = [{**event, "insight_id": f"{event['insight_id']}-{i}"} for i in range(rounds) for event in found]
    return many[:ROWS_MAX]


async def _publish(around: Surroundings, rows: Sequence[dict[str, Any]]) -> None:
    producer = AsyncProducer(around.client, client_id="bench", linger_ms=20)
    acks = []
    for i, row in enumerate(rows):
        acks.append(await producer.enqueue(TOPIC, around.codec.encode(TOPIC, row), key=row["channel_id"]))
        if i % 1_000 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*acks)
    await producer.close()


async def _sink_seconds(around: Surroundings, rows: int) -> tuple[float, float]:
    """From the first stored batch's start to the last commit, as joining the group is not ingest; and this process's CPU."""
    await around.pool.execute(EMPTY)
    sink = InsightsSink(around.codec, around.clock, around.pool, dimensions=DIMENSIONS)
    began: list[tuple[float, float]] = []
    prepare = sink.prepare

    async def timed(batch: Any) -> Any:
        began.append((monotonic_seconds(), time.process_time()))
        return await prepare(batch)

    sink.prepare = timed  # type: ignore[method-assign]
    stop = asyncio.Event()
    running = asyncio.create_task(BatchConsumer(sink, around).run(stop))
    await _until_stored(around, rows, running)
    ended = monotonic_seconds(), time.process_time()
    stop.set()
    await running
    return ended[0] - began[0][0], ended[1] - began[0][1]


async def _processes_seconds(around: Surroundings, rows: int, environment: Mapping[str, str], count: int) -> float:
    """The same by processes of their own, from the moment that all of them may begin."""
    await around.pool.execute(EMPTY)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.ingest_process",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, **environment},
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise RuntimeError("a process of the benchmark ended before it was ready")
        started = monotonic_seconds()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        await _until_stored(around, rows, *(asyncio.create_task(process.wait()) for process in processes))
        return monotonic_seconds() - started
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()


async def _until_stored(around: Surroundings, rows: int, *running: asyncio.Task[Any]) -> None:
    """Wait until all rows are stored; what should run until then and has ended is an error."""
    while await around.pool.fetchval("SELECT COALESCE(sum(current_seq), 0) FROM channels") < rows:
        for task in running:
            if task.done():
                raise RuntimeError(f"ended before all was stored: {task.result()}")
        await asyncio.sleep(0.02)


async def _copy_seconds(around: Surroundings, records: Sequence[tuple[Any, ...]], like: str, kind: str = "") -> float:
    async with around.pool.acquire() as connection:
        await connection.execute(f"DROP TABLE IF EXISTS peer; CREATE {kind} TABLE peer (LIKE insights {like})")
        started = monotonic_seconds()
        await connection.copy_records_to_table("peer", records=records, columns=COLUMNS)
        seconds = monotonic_seconds() - started
        await connection.execute("DROP TABLE peer")
    return seconds


def _records(rows: Sequence[dict[str, Any]], *, with_vectors: bool) -> list[tuple[Any, ...]]:
    vectors = TextEmbedder().embed([row["text"] for row in rows]).astype("<f4") if with_vectors else np.zeros((0, 0))
    return [
        (row["insight_id"], row["channel_id"], i, to_datetime(row["ts"]), to_datetime(row["ts"]), row["text"],
         vectors[i].tobytes() if with_vectors else None, 0, i)
        for i, row in enumerate(rows)
    ]  # fmt: skip


async def _run(stack: LocalStack, runs: int) -> list[Figure]:
    found = stack.addresses
    given = {
        "KAFKA_BOOTSTRAP_SERVERS": found.kafka,
        "SCHEMA_REGISTRY_URL": found.schema_registry,
        "DATABASE_URL": found.database,
    }
    settings = read_settings({name: value or "" for name, value in given.items()})
    client = settings.kafka_client()
    registry, admin = Registry(settings.registry_access()), Admin(client)
    async with await open_pool(settings.database) as pool:
        await migrate(pool)
        await admin.ensure_topics(all_topics(), replication_factor=1)
        await registry.register(TOPICS.values())
        around = Surroundings(pool, client, admin, registry, await registry.codec(), ProductClock())
        folder = os.environ.get("HW_DATA")
        rows = events(Path(folder) / "commits.jsonl.gz" if folder else SAMPLE)
        await _publish(around, rows)
        one, two, cpu, indexed, temporary, bare, texts = [], [], [], [], [], [], []
        vectors, plain = _records(rows, with_vectors=True), _records(rows, with_vectors=False)
        for _ in range(runs):
            seconds, cpu_seconds = await _sink_seconds(around, len(rows))
            one.append(seconds)
            cpu.append(cpu_seconds)
            two.append(await _processes_seconds(around, len(rows), {k: v for k, v in given.items() if v}, 2))
            indexed.append(await _copy_seconds(around, vectors, "INCLUDING INDEXES"))
            temporary.append(await _copy_seconds(around, vectors, "INCLUDING INDEXES", "TEMP"))
            bare.append(await _copy_seconds(around, vectors, ""))
            texts.append(await _copy_seconds(around, plain, "INCLUDING INDEXES"))
    measured = {
        "highwater sink, one process, topic to rows, embedding made": one,
        "highwater sink, two processes": two,
        "PostgreSQL COPY, same rows and indexes": indexed,
        "PostgreSQL COPY, same rows and indexes, temporary table (no write-ahead log)": temporary,
        "PostgreSQL COPY, same rows, no index": bare,
        "PostgreSQL COPY, no vectors, same indexes": texts,
    }
    rates = [
        figure("ingest", system, "rows/s", [round(len(rows) / seconds) for seconds in found])
        for system, found in measured.items()
    ]
    spent = [round(seconds / len(rows) * 1e6, 1) for seconds in cpu]
    return [*rates, figure("ingest CPU", "highwater sink, the process without PostgreSQL", "us an event", spent)]


def run(runs: int = 3) -> list[Figure]:
    """The figures, on an embedded stack of the benchmark's own."""
    configure_logging("error", "console")  # figures alone go to standard output
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder, LocalStack(Path(folder) / "data") as stack:
        return asyncio.run(_run(stack, runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for found in run(parser.parse_args().runs):
        print(json.dumps(found))
