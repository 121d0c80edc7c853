"""Reads readers' curations: for the rebuild that applies them, and for the API that shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import asyncpg
import orjson

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row, reading
from highwater.schemas.feeds import CLUSTERS_CURATED
from highwater.schemas.positions import Position
from highwater.streams.feeds.curations import Curation, curation_from

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


async def read_curations(connection: Connection, user_id: str) -> tuple[Curation, ...]:
    """Return a user's curations, in the order of the log."""
    return tuple(map(_curation_of, await connection.fetch(QUERIES["rebuild_curations"], user_id)))


async def held_curations(pool: Pool, user_id: str) -> tuple[Curation, ...]:
    """Return a user's curations, outside of a transaction."""
    async with reading(pool) as connection:
        return await read_curations(connection, user_id)


def position_of(one: Curation) -> str:
    """Return its position in the log."""
    return str(Position(CLUSTERS_CURATED, *one.order[1:]))


def positions_of(curations: Iterable[Curation]) -> list[str]:
    """Return their positions in the log."""
    return [position_of(one) for one in curations]


def _curation_of(row: Row) -> Curation:
    order = row["arrived_ms"], row["source_partition"], row["source_offset"]
    return curation_from(orjson.loads(row["curation"]), row["curation_id"], order)
