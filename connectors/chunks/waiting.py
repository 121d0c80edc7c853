"""Chunks that wait for their vectors: selecting them, claiming them, and storing the vectors.

Invariants. A lease gives a source to one lane at a time, so no two workers compute a vector of one chunk; the lease is
not a row of chunks, so a writer of chunks never waits for it (R3.13). A lane that hangs past its lease costs one call
of the embedder. A vector is stored only with the text that it was computed from (R3.14), with its event, under the lock
of its source. A text that only moved within its source keeps its vector, if the same model computed it. In a namespace
all vectors have one dimension and, except for submitted ones, one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.chunks import CHUNK_CHANGED, ChunkChanged
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.streams.chunks.states import Change
from highwater.streams.clock import to_datetime

CHANGED, _SUBMITTED = "chunks.chunk-changed", "chunks.chunk-submitted"
_SOURCE = "/connectors/workers/backfill"
# Waiting chunks per page: more than a batch, so that enough remains beside what others work on.
PAGE_CHUNKS = 256
# A call of an embedder takes up to 30 s (`models/embedding_service.py`), a claimed batch is one call; the rest is for
# storing.
_CLAIM_SECONDS = 60.0
# The part of a text that embedders read.
TEXT_CHARACTERS_MAX = 8_192
# Vectors moved in one transaction. In a namespace with an index each costs milliseconds, and the source is locked
# meanwhile.
REUSED_MAX = 2_000


class SourceKey(NamedTuple):
    """A source."""

    ns: str
    slot: str
    source_id: str


class Waiting(NamedTuple):
    """A chunk that waits; `text` is the input of its vector."""

    source: SourceKey
    chunk_no: int
    content_hash: str
    text: str


class Page(NamedTuple):
    """Sources with the number of their waiting chunks; `is_last`: no more follow."""

    sources: dict[SourceKey, int]
    is_last: bool


class Maker(NamedTuple):
    """Computes vectors; `dimensions` is None before the first one."""

    model: str
    dimensions: int | None


START = SourceKey("", "", "")


async def page(
    tx: Connection,
    maker: Maker,
    *,
    is_hot: bool,
    after: SourceKey,
    aside: Sequence[str],
    now_ms: int,
    takes_new: bool = True,
) -> Page:
    """Return the next sources with waiting chunks, of all or only of hot namespaces (R3.15), without the excluded
    hashes.

    `takes_new`: also of namespaces that have no vector yet.
    """
    rows = await tx.fetch(
        QUERIES["sources_to_fill"], to_datetime(now_ms), *maker, is_hot, *after, PAGE_CHUNKS, list(aside), takes_new
    )
    sources = {SourceKey(row["ns"], row["slot"], row["source_id"]): row["chunks"] for row in rows}
    return Page(sources, is_last=sum(sources.values()) < PAGE_CHUNKS)


def claims() -> Leases:
    """Return the claims of one lane. They end with its session, and at the latest when no embedder can still work on a batch."""
    return Leases(LeaseKind.CHUNK_SOURCE, seconds=_CLAIM_SECONDS)


async def claim(tx: Connection, claimed: Leases, sources: Mapping[SourceKey, int], *, chunks: int) -> list[SourceKey]:
    """Claim sources for this lane until `let_go`: until they hold `chunks` waiting chunks; the rest is left to others."""
    found: list[SourceKey] = []
    left, wanted = list(sources), chunks
    while left and wanted > 0:
        totals = accumulate(sources[source] for source in left)
        enough = next((count for count, total in enumerate(totals, 1) if total >= wanted), len(left))
        tried, left = left[:enough], left[enough:]
        free = set(await claimed.take(tx, ["|".join(source) for source in tried]))
        got = [source for source in tried if "|".join(source) in free]
        wanted -= sum(sources[source] for source in got)
        found += got
    return found


async def let_go(tx: Connection, claimed: Leases) -> None:
    """Release all sources."""
    await claimed.drop(tx)


async def waiting(
    tx: Connection, sources: Sequence[SourceKey], *, most: int, aside: Sequence[str], now_ms: int
) -> list[Waiting]:
    """Return waiting chunks of claimed sources, in order."""
    if not sources:
        return []
    rows = await tx.fetch(
        QUERIES["chunks_to_fill"], to_datetime(now_ms), *_columns(sources), TEXT_CHARACTERS_MAX, most, list(aside)
    )
    return [
        Waiting(SourceKey(row["ns"], row["slot"], row["source_id"]), row["chunk_no"], row["content_hash"], row["text"])
        for row in rows
    ]


async def moved(tx: Connection, sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
    """Return claimed sources with texts that changed after their vectors were computed, with the offset of the last
    such change.
    """
    if not sources:
        return {}
    rows = await tx.fetch(QUERIES["sources_moved"], *_columns(sources))
    return {SourceKey(row["ns"], row["slot"], row["source_id"]): row["source_offset"] for row in rows}


async def reuse(tx: Connection, codec: Codec, source: SourceKey, model: str, now_ms: int) -> int:
    """Copy the vectors of equal texts in a source to up to `REUSED_MAX` of its waiting chunks; return how many.

    In the caller's transaction, with their events.
    """
    await vectors.enable(tx)
    await tx.execute(QUERIES["hold_sources_to_fill"], *_columns([source]))
    stored = await tx.fetch(QUERIES["reuse_vectors"], to_datetime(now_ms), *source, model, REUSED_MAX)
    if stored:
        await _tell(tx, codec, stored, now_ms)
    return len(stored)


async def store(
    tx: Connection, codec: Codec, chunks: Sequence[Waiting], made: Sequence[bytes], model: str, now_ms: int
) -> int:
    """Store vectors of chunks with their events, in the caller's transaction; return how many were not too late."""
    await vectors.enable(tx)
    dimensions = len(made[0]) // 4
    names = sorted({chunk.source.ns for chunk in chunks})
    await tx.execute(QUERIES["name_models"], names, model, dimensions)
    fitting = {row["ns"] for row in await tx.fetch(QUERIES["namespaces_of_model"], names, model, dimensions)}
    rows = [
        (*chunk.source, chunk.chunk_no, chunk.content_hash, vector)
        for chunk, vector in zip(chunks, made, strict=True)
        if chunk.source.ns in fitting
    ]
    if not rows:
        return 0
    columns = [list(column) for column in zip(*rows, strict=True)]
    await tx.execute(QUERIES["hold_sources_to_fill"], *columns[:3])
    stored = await tx.fetch(QUERIES["store_vectors"], *columns, model, to_datetime(now_ms))
    if stored:
        await _tell(tx, codec, stored, now_ms)
    return len(stored)


async def _tell(tx: Connection, codec: Codec, stored: Sequence[Any], now_ms: int) -> None:
    """Publish one event per source and one version per namespace, caused by the event that last wrote the text."""
    stored = sorted(stored, key=lambda row: (row["ns"], row["slot"], row["source_id"], row["chunk_no"]))
    told = []
    for source, rows in groupby(stored, key=lambda row: SourceKey(row["ns"], row["slot"], row["source_id"])):
        of_source = list(rows)
        event: ChunkChanged = {
            "ns": source.ns,
            "slot": source.slot,
            "source_id": source.source_id,
            "kind": Change.EMBEDDED,
            "ingest_id": None,
            "changes": [
                {"chunk_no": row["chunk_no"], "old_hash": row["content_hash"], "new_hash": row["content_hash"]}
                for row in of_source
            ],
            "at": now_ms,
        }
        told.append(
            outbox.event_row(codec, CHUNK_CHANGED, event, source=_SOURCE, now_ms=now_ms, caused_by=_behind(of_source))
        )
    await outbox.add(tx, told)
    for ns, rows in groupby(stored, key=lambda row: row["ns"]):
        caused_by = str(_behind(list(rows)))
        await bump(tx, codec, f"ns:{ns}", caused_by=caused_by, now_ms=now_ms, source=_SOURCE, reason="embedded")


def _behind(rows: Sequence[Any]) -> Position:
    last = max(rows, key=lambda row: row["source_offset"])
    return Position(_SUBMITTED, last["source_partition"], last["source_offset"])


def _columns(sources: Sequence[SourceKey]) -> tuple[list[str], list[str], list[str]]:
    return [one.ns for one in sources], [one.slot for one in sources], [one.source_id for one in sources]
