"""Keeps an index of vectors (HNSW) for each namespace that has too many to be compared one by one.

Laws. Chunks are read and written while an index is built. One process at a time builds; an index that was left half made is made
again. Vectors stand in it at half precision, which halves it and finds the same (`tests/bench/chunks_search.py`): at unit length,
so that no number is too large or too small for it. What is found is compared at full precision.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.patience import pause
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import AWAY, open_connection
from highwater.connectors.retrieval.search import COMPARED_MAX
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

_log = get_log("backfill")

# What an index of half precision takes (pgvector); longer vectors are compared one by one.
DIMENSIONS_MAX = 4_000
# A namespace grows past the bound once; until its index is there its searches are slower, not other. A look counts up to the
# bound in each namespace without one.
LOOK_SECONDS = 60.0
# 100,000 vectors of 384 are built in some 120 MB; what does not fit is built many times more slowly.
_BUILD_MEMORY = "256MB"


class ChunkIndexes:
    """Looks for namespaces that want an index, and builds it."""

    group = "chunk-indexes"
    problem: str | None = None  # searches are right without it

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set, which ends a build that is under way."""
        while not stop.is_set():
            look = asyncio.ensure_future(self._look())
            ending = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({look, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ending.cancel()
                if not look.done():
                    look.cancel()  # asyncpg has the server cancel the statement too
                await asyncio.gather(look, ending, return_exceptions=True)
            if not look.cancelled() and (error := look.exception()) is not None:
                if not isinstance(error, (*AWAY, UnavailableError, asyncpg.PostgresError)):
                    raise error
                _log.warning("index_not_built", reason=str(error)[:300] or type(error).__name__)
            await pause(stop, LOOK_SECONDS)

    async def _look(self) -> None:
        # A build takes as long as it takes; nothing waits for it.
        connection = await open_connection(self._url, timeout=5.0)
        try:
            if await connection.fetchval(QUERIES["try_index_keeper"], LockClass.CHUNK_INDEXES, 1):
                for wanted in await connection.fetch(QUERIES["vector_indexes_wanted"], COMPARED_MAX, DIMENSIONS_MAX):
                    await _build(connection, wanted)
        finally:
            await connection.close(timeout=5.0)


async def _build(connection: Any, wanted: Any) -> None:
    await connection.execute(QUERIES["set_build_memory"], _BUILD_MEMORY)
    if wanted["is_broken"]:
        await connection.execute(wanted["drop_statement"])
    began = monotonic_seconds()
    await connection.execute(wanted["create_statement"])
    _log.info("index_built", ns=wanted["ns"], seconds=round(monotonic_seconds() - began, 1))
