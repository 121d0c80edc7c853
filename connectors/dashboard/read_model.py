"""What the dashboard lists over all users from PostgreSQL: values, not rows, and every time in milliseconds.

Invariant: one function is one bounded statement; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.dashboard.statements import QUERIES
from highwater.connectors.postgres.pool import fetched
from highwater.streams.clock import to_ms
from highwater.streams.queries.users import user_key

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Row: TypeAlias = dict[str, Any]


async def users(pool: Pool, beginning: str, only: str | None, limit: int) -> list[Row]:
    """Return users whose id has this prefix, most recently active first; only the named one with `only`.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_users"], beginning, only, limit)


async def versions(pool: Pool, user_id: str) -> list[Row]:
    """Return the kept cluster versions of a user, newest first.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_versions"], user_id)


async def texts(pool: Pool, insight_ids: Sequence[str]) -> dict[str, str]:
    """Return the beginnings of insights, by id.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return {
        row["insight_id"]: row["text"] or ""
        for row in await _fetch(pool, QUERIES["dashboard_texts"], list(insight_ids))
    }


async def insights(pool: Pool, insight_ids: Sequence[str]) -> dict[str, Row]:
    """Return insights with the beginnings of their texts, by id; retracted ones are left out.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return {row["insight_id"]: row for row in await _fetch(pool, QUERIES["dashboard_insights"], list(insight_ids))}


async def cluster_sizes(pool: Pool, user_id: str, limit: int) -> list[Row]:
    """Return the size changes of a user's clusters in the order of versions, the newest ones if there are too many.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return (await _fetch(pool, QUERIES["dashboard_cluster_sizes"], user_id, limit))[::-1]


async def documents(pool: Pool, beginning: str, limit: int) -> list[Row]:
    """Return league documents whose key has this prefix, the most recently built first.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_documents"], beginning, limit)


async def runs(pool: Pool, user_id: str | None, limit: int) -> list[Row]:
    """Return the latest queries of one user, or of all users.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_runs"], None if user_id is None else user_key(user_id), limit)


async def jobs(pool: Pool, user_id: str | None, limit: int) -> list[Row]:
    """Return the latest jobs of one user, or of all users.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_jobs"], user_id, limit)


async def ingests(pool: Pool, limit: int) -> list[Row]:
    """Return the most recently changed ingests.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return await _fetch(pool, QUERIES["dashboard_ingests"], limit)


async def _fetch(pool: Pool, query: str, *arguments: Any) -> list[Row]:
    rows = await fetched(pool, query, *arguments)
    return [{name: _told(value) for name, value in row.items()} for row in rows]


def _told(value: Any) -> Any:
    return to_ms(value) if isinstance(value, datetime) else value
