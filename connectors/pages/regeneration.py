"""One regeneration of a document over all processes (R4.28): a lock in Redis with its owner's token.

Invariant: a lock that ran out is nobody's, and only its owner takes it away. It spares work and guards nothing: what is stored is
guarded by PostgreSQL (`connectors/pages/maker.py`), so that without Redis every process may try and one of them
does the work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from highwater.connectors.redis.keys import DOCUMENT_LOCK, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.streams.clock import fresh_id
from highwater.streams.pages.kinds import LOCK_SECONDS

_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RegenerationLocks:
    """Locks of documents."""

    def __init__(self, link: RedisLink, *, seconds: int = LOCK_SECONDS) -> None:
        self._link = link
        self._seconds = seconds
        self._release = link.script(_RELEASE)

    @asynccontextmanager
    async def hold(self, document: str) -> AsyncIterator[bool]:
        """Hold the lock if it is free; gives whether the work is ours. Redis away: it is, and PostgreSQL sorts it out."""
        name, token = key(DOCUMENT_LOCK, key=document), fresh_id()
        try:
            client = self._link.require()
            is_mine = bool(await self._link.run(client.set(name, token, nx=True, ex=self._seconds)))
        except RedisAwayError:
            yield True
            return
        try:
            yield is_mine
        finally:
            if is_mine:
                with suppress(RedisAwayError):  # it runs out by itself
                    await self._link.run(self._release(keys=[name], args=[token]))
