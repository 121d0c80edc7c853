"""The number of views of a deck: stored in PostgreSQL, and shown from one key per deck in Redis (R2.42, R2.43).

Invariants. The stored number depends only on the log. The number in Redis is the one that is shown: the stored views
and those whose minute has not ended. It is never below the stored number: every use first raises it to what PostgreSQL
holds, and so refills a key that Redis has lost. A sink raises it to what it stores and never adds to it, so a crash
between the two systems counts no view twice. Only a process that dies between counting a view and producing its event
leaves one view too many, until the key is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import asyncpg

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, reading
from highwater.connectors.redis.keys import PRESENTATION_VIEWS, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.streams.telemetry import get_log

# KEYS: the number; ARGV: what PostgreSQL holds, and what to add. A deck without views gets no key.
_COUNT = """
local found = tonumber(redis.call('GET', KEYS[1]) or '0')
local count = math.max(0, math.max(found, tonumber(ARGV[1])) + tonumber(ARGV[2]))
if count ~= found then redis.call('SET', KEYS[1], string.format('%.0f', count)) end
return count
"""
# Well within the time that Redis has to answer.
_RAISED_AT_ONCE = 1_000
_log = get_log("views")


class DeckOwner(NamedTuple):
    """The organization and the user that a deck belongs to, and its stored views."""

    organization_id: str
    user_id: str
    view_count: int


async def owner_of(pool: asyncpg.Pool[asyncpg.Record], presentation_id: str) -> DeckOwner | None:
    """Return the owner of a deck; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["presentation_owner"], presentation_id)
    return None if row is None else DeckOwner(row["organization_id"], row["user_id"], row["view_count"])


async def store(tx: Connection, counts: Mapping[str, int]) -> dict[str, int]:
    """Add views to the stored ones, by deck; return the new sums."""
    names = sorted(counts)
    rows = await tx.fetch(QUERIES["store_views"], names, [counts[name] for name in names])
    return {row["presentation_id"]: row["view_count"] for row in rows}


class ViewCounts:
    """The numbers in Redis. It may be unavailable: then the stored numbers are shown."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._count = link.script(_COUNT)

    async def add(self, presentation_id: str, stored: int) -> bool:
        """Count one view more than before; return whether that was possible. `stored`: what PostgreSQL holds."""
        return await self._counted(presentation_id, stored, 1) is not None

    async def cancel(self, presentation_id: str) -> None:
        """Subtract a view whose event was not produced."""
        await self._counted(presentation_id, 0, -1)

    async def shown(self, presentation_id: str, stored: int) -> int:
        """Return the number of views; without Redis the stored one."""
        count = await self._counted(presentation_id, stored, 0)
        return stored if count is None else count

    async def _counted(self, presentation_id: str, stored: int, added: int) -> int | None:
        """Return the new number; None: Redis is unavailable."""
        try:
            self._link.require()
            name = key(PRESENTATION_VIEWS, presentation_id=presentation_id)
            return int(await self._link.run(self._count(keys=[name], args=[stored, added])))
        except RedisAwayError as error:
            _log.debug("a view is shown once it is stored", reason=str(error))
            return None

    async def reach(self, stored: Mapping[str, int]) -> None:
        """Raise the numbers to what is stored, by deck."""
        if self._link.client is None:
            return
        names = list(stored)
        for start in range(0, len(names), _RAISED_AT_ONCE):
            calls = [
                ([key(PRESENTATION_VIEWS, presentation_id=name)], [stored[name], 0])
                for name in names[start : start + _RAISED_AT_ONCE]
            ]
            try:
                await self._link.scripted(self._count, calls)
            except RedisAwayError as error:
                _log.debug("numbers of views follow when they are read", reason=str(error))
                return
