"""Limits the regeneration of a document to one over all processes (R4.28): a lock in Redis with its owner's token.

Invariant: an expired lock has no owner, and only its owner deletes it. It saves work and protects nothing:
PostgreSQL protects what is stored (`connectors/pages/maker.py`), so that without Redis every process may try and one of
them does the work.
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
        """Hold the lock if it is free; yield whether the work is ours. If Redis is unavailable it is, and PostgreSQL decides."""
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
                with suppress(RedisAwayError):  # it expires by itself
                    await self._link.run(self._release(keys=[name], args=[token]))
