"""What the API reads about leagues besides documents: the season of a match, the list of seasons, counters of the database."""

from __future__ import annotations

from typing import Any, NamedTuple

import asyncpg

from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import fetched
from highwater.streams.clock import to_ms

# A statement that takes this long on average is slow: a read of a page takes a few milliseconds.
SLOW_MS = 1_000.0


class Seasons(NamedTuple):
    """A page of the seasons, their number, and the position of the event behind the newest ("" without any)."""

    page: list[str]
    known: int
    caused_by: str


class KnownMatch(NamedTuple):
    """The season of a match, which orders its events, and its kickoff in ms since 1970."""

    season: str
    kickoff_ms: int


class SeasonNames(NamedTuple):
    """The teams and the rounds of a season."""

    teams: frozenset[str]
    rounds: frozenset[str]


class DatabaseCounters(NamedTuple):
    """PostgreSQL's counters. `slow_statements`: those above `SLOW_MS` on average, None if it does not measure
    statements; `slow_now`: those running longer than that now.
    """

    transactions: int
    lock_waits: int
    slow_statements: int | None
    slow_now: int = 0


async def match_of(pool: Any, match_id: str) -> KnownMatch | None:
    """Return what a write needs to know about a match; None if there is no such match.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["match_of_write"], match_id)
    return KnownMatch(rows[0]["season"], to_ms(rows[0]["kickoff"])) if rows else None


async def names_of(pool: Any, season: str) -> SeasonNames | None:
    """Return the names in the matches of a season; None without a match.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["names_of_season"], season)
    teams = frozenset(row[side] for row in rows for side in ("home", "away"))
    return SeasonNames(teams, frozenset(row["round"] for row in rows)) if rows else None


async def version_of(pool: Any, key: str) -> int:
    """Return the last version of a resource, also of a deleted one; 0 if it never had one.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return int(await _value(pool, QUERIES["version_of_resource"], key) or 0)


async def seasons(pool: Any, after: str, limit: int) -> Seasons:
    """Return seasons in order, after `after`.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["seasons_after"], after, limit)
    page = [row["season"] for row in rows if row["season"] is not None]
    return Seasons(page, rows[0]["seasons"], rows[0]["position"] or "")


async def counters(pool: Any) -> DatabaseCounters:
    """Return the counters of this database.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    (row,) = await fetched(pool, QUERIES["database_counters"], SLOW_MS)
    slow = await _slow_statements(pool) if row["has_statements"] else None
    return DatabaseCounters(row["transactions"], row["lock_waits"], slow, row["slow_now"])


async def _slow_statements(pool: Any) -> int | None:
    try:
        return int(await _value(pool, QUERIES["slow_statements"], SLOW_MS))
    except (
        asyncpg.ObjectNotInPrerequisiteStateError,
        asyncpg.InsufficientPrivilegeError,
        asyncpg.UndefinedColumnError,
    ):
        return None  # the extension exists without its library, may not be read by us, or predates mean_exec_time


async def _value(pool: Any, query: str, argument: Any) -> Any:
    rows = await fetched(pool, query, argument)
    return rows[0][0] if rows else None
