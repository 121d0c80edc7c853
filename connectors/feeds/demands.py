"""Manual rebuilds and their outcomes: the sink of users stores a demand, the worker that serves it stores the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import asyncpg

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Row, reading
from highwater.streams.clock import to_ms

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand by its position, and its `status`: pending, rebuilt, unchanged, skipped or failed (with a reason).

    `cluster_version` is the user's version afterwards, so the new one if it was rebuilt; times in ms since 1970.
    """

    position: str
    demanded_at_ms: int
    status: str
    reason: str
    cluster_version: int | None
    request_position: str | None
    finished_at_ms: int | None


async def demand_at(pool: Pool, user_id: str, position: str) -> Demand | None:
    """Return the demand of a user at a position; None if there is none."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_demand"], user_id, position)
    return None if row is None else _demand(row)


async def newest_demands(pool: Pool, user_id: str, limit: int) -> list[Demand]:
    """Return the newest demands of a user, the last one first."""
    async with reading(pool) as connection:
        return [_demand(row) for row in await connection.fetch(QUERIES["read_demands"], user_id, limit)]


def _demand(row: Row) -> Demand:
    finished_at: datetime | None = row["finished_at"]
    return Demand(
        position=row["position"],
        demanded_at_ms=to_ms(row["demanded_at"]),
        status=row["outcome"] or PENDING,
        reason=row["reason"] or "",
        cluster_version=row["cluster_version"],
        request_position=row["request_position"],
        finished_at_ms=None if finished_at is None else to_ms(finished_at),
    )
