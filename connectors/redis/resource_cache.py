"""Versions and payloads of resources in Redis.

Invariants. A version never decreases: one script writes, and only newer versions. Nothing is ever counted here: after a
FLUSHALL a version is read from PostgreSQL again. An entry records when it was last verified (`checked_ms`, by the
product's clock), and a reader trusts it for `TRUSTED_MS` from then; so after any loss between a commit and Redis, no
reader gets an old version for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.connectors.redis.keys import RESOURCE_PAYLOAD, RESOURCE_VERSION, resource_key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.connectors.redis.objects import ObjectStore
from highwater.connectors.redis.questions import Questions

# The staleness limit of Redis: two seconds after the version was last read from PostgreSQL.
TRUSTED_MS = 2_000
# How long an unread entry stays: only garbage collection, `checked_ms` decides.
ENTRY_SECONDS = 3_600
# Heads requested in the same turn of the event loop are sent together; more than this would delay the first ones.
BATCH_MAX = 256

_FIELDS = (
    "version",
    "etag",
    "caused_by",
    "checked_ms",
    "basis",
    "expires_ms",
    "built_ms",
    "stale_until_ms",
    "changed_ms",
)

_PUT = """
local held = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
local version = tonumber(ARGV[1])
if version < held then return 0 end
if version > held or redis.call('HGET', KEYS[1], 'etag') ~= ARGV[2] then redis.call('DEL', KEYS[1], KEYS[2]) end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'etag', ARGV[2], unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[1], ARGV[3])
if ARGV[4] ~= '' then redis.call('SET', KEYS[2], ARGV[1] .. '\\n' .. ARGV[4], 'EX', ARGV[3])
else redis.call('EXPIRE', KEYS[2], ARGV[3]) end
return 1
"""

_ANNOUNCE = """
if tonumber(ARGV[1]) <= tonumber(redis.call('HGET', KEYS[1], 'version') or '-1') then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'version', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a resource: everything except its payload.

    `basis` is the version of the resource that this one was built from, None for one that is built from nothing else.
    `built_ms`, `expires_ms` and `stale_until_ms` are when it was built, when its TTL ends and until when it may be
    served while a newer one is built, by the product's clock; None for a resource that only ends with its next version.
    `changed_ms` is when this version was built: later builds with equal bytes do not change it. None in copies of an
    earlier release.
    """

    version: int
    etag: str
    caused_by: str
    checked_ms: int
    basis: int | None = None
    expires_ms: int | None = None
    built_ms: int | None = None
    stale_until_ms: int | None = None
    changed_ms: int | None = None

    def is_trusted(self, now_ms: int) -> bool:
        """Return whether it was verified recently enough; a time in the future means that the clock was moved."""
        return 0 <= now_ms - self.checked_ms <= TRUSTED_MS


class ResourceCache:
    """Versions and payloads of served resources. `payloads` is the template of the keys that hold payloads.

    Large ones without user data (`is_impersonal`) are in `objects`, if there is an object storage, and Redis has a
    pointer.
    """

    def __init__(self, link: RedisLink, payloads: str = RESOURCE_PAYLOAD, objects: ObjectStore | None = None) -> None:
        self._link = link
        self._objects = objects
        self._payloads = payloads
        self._put = link.script(_PUT)
        self._announce = link.script(_ANNOUNCE)
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]] = []
        self._questions = Questions(self._take, "redis-heads")

    @property
    def is_up(self) -> bool:
        """Return whether a call is worth a try."""
        return self._link.is_up

    async def put(
        self,
        resource: str,
        head: Head,
        payload: bytes | None = None,
        *,
        ttl_seconds: int = ENTRY_SECONDS,
        is_impersonal: bool = False,
    ) -> bool:
        """Store a version with its payload; return False if Redis holds a newer one or is unavailable.

        The latter is not an error: what is not in Redis is read from PostgreSQL.
        """
        try:
            return await self.carry(resource, head, payload, ttl_seconds=ttl_seconds, is_impersonal=is_impersonal)
        except RedisAwayError:
            return False

    async def carry(
        self,
        resource: str,
        head: Head,
        payload: bytes | None = None,
        *,
        ttl_seconds: int = ENTRY_SECONDS,
        is_impersonal: bool = False,
    ) -> bool:
        """Store as `put`, for callers that must know that Redis holds nothing older any more.

        Raises:
            RedisAwayError: it may still hold an older version, perhaps because a single answer was late.
        """
        self._link.require()
        told = [(name, getattr(head, name)) for name in _FIELDS[2:]]
        fields = [part for name, value in told if value is not None for part in (name, value)]
        held = payload or b""
        if self._objects is not None and is_impersonal:
            held = await self._objects.shorten(resource, head.version, held)
        args = [head.version, head.etag, ttl_seconds, held, *fields]
        return bool(await self._link.run(self._put(keys=self._keys(resource), args=args)))

    async def announce(self, resource: str, version: int, *, seconds: int) -> None:
        """Delete a resource from Redis because a new version is coming, or none exists; older ones are refused for this
        long.

        Raises:
            RedisAwayError: an older one may still exist.
        """
        self._link.require()
        await self._link.run(self._announce(keys=self._keys(resource), args=[version, seconds]))

    async def forget(self, resource: str) -> None:
        """Delete a resource from Redis: its owner was erased, and its payload must be deleted too.

        Raises:
            RedisAwayError: it may still exist.
        """
        await self._link.run(self._link.require().delete(*self._keys(resource)))

    def _keys(self, resource: str) -> list[str]:
        return [self._key(RESOURCE_VERSION, resource), self._key(self._payloads, resource)]

    def _key(self, template: str, resource: str) -> str:
        return resource_key(template, resource, is_cluster=self._link.is_cluster)

    async def heads(self, resources: Sequence[str]) -> list[Head | None]:
        """Return the heads of resources in Redis, in one round trip shared with concurrent callers.

        None for missing ones; all None if Redis is unavailable.
        """
        return await self.ask_heads(resources)

    def ask_heads(self, resources: Sequence[str]) -> asyncio.Future[list[Head | None]]:
        """Return a future of `heads`, for a caller that does not wait."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Head | None]] = loop.create_future()
        if not self._link.is_up:
            future.set_result([None] * len(resources))
            return future
        self._waiting.append((resources, future))
        self._questions.wait(is_full=len(self._waiting) >= BATCH_MAX)
        return future

    def _take(self) -> Coroutine[Any, Any, None] | None:
        waiting, self._waiting = self._waiting, []
        return self._flush(waiting) if waiting else None

    async def _flush(self, waiting: list[tuple[Sequence[str], asyncio.Future[list[Head | None]]]]) -> None:
        # A resource that several callers request is read once.
        asked = list(dict.fromkeys(resource for resources, _ in waiting for resource in resources))
        try:
            rows = await self._link.replies(
                [("HMGET", self._key(RESOURCE_VERSION, resource), *_FIELDS) for resource in asked]
            )
            found = {resource: _head(row) for resource, row in zip(asked, rows, strict=True)}
        except RedisAwayError:
            found = {}
        for resources, future in waiting:
            if not future.done():  # the client may have disconnected meanwhile
                future.set_result([found.get(resource) for resource in resources])

    async def payload(self, resource: str, version: int) -> bytes | None:
        """Return the payload of exactly this version; None if Redis does not hold it."""
        if not self._link.is_up:
            return None
        try:
            found = await self._link.run(self._link.client.get(self._key(self._payloads, resource)))
        except RedisAwayError:
            return None
        prefix = b"%d\n" % version
        if found is None or not found.startswith(prefix):
            return None
        held = bytes(found[len(prefix) :])
        return held if self._objects is None else await self._objects.restore(version, held)


def _head(row: Sequence[bytes | None] | Exception) -> Head | None:
    if isinstance(row, Exception):
        return None  # one key of another type must not hide the others
    version, etag, caused_by, checked_ms, *times = row
    if version is None or etag is None or caused_by is None or checked_ms is None:
        return None
    basis, expires_ms, built_ms, stale_until_ms, changed_ms = (None if value is None else int(value) for value in times)
    return Head(
        version=int(version),
        etag=etag.decode(),
        caused_by=caused_by.decode(),
        checked_ms=int(checked_ms),
        basis=basis,
        expires_ms=expires_ms,
        built_ms=built_ms,
        stale_until_ms=stale_until_ms,
        changed_ms=changed_ms,
    )
