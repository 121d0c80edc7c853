"""Rows per second of 100,000 chunks from a topic into PostgreSQL, beside PostgreSQL's own COPY + upsert in the same run.

Chunks of a page each, ten a source, come new, again as they are, and again with a tenth of them changed; without vectors, as most
sources send them (`--vectors` sends 384 values with each). Ours holds everything a chunk goes through: poll, Avro, checks, hash,
plan, upsert, counters, events, positions, commit. The peers' figures hold a COPY of rows that are made and hashed already into a
temporary table, and one `INSERT ... ON CONFLICT DO UPDATE` from there into the same table with its indexes; one of them writes
every row again, the other leaves out those with the same hash. All commit every 5,000 rows.

    python -m tests.bench.chunks_ingest [--runs N] [--chunks N] [--vectors]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np

from highwater.connectors.chunks.sink_chunks import ChunksSink, Prepared
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.records import Event
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from highwater.deploy.local.stack import LocalStack
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.chunks.identity import content_hash
from highwater.streams.chunks.passports import load_passports
from highwater.streams.clock import ProductClock, monotonic_seconds, to_datetime
from highwater.streams.heap import settle_heap
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests import ROOT
from tests.bench.figures import Figure, figure

TOPIC = "chunks.chunk-submitted"
CHUNKS, PER_SOURCE, DIMENSIONS = 100_000, 10, 384
CHARACTERS = 1_500
PASSES = ("new", "unchanged", "10 % changed")
OURS, PLAIN, COMPARING = "highwater sink, topic to rows", "COPY + upsert", "COPY + upsert where the hash differs"
DONE_SECONDS_MAX = 600.0
# Not the positions: each pass is read on from where the last one ended.
EMPTY = "TRUNCATE chunks, chunk_sources, chunk_ingests, chunk_failures, chunk_namespaces, chunk_next_vectors, outbox"

COPIED = (
    "ns", "slot", "source_id", "chunk_no", "content", "title", "content_hash", "embedding", "created_at", "updated_at",
    "ingest_id", "source_partition", "source_offset",
)  # fmt: skip
MAKE = """
CREATE TEMP TABLE IF NOT EXISTS peer (
    ns text, slot text, source_id text, chunk_no bigint, content text, title text, content_hash text, embedding vector,
    created_at timestamptz, updated_at timestamptz, ingest_id text, source_partition int, source_offset bigint
) ON COMMIT DELETE ROWS
"""
UPSERT = f"""
INSERT INTO chunks ({", ".join(COPIED)}) SELECT {", ".join(COPIED)} FROM peer
ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
SET content = EXCLUDED.content, title = EXCLUDED.title, content_hash = EXCLUDED.content_hash,
    embedding = COALESCE(EXCLUDED.embedding, chunks.embedding), updated_at = EXCLUDED.updated_at,
    ingest_id = EXCLUDED.ingest_id, source_offset = EXCLUDED.source_offset
"""
PEERS = {PLAIN: UPSERT, COMPARING: f"{UPSERT} WHERE chunks.content_hash <> EXCLUDED.content_hash"}


def figures(runs: int = 3, chunks: int = CHUNKS, *, with_vectors: bool = False) -> list[Figure]:
    """All figures, on an embedded stack of the benchmark's own."""
    configure_logging("error", "console")  # figures alone go to standard output
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as folder, LocalStack(Path(folder) / "data") as stack:
        return asyncio.run(_figures(stack, runs, Made(chunks, with_vectors=with_vectors)))


class Made:
    """Chunks that are the same in each run, and in each pass of it, except for a tenth in the last."""

    def __init__(self, chunks: int, *, with_vectors: bool) -> None:
        pages = sorted((ROOT / "docs" / "architecture").glob("*.md"))
        words = " ".join(path.read_text(encoding="utf-8") for path in pages).split()
        chance = np.random.default_rng(7)
        picked = chance.integers(len(words), size=(chunks, 250))
        self.texts = [" ".join(words[one] for one in row)[:CHARACTERS] for row in picked]
        self.vectors = chance.normal(size=(chunks, DIMENSIONS)).astype("<f4") if with_vectors else None

    def events(self, ingest_id: str, number: int) -> Iterator[dict[str, Any]]:
        """The chunks of a pass, those of a source together."""
        for i, text in enumerate(self.texts):
            yield {
                "ingest_id": ingest_id,
                "ns": "bench",
                "slot": "main",
                "source_id": f"{i // PER_SOURCE:06}.md",
                "chunk_no": i % PER_SOURCE,
                "content": f"{text} anew" if number == 2 and i % 10 == 0 else text,
                "title": "Chunks",
                "url": None,
                "embedding": None if self.vectors is None else self.vectors[i].tobytes(),
                "published_at": None,
            }

    def records(self, number: int) -> list[tuple[Any, ...]]:
        """The rows of a pass, in the order of `COPIED`."""
        now = to_datetime(number)
        rows = []
        for i, one in enumerate(self.events("peer", number)):
            key = (one["ns"], one["slot"], one["source_id"], one["chunk_no"])
            hashed = content_hash(*key, one["content"])
            rows.append((*key, one["content"], one["title"], hashed, one["embedding"], now, now, "peer", 0, i))
        return rows


async def _figures(stack: LocalStack, runs: int, made: Made) -> list[Figure]:
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
        context = ProcessContext(pool, client, admin, registry, await registry.codec(), ProductClock())
        settle_heap()  # as every process of the product does; the texts of the benchmark are not its garbage
        seconds: dict[tuple[str, str], list[float]] = {}
        for run in range(runs):
            for system in (OURS, *PEERS):
                await pool.execute(EMPTY)
                for number, name in enumerate(PASSES):
                    spent = await (
                        _ours(context, made, run, number) if system == OURS else _peer(pool, made, system, number)
                    )
                    seconds.setdefault((name, system), []).append(spent)
    return [
        figure(f"chunk ingest, {name}", system, "rows/s", [len(made.texts) / one for one in spent])
        for (name, system), spent in sorted(seconds.items(), key=lambda item: PASSES.index(item[0][0]))
    ]


async def _publish(context: ProcessContext, events: Iterator[dict[str, Any]]) -> None:
    producer = AsyncProducer(context.client, client_id="bench", linger_ms=20)
    acks = []
    for i, event in enumerate(events):
        key = TOPICS[TOPIC].key_of(event)
        acks.append(await producer.enqueue(TOPIC, context.codec.encode(TOPIC, event), key=key))
        if i % 1_000 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*acks)
    await producer.close()


class _Timed(ChunksSink):
    """Reports how long N events took, from the receipt of the first of them: joining the group is not ingest."""

    def __init__(self, context: ProcessContext, events: int) -> None:
        super().__init__(context, load_passports())
        self._left = events
        self.done = asyncio.Event()
        self.began = self.ended = 0.0

    async def prepare(self, events: Sequence[Event]) -> Prepared:
        """As ours, noted."""
        self.began = self.began or monotonic_seconds()
        self._left -= len(events)
        return await super().prepare(events)

    async def settle(self, prepared: Prepared) -> None:
        """The transaction has ended."""
        if self._left == 0:
            self.ended = monotonic_seconds()
            self.done.set()


async def _ours(context: ProcessContext, made: Made, run: int, number: int) -> float:
    ingest_id = f"run-{run}-pass-{number}"
    await _publish(context, made.events(ingest_id, number))
    sink, stop = _Timed(context, len(made.texts)), asyncio.Event()
    running = asyncio.create_task(BatchConsumer(sink, context).run(stop))
    try:
        await asyncio.wait_for(sink.done.wait(), DONE_SECONDS_MAX)
    finally:
        stop.set()
        await running
    counted = (
        "SELECT sum(inserted), sum(updated), sum(unchanged), sum(failures) FROM chunk_ingests WHERE ingest_id = $1"
    )
    chunks = len(made.texts)
    wanted = ((chunks, 0, 0, 0), (0, 0, chunks, 0), (0, chunks // 10, chunks - chunks // 10, 0))[number]
    found = tuple(map(int, await context.pool.fetchrow(counted, ingest_id)))
    assert found == wanted, f"pass {number} counted {found}, not {wanted}"
    return sink.ended - sink.began


async def _peer(pool: asyncpg.Pool[asyncpg.Record], made: Made, system: str, number: int) -> float:
    records = made.records(number)
    async with pool.acquire() as connection:
        await vectors.enable(connection)
        await connection.execute(MAKE)
        began = monotonic_seconds()
        for first in range(0, len(records), ChunksSink.batch_max):
            async with connection.transaction():
                batch = records[first : first + ChunksSink.batch_max]
                await connection.copy_records_to_table("peer", records=batch, columns=COPIED)
                await connection.execute(PEERS[system])
        return monotonic_seconds() - began


def main() -> None:
    """Print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--vectors", action="store_true")
    chosen = parser.parse_args()
    for found in figures(chosen.runs, chosen.chunks, with_vectors=chosen.vectors):
        print(json.dumps(found))


if __name__ == "__main__":
    main()
