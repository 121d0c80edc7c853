"""Stored decks, for jobs that continue from one. Invariant: a deck of another organization is treated as missing."""

from __future__ import annotations

import asyncpg
import orjson

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.steps import JobFailedError
from highwater.connectors.jobs.store import Deck
from highwater.connectors.postgres.pool import reading


async def kept_deck(
    pool: asyncpg.Pool[asyncpg.Record], presentation_id: str | None, organization_id: str | None
) -> Deck:
    """Return a stored deck.

    Raises:
        JobFailedError: the deck does not exist.
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["deck_to_export"], presentation_id, organization_id)
    if row is None:
        raise JobFailedError(f"there is no presentation {presentation_id}")
    return Deck(row["title"], tuple(orjson.loads(row["slides"])))
