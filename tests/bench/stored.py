"""Chunks and insights stored as the product stores them: by its sinks and its statements, on PostgreSQL alone.

Invariant: what is stored this way has every column that a release computes for a text, so one harness measures releases that
differ in them. There is no broker: a record's offset is its number in the benchmark, and what a sink publishes stays in the
outbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import asyncpg

from highwater.connectors.chunks import waiting
from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.waiting import SourceKey
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.postgres.pool import transaction
from highwater.schemas.chunks import CHUNK_SUBMITTED, ChunkSubmitted
from highwater.schemas.codec import Codec
from highwater.schemas.feeds import INSIGHT_INGESTED, InsightIngested
from highwater.schemas.topic_names import EventT, TopicName
from highwater.schemas.topics import TOPICS
from highwater.streams.chunks.passports import load_passports

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Prepared = TypeVar("Prepared")

CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})
SLOT = "bench"
# Texts that are embedded at a time, as the worker has them.
TEXTS_MAX = 64


class Titled(NamedTuple):
    """A chunk: the headings above it, "" without any, and its text."""

    title: str
    content: str


class Insight(NamedTuple):
    """An insight and when it was published."""

    insight_id: str
    channel_id: str
    ts_ms: int
    text: str


async def store_chunks(
    pool: Pool, embedder: Embedder, ns: str, source_id: str, chunks: Sequence[Titled], *, now_ms: int
) -> None:
    """Store a source of a namespace, its chunks numbered in order and of one age, then their vectors."""
    nowhere: Any = None  # only consumers use a broker and a registry
    sink = ChunksSink(ProcessContext(pool, {}, nowhere, nowhere, CODEC, lambda: now_ms), load_passports())
    submitted = [
        ChunkSubmitted(
            ingest_id="bench",
            ns=ns,
            slot=SLOT,
            source_id=source_id,
            chunk_no=number,
            content=content,
            title=title or None,
            url=None,
            embedding=None,
            published_at=None,
            lasts=False,
            opens=False,
        )
        for number, (title, content) in enumerate(chunks)
    ]
    await _store(pool, sink, CHUNK_SUBMITTED, submitted, now_ms)
    source = [SourceKey(ns, SLOT, source_id)]
    while True:
        async with transaction(pool) as tx:
            found = await waiting.waiting(tx, source, most=TEXTS_MAX, aside=(), now_ms=now_ms)
        if not found:
            return
        made = await embedder.embed([one.text for one in found])
        async with transaction(pool) as tx:
            await waiting.store(tx, CODEC, found, made, embedder.basis_id, now_ms)


async def store_insights(pool: Pool, embedder: Embedder, insights: Sequence[Insight], *, now_ms: int) -> None:
    """Store insights with their vectors; the model becomes the active one."""
    await pool.execute(
        "INSERT INTO bases VALUES ($1, 'remote', '', 0, 'epoch') ON CONFLICT DO NOTHING", embedder.basis_id
    )
    await pool.execute("UPDATE active_basis SET basis_id = $1", embedder.basis_id)
    made = await embedded(embedder, [one.text for one in insights])
    sink = InsightsSink(CODEC, lambda: now_ms, pool, dimensions=len(made[0]) // 4)
    ingested = [
        InsightIngested(
            insight_id=one.insight_id,
            channel_id=one.channel_id,
            ts=one.ts_ms,
            text=one.text,
            url=None,
            embedding=vector,
            embedding_model=embedder.basis_id,
        )
        for one, vector in zip(insights, made, strict=True)
    ]
    await _store(pool, sink, INSIGHT_INGESTED, ingested, now_ms)
    await pool.execute("ANALYZE insights")


async def embedded(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """The vectors of texts in order."""
    made: list[bytes] = []
    for first in range(0, len(texts), TEXTS_MAX):
        made += await embedder.embed(texts[first : first + TEXTS_MAX])
    return made


async def _store(
    pool: Pool, sink: Handler[Any, Prepared], topic: TopicName[EventT], values: Sequence[EventT], now_ms: int
) -> None:
    """Give events to a sink in its batches; none of them may be refused."""
    for first in range(0, len(values), sink.batch_max):
        batch = [
            Event(Record(topic, 0, offset, now_ms, None, None, []), value)
            for offset, value in enumerate(values[first : first + sink.batch_max], start=first)
        ]
        prepared = await sink.prepare(batch)
        async with transaction(pool) as tx:
            refused = await sink.apply(tx, batch, prepared)
        assert not refused, refused[0].detail
