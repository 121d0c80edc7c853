"""Finds the languages of texts that were stored before a text had one (before migration 0065).

Invariant: batches of rows, each a transaction of its own, so that readers and writers do not wait; interrupted, it is run
again. English texts are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from highwater.connectors.postgres.pool import transaction
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.languages import text_language

# Some megabytes of texts.
_BATCH = 2_000


class _Table(NamedTuple):
    """A table with texts: the statements that read and write a batch, and a key before all of its rows. The columns of a row
    that is read begin with its key and end with its text; what is written has the language instead.
    """

    read: str
    write: str
    beginning: tuple[Any, ...]


_TABLES = {
    "insights": _Table(QUERIES["insights_to_label"], QUERIES["label_insights"], ("",)),
    "chunks": _Table(QUERIES["chunks_to_label"], QUERIES["label_chunks"], ("", "", "", -1)),
    "former_chunks": _Table(QUERIES["former_chunks_to_label"], QUERIES["label_former_chunks"], ("(0,0)",)),
}


async def label_texts(pool: asyncpg.Pool[asyncpg.Record], batch: int = _BATCH) -> dict[str, int]:
    """Store the languages of texts that have none; return how many of each table got one.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return {name: await _label(pool, table, batch) for name, table in _TABLES.items()}


async def _label(pool: asyncpg.Pool[asyncpg.Record], table: _Table, batch: int) -> int:
    labelled, after = 0, table.beginning
    while True:
        async with transaction(pool) as tx:
            rows: Sequence[Any] = await tx.fetch(table.read, *after, batch)
            found = [(*tuple(row)[:-1], language) for row in rows if (language := text_language(row["text"] or ""))]
            if found:
                await tx.execute(table.write, *map(list, zip(*found, strict=True)))
        labelled += len(found)
        if len(rows) < batch:
            return labelled
        after = tuple(rows[-1])[: len(after)]
