"""Rows per second from a topic into PostgreSQL, beside PostgreSQL's own COPY of the same rows in the same run.

The sink's figure holds everything an insight goes through: poll, Avro, checks, embedding, numbering, COPY, outbox,
positions, commit. The peer's holds the COPY alone, in transactions of as many rows as the sink's batches: into a table as durable
as the sink's with the same indexes, into the same without indexes, and into a temporary one, which writes no log.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Sequence
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
from highwater.streams.heap import settle_heap
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests import ROOT

TOPIC = "feeds.insight-ingested"
DIMENSIONS = 384
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


async def _sink_seconds(around: Surroundings, rows: int) -> float:
    """From the first stored batch's start to the last commit: joining the group is not ingest."""
    await around.pool.execute("TRUNCATE positions, outbox, insights, channels")
    sink = InsightsSink(around.codec, around.clock, around.pool, dimensions=DIMENSIONS)
    first: list[float] = []
    prepare = sink.prepare

    async def timed(batch: Any) -> Any:
        first.append(monotonic_seconds())
        return await prepare(batch)

    sink.prepare = timed  # type: ignore[method-assign]
    stop = asyncio.Event()
    running = asyncio.create_task(BatchConsumer(sink, around).run(stop))
    while await around.pool.fetchval("SELECT COALESCE(sum(current_seq), 0) FROM channels") < rows:
        if running.done():
            running.result()
        await asyncio.sleep(0.02)
    ended = monotonic_seconds()
    stop.set()
    await running
    return ended - first[0]


async def _copy_seconds(
    around: Surroundings, records: Sequence[tuple[Any, ...]], like: str, kind: str = "TABLE"
) -> float:
    async with around.pool.acquire() as connection:
        await connection.execute(f"CREATE {kind} peer (LIKE insights {like})")
        started = monotonic_seconds()
        for first in range(0, len(records), InsightsSink.batch_max):
            batch = records[first : first + InsightsSink.batch_max]
            await connection.copy_records_to_table("peer", records=batch, columns=COLUMNS)
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


def _figure(name: str, system: str, rows: int, seconds: Sequence[float]) -> dict[str, Any]:
    rates = [rows / one for one in seconds]
    return {
        "name": name, "system": system, "value": round(statistics.median(rates)), "unit": "rows/s",
        "runs": len(rates), "min": round(min(rates)), "max": round(max(rates)),
    }  # fmt: skip


async def _run(stack: LocalStack, runs: int) -> list[dict[str, Any]]:
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
        ours, indexed, bare, texts, temporary = [], [], [], [], []
        vectors, plain = _records(rows, with_vectors=True), _records(rows, with_vectors=False)
        settle_heap()  # as a role does
        for _ in range(runs):
            ours.append(await _sink_seconds(around, len(rows)))
            indexed.append(await _copy_seconds(around, vectors, "INCLUDING INDEXES"))
            bare.append(await _copy_seconds(around, vectors, ""))
            texts.append(await _copy_seconds(around, plain, "INCLUDING INDEXES"))
            temporary.append(await _copy_seconds(around, vectors, "INCLUDING INDEXES", "TEMP TABLE"))
    count = len(rows)
    return [
        _figure("ingest", "highwater sink, topic to rows, embedding made", count, ours),
        _figure("ingest", "PostgreSQL COPY, same rows and indexes", count, indexed),
        _figure("ingest", "PostgreSQL COPY, same rows, no index", count, bare),
        _figure("ingest", "PostgreSQL COPY, no vectors, same indexes", count, texts),
        _figure("ingest", "PostgreSQL COPY, same rows and indexes, temporary table", count, temporary),
    ]


def run(runs: int = 3) -> list[dict[str, Any]]:
    """The figures, on an embedded stack of the benchmark's own."""
    configure_logging("error", "console")  # figures alone go to standard output
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder, LocalStack(Path(folder) / "data") as stack:
        return asyncio.run(_run(stack, runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    for figure in run(parser.parse_args().runs):
        print(json.dumps(figure))
