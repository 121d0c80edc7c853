"""Views of decks that are not stored yet: a number per deck in Redis, added to the one in PostgreSQL (R2.42, R2.43).

Invariants. The stored number depends only on the log; the number in Redis only makes a view visible before its window
is stored, and is never below 0. It is increased before its event is produced and decreased with the event's window, so
a crash between two systems delays a view by a window. Only a process that dies between increasing and producing leaves
one view too many.
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

# Never below 0: events that other producers wrote to the topic, and those from before Redis was emptied, were not added
# here.
_LOWER = """
local left = tonumber(redis.call('GET', KEYS[1]) or '0') - tonumber(ARGV[1])
if left > 0 then redis.call('SET', KEYS[1], left) else redis.call('DEL', KEYS[1]) end
return left
"""
# Well within the time that Redis has to answer.
_LOWERED_AT_ONCE = 1_000
_log = get_log("views")


class DeckOwner(NamedTuple):
    """The organization and the user that a deck belongs to."""

    organization_id: str
    user_id: str


async def owner_of(pool: asyncpg.Pool[asyncpg.Record], presentation_id: str) -> DeckOwner | None:
    """Return the owner of a deck; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["presentation_owner"], presentation_id)
    return None if row is None else DeckOwner(row["organization_id"], row["user_id"])


async def store(tx: Connection, counts: Mapping[str, int]) -> None:
    """Add views to the stored ones, by deck."""
    names = sorted(counts)
    await tx.execute(QUERIES["store_views"], names, [counts[name] for name in names])


class ViewDeltas:
    """The numbers in Redis. It may be unavailable: then views are shown once they are stored."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._lower = link.script(_LOWER)

    async def raised(self, presentation_id: str) -> bool:
        """Show one view more; return whether that was possible."""
        try:
            await self._link.run(self._link.require().incr(key(PRESENTATION_VIEWS, presentation_id=presentation_id)))
        except RedisAwayError as error:
            _log.debug("a view is shown once it is stored", reason=str(error))
            return False
        return True

    async def lower(self, counts: Mapping[str, int]) -> None:
        """Subtract stored or cancelled views, by deck."""
        if self._link.client is None:
            return
        names = list(counts)
        for start in range(0, len(names), _LOWERED_AT_ONCE):
            try:
                pipeline = self._link.require().pipeline(transaction=False)
                for name in names[start : start + _LOWERED_AT_ONCE]:
                    await self._lower(
                        keys=[key(PRESENTATION_VIEWS, presentation_id=name)], args=[counts[name]], client=pipeline
                    )
                await self._link.run(pipeline.execute(raise_on_error=False))
            except RedisAwayError as error:
                _log.warning("stored views may be shown twice until Redis is emptied", reason=str(error))
                return

    async def of(self, presentation_id: str) -> int:
        """Return the number of views not stored yet; 0 while it is unknown."""
        try:
            found = await self._link.run(
                self._link.require().get(key(PRESENTATION_VIEWS, presentation_id=presentation_id))
            )
        except RedisAwayError:
            return 0
        return max(0, int(found or 0))
