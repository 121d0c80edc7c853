"""Keeps a vector index (HNSW) for each namespace that is too large to compare all vectors, and folds sums of words.

A change of the model waits for two of them (`switching.py`).

Invariants. Indexes of hot namespaces come first and are kept dense (R3.21). Chunks are read and written while an index
is built. One process builds at a time; an incomplete index is rebuilt. Vectors in an index have half precision, which
halves it and finds the same (`tests/bench/chunks_search.py`), and unit length, so that no number is out of range.
Results are compared at full precision.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.postgres.pool import AWAY, open_connection
from highwater.connectors.retrieval.search import COMPARED_MAX
from highwater.connectors.waiting import pause
from highwater.schemas.errors import UnavailableError
from highwater.streams.chunks.temperature import IndexSize, is_to_be_rebuilt
from highwater.streams.clock import Clock, monotonic_seconds, to_datetime
from highwater.streams.telemetry import get_log

_log = get_log("backfill")

# The limit of an index with half precision (pgvector); longer vectors are compared one by one.
DIMENSIONS_MAX = 4_000
# A namespace exceeds the limit once; until its index exists its searches are slower but equal. A check counts up to the
# limit in each namespace without one.
LOOK_SECONDS = 60.0
# If the process that keeps the indexes hangs, another takes over after this long. Meanwhile searches are slower but
# equal.
_KEEPER_SECONDS = 3_600.0
# How often an index is checked for holes: counting 100,000 vectors takes some 20 ms.
_HOT_LOOK_MS, _OTHER_LOOK_MS = 10 * 60_000, 6 * 3_600_000
# How many statements may change the chunks of a namespace before their sums are folded: a search reads as many rows for
# each of its words, at a microsecond each, and a word is rewritten at most once in this many changes.
_PARTS_MAX = 32
# 100,000 vectors of 384 need some 120 MB to build; an index that does not fit is built many times more slowly.
_BUILD_MEMORY = "256MB"


class ChunkIndexes:
    """Finds namespaces that need an index, and builds it."""

    group = "chunk-indexes"
    problem: str | None = None  # searches are correct without it

    def __init__(self, database_url: str, clock: Clock) -> None:
        self._url = database_url
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Check repeatedly until `stop` is set, which ends a running build."""
        while not stop.is_set():
            look = asyncio.ensure_future(self._look())
            ending = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({look, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ending.cancel()
                if not look.done():
                    look.cancel()  # asyncpg also cancels the statement on the server
                await asyncio.gather(look, ending, return_exceptions=True)
            if not look.cancelled() and (error := look.exception()) is not None:
                if not isinstance(error, (*AWAY, UnavailableError, asyncpg.PostgresError)):
                    raise error
                _log.warning("index_not_built", reason=str(error)[:300] or type(error).__name__)
            await pause(stop, LOOK_SECONDS)

    async def _look(self) -> None:
        # A build takes as long as it needs; nothing waits for it.
        connection = await open_connection(self._url, timeout=5.0)
        try:
            # Ends with the session, else after the longest build: two at once would wait for each other's lock on the
            # table.
            keeping = Leases(LeaseKind.CHUNK_INDEXES, seconds=_KEEPER_SECONDS)
            if await keeping.take(connection, ["keeper"]):
                for left in await connection.fetch(QUERIES["vector_indexes_left_over"]):
                    await connection.execute(left["drop_statement"])
                for wanted in await connection.fetch(QUERIES["vector_indexes_wanted"], COMPARED_MAX, DIMENSIONS_MAX):
                    await _build(connection, wanted, self._clock())
                await self._keep_dense(connection)
                for many in await connection.fetch(QUERIES["namespaces_to_fold"], _PARTS_MAX):
                    await connection.execute(QUERIES["fold_chunk_words"], many["ns"])
                await keeping.release(connection)
        finally:
            await connection.close(timeout=5.0)

    async def _keep_dense(self, connection: Any) -> None:
        now_ms = self._clock()
        looked_at = to_datetime(now_ms - _HOT_LOOK_MS), to_datetime(now_ms - _OTHER_LOOK_MS)
        for found in await connection.fetch(QUERIES["vector_indexes_to_look_at"], *looked_at):
            if found["vectors"] is None:  # built before density was tracked: assume it is dense
                await connection.execute(QUERIES["note_vector_index"], found["name"], found["ns"], to_datetime(now_ms))
                continue
            dense = IndexSize(found["vectors"], found["bytes"])
            now = IndexSize(found["vectors_now"], found["bytes_now"])
            if is_to_be_rebuilt(dense, now, is_hot=found["is_hot"]):
                await _rebuild(connection, found, now_ms)
            else:
                await connection.execute(QUERIES["vector_index_is_dense"], found["name"], to_datetime(now_ms))


async def _rebuild(connection: Any, found: Any, now_ms: int) -> None:
    await connection.execute(QUERIES["set_build_memory"], _BUILD_MEMORY)
    began = monotonic_seconds()
    await connection.execute(found["rebuild_statement"])
    await connection.execute(QUERIES["note_vector_index"], found["name"], found["ns"], to_datetime(now_ms))
    _log.info("index_rebuilt", ns=found["ns"], was_hot=found["is_hot"], seconds=round(monotonic_seconds() - began, 1))


async def _build(connection: Any, wanted: Any, now_ms: int) -> None:
    await connection.execute(QUERIES["set_build_memory"], _BUILD_MEMORY)
    if wanted["is_broken"]:
        await connection.execute(wanted["drop_statement"])
    began = monotonic_seconds()
    await connection.execute(wanted["create_statement"])
    if wanted["model"] is None:  # one of a change of the model is not kept
        await connection.execute(QUERIES["note_vector_index"], wanted["name"], wanted["ns"], to_datetime(now_ms))
    seconds = round(monotonic_seconds() - began, 1)
    _log.info("index_built", ns=wanted["ns"], next_model=wanted["model"], seconds=seconds)
