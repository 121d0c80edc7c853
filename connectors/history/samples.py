"""The rows of the history in PostgreSQL: one per minute, for a day.

Invariants. A minute has one row, also with several writers; each write deletes rows older than a day. At most `WATCHED_MAX`
groups and topics each of other applications are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import asyncpg
import orjson

from highwater.connectors.history.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, fetched
from highwater.streams.clock import to_datetime
from highwater.streams.history import KEPT_MS, WATCHED_MAX, Figures, Grid, Sample

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Kind: TypeAlias = Literal["group", "topic"]


async def add_sample(tx: Connection, at_ms: int, figures: Mapping[str, Figures | Mapping[str, Figures]]) -> None:
    """Store the values of a minute, by metric, and delete what is older than a day."""
    await tx.execute(QUERIES["add_history_sample"], at_ms, orjson.dumps(figures).decode())
    await tx.execute(QUERIES["drop_history_samples"], at_ms - KEPT_MS)


async def samples(pool: Pool, metric: str, grid: Grid) -> list[Sample]:
    """Return the samples of a metric within a grid, oldest first.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    return await _samples(pool, QUERIES["history_samples"], metric, grid.from_ms, grid.to_ms)


async def samples_of(pool: Pool, metric: str, name: str, grid: Grid) -> list[Sample]:
    """Return the samples of one group or topic within a grid, oldest first.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    return await _samples(pool, QUERIES["history_samples_of"], metric, name, grid.from_ms, grid.to_ms)


async def _samples(pool: Pool, query: str, *arguments: str | int) -> list[Sample]:
    rows = await fetched(pool, query, *arguments)
    return [Sample(row["at_ms"], orjson.loads(row["figures"])) for row in rows]


async def watch(pool: Pool, kind: Kind, name: str, now_ms: int) -> None:
    """Record the values of another application's group or topic for a day from now.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    await fetched(pool, QUERIES["watch"], kind, name, now_ms)


async def watched(pool: Pool, now_ms: int) -> dict[Kind, list[str]]:
    """Return the recorded groups and topics, after dropping expired ones.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    await fetched(pool, QUERIES["drop_watched"], now_ms - KEPT_MS, WATCHED_MAX)
    found: dict[Kind, list[str]] = {"group": [], "topic": []}
    for row in await fetched(pool, QUERIES["watched"]):
        found[row["kind"]].append(row["name"])
    return found


async def stage_seconds(pool: Pool, after_ms: int, until_ms: int) -> dict[str, float]:
    """Return the mean duration of the query stages that ended in this time, by stage.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    span = (to_datetime(after_ms), to_datetime(until_ms))
    rows = await fetched(pool, QUERIES["ended_stage_seconds"], *span)
    return {row["stage"]: round(row["seconds"], 3) for row in rows}
