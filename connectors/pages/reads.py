"""Reads documents: from memory under a lease, from Redis, from PostgreSQL, or rebuilt when they are too old.

Invariants. A copy in memory is served without a query only under the lease (`connectors/pages/leases.py`); a copy in
Redis for two seconds after its version was read from PostgreSQL. A document past its TTL is served for its stale TTL
while one process rebuilds it (R4.27, R4.28); after that the winner of the lock builds it within two seconds, and the
others must retry (R4.29). A read with positions is always built from the facts. When PostgreSQL is unavailable,
known documents are served, marked stale, until their stale TTL ends (stale-if-error), and nothing afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.pages import rows as documents
from highwater.connectors.pages.copies import COPIES_MAX, IDENTITY, Copies, compress, decompress
from highwater.connectors.pages.leases import CopyLease
from highwater.connectors.pages.maker import BuildRequest, DocumentMaker, Outcome, stamped, windows_in
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.postgres.shared_reads import FollowingReads
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import Clock
from highwater.streams.pages.kinds import CacheOptions, Resource, kept_seconds
from highwater.streams.pages.refresh import Freshness, Refresh
from highwater.streams.pages.windows import Windows
from highwater.streams.telemetry import DOCUMENT_READS, get_log

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# How long the winner of the lock may delay its reader (R4.29).
ANSWER_SECONDS_MAX = 2.0
# Concurrent builds in a process: each holds a connection of the pool and briefly needs a second one.
MAKING_MAX = 6
# Attempts of one process for one document: a store that changes faster than it can be read is a fault.
ATTEMPTS_MAX = 3
# How long a document found fresh counts as fresh without another check; a quarter of a second beside TTLs of 4 s and
# more.
KNOWN_MS = 250

_log = get_log("documents")


class NoSuchDocumentError(HighwaterError):
    """There is no such document. Check the identifier."""


class DocumentPendingError(UnavailableError):
    """The document is being built. Try again in a second."""


class Served(NamedTuple):
    """A document to be served: its head, its freshness, and for how long."""

    head: Head
    freshness: Freshness
    options: CacheOptions
    age_seconds: int
    stale_left_seconds: int


class _KnownFresh(NamedTuple):
    """A result that remains valid for a moment, while the head is the same."""

    head: Head
    served: Served
    at_ms: int
    until_ms: int


class Documents:
    """Documents as this process reads them, by the rules of their maker."""

    def __init__(
        self,
        maker: DocumentMaker,
        *,
        pool: Callable[[], Pool],
        cache: ResourceCache,
        copies: Copies,
        lease: CopyLease,
        locks: RegenerationLocks,
        clock: Clock,
    ) -> None:
        self._maker = maker
        self._rules = maker.rules
        self._window = maker.rules.window
        self._pool = pool
        self._cache = cache
        self._copies = copies
        self._lease = lease
        self._locks = locks
        self._clock = clock
        self._heads: FollowingReads[Head | None] = FollowingReads()
        self._making: dict[str, asyncio.Task[Head]] = {}
        self._slots = asyncio.Semaphore(MAKING_MAX)
        self._windows: tuple[int, Windows] | None = None
        self._known_fresh: dict[str, _KnownFresh] = {}

    def start(self) -> None:
        """Hold the lease on the copies from now on."""
        self._lease.start()

    async def close(self) -> None:
        """End the lease and running builds; the next reader begins them again."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lease.close()

    def page_of(self, key: str) -> Resource | None:
        """Return the document that a key names; None if it names none."""
        return self._rules.page_of(key)

    # -- reading -----------------------------------------------------------------------------------------------------

    def quick(self, found: Resource) -> Served | None:
        """Return a fresh document from memory, under the lease; None if anything has to be queried."""
        if not self._lease.use():
            return None
        copy, window = self._copies.get(found.key), self._copies.get(self._window.key)
        if copy is None or window is None or not (copy.is_verified and window.is_verified):
            return None
        now_ms = self._clock()
        known = self._known_fresh.get(found.key)
        if known is not None and known.head is copy.head and known.at_ms <= now_ms < known.until_ms:
            return known.served
        windows = self._windows
        if windows is None or windows[0] != window.head.version or not self._is_fresh(window.head, now_ms):
            return None
        served = self._answer(found, copy.head, windows[1])
        if served.freshness is not Freshness.FRESH:
            return None
        if len(self._known_fresh) >= COPIES_MAX:
            self._known_fresh.clear()
        self._known_fresh[found.key] = _KnownFresh(copy.head, served, now_ms, now_ms + KNOWN_MS)
        return served

    async def near(self, found: Resource) -> Served | None:
        """Return a fresh document from memory, or with one query to Redis; None if that is not enough."""
        served = self.quick(found)
        if served is not None:
            DOCUMENT_READS.labels(found.kind.name, "memory").inc()
            return served
        now_ms = self._clock()
        head, window = await self._cache.heads([found.key, self._window.key])
        windows = self._windows
        if head is None or window is None or windows is None or windows[0] != window.version:
            return None
        if not (head.is_trusted(now_ms) and window.is_trusted(now_ms) and self._is_fresh(window, now_ms)):
            return None
        served = self._answer(found, head, windows[1])
        if head.built_ms is None or served.freshness is not Freshness.FRESH:
            return None
        self._copies.put(self._window.key, window)
        self._copies.put(found.key, head)
        DOCUMENT_READS.labels(found.kind.name, "redis").inc()
        return served

    async def read(self, found: Resource, *, is_positioned: bool = False) -> Served:
        """Return a document as it may be served now; with positions, built from the current facts.

        Raises:
            NoSuchDocumentError: it does not exist.
            DocumentPendingError: another process is building it and there is no earlier one.
            UnavailableError: PostgreSQL is unavailable and no known version may be served.
        """
        if not is_positioned:
            served = await self.near(found)
            if served is not None:
                return served
        windows = {} if found.kind is self._window.kind else await self.windows()
        if is_positioned:
            async with self._slots:
                made = await self._make(found, "read with a position", found_built_ms=None)
            return self._answer(found, made, windows)
        try:
            head = await self._head(found)
        except UnavailableError:
            return await self._kept(found, windows)
        if head is None:
            return await self._first(found, 0, windows)
        served = self._answer(found, head, windows)
        if served.freshness is Freshness.COLD:
            return await self._first(found, head.built_ms or 0, windows)
        if served.freshness is Freshness.STALE:
            self._begin(found, head.built_ms or 0)
        return served

    def body(self, found: Resource, head: Head, encoding: str) -> bytes | None:
        """Return the body of exactly this version from memory; None without one."""
        return self._copies.body(found.key, head.version, encoding)

    async def payload(self, found: Resource, head: Head, encoding: str) -> bytes | None:
        """Return the body of exactly this version; None if it was overtaken meanwhile."""
        key = found.key
        body = self.body(found, head, encoding)
        if body is not None:
            return body
        cached = await self._cache.payload(key, head.version)
        identity = None if cached is None else decompress(cached)
        if identity is None:
            stored = (await documents.read(self._pool(), [key], self._clock())).get(key)
            if stored is None:
                return None
            identity = stored.payload
            # A newer one too: a promoted replica of Redis may have returned the one before, and the next read queries
            # it again.
            await self._cache.put(
                key,
                stored.head,
                compress(identity),
                ttl_seconds=kept_seconds(found.kind),
                is_impersonal=found.kind.is_impersonal,
            )
            if stored.head.version != head.version:
                return None
        self._copies.put(key, head, identity)
        return self._copies.body(key, head.version, encoding)

    async def windows(self) -> Windows:
        """Return the windows by scope; the last known ones while PostgreSQL is unavailable."""
        for _ in range(ATTEMPTS_MAX):
            try:
                served = await self.read(self._window)
                if self._windows is not None and self._windows[0] == served.head.version:
                    return self._windows[1]
                body = await self.payload(self._window, served.head, IDENTITY)
            except UnavailableError:
                return {} if self._windows is None else self._windows[1]
            if body is not None:
                self._windows = (served.head.version, windows_in(body))
        return {} if self._windows is None else self._windows[1]

    def _answer(self, found: Resource, head: Head, windows: Windows) -> Served:
        now_ms = self._clock()
        return _served(head, self._rules.judge(found, head.built_ms or 0, windows, now_ms), now_ms)

    def _is_fresh(self, window: Head, now_ms: int) -> bool:
        """Return whether the windows may be used; their own page has no window."""
        return self._rules.judge(self._window, window.built_ms or 0, {}, now_ms).freshness is Freshness.FRESH

    async def _head(self, found: Resource) -> Head | None:
        """Return the current head: from Redis while it is trusted, else from PostgreSQL; None if nothing is stored."""
        key, now_ms = found.key, self._clock()
        head = (await self._cache.heads([key]))[0]
        if head is not None and head.built_ms is not None and head.is_trusted(now_ms):
            DOCUMENT_READS.labels(found.kind.name, "redis").inc()
            self._copies.put(key, head)
            return head

        async def ask() -> Head | None:
            asked_ms = self._clock()
            found_head = await documents.read_head(self._pool(), key, asked_ms)
            if found_head is not None:
                self._copies.put(key, found_head)
                windows = {} if self._windows is None else self._windows[1]
                stamp = stamped(self._rules, found, found_head, windows, asked_ms)
                await self._cache.put(key, stamp, ttl_seconds=kept_seconds(found.kind))
            return found_head

        DOCUMENT_READS.labels(found.kind.name, "postgres").inc()
        return await self._heads.read(key, ask)

    async def _kept(self, found: Resource, windows: Windows) -> Served:
        """Return the known version while its stale TTL lasts: PostgreSQL is unavailable."""
        known = [head for head in await self._cache.heads([found.key]) if head is not None]
        copy = self._copies.get(found.key)
        if copy is not None:
            known.append(copy.head)
        for head in sorted(known, key=lambda one: one.version, reverse=True):
            served = self._answer(found, head, windows)
            if served.freshness is not Freshness.COLD:
                DOCUMENT_READS.labels(found.kind.name, "kept").inc()
                return served._replace(freshness=Freshness.KEPT)
        raise UnavailableError("PostgreSQL is unavailable, and no copy is good enough to be served")

    # -- building ----------------------------------------------------------------------------------------------------

    async def _first(self, found: Resource, built_ms: int, windows: Windows) -> Served:
        """Build the first version, or report that another process does: nothing can be served."""
        task = self._begin(found, built_ms)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS_MAX)
        if not done:
            raise DocumentPendingError
        return self._answer(found, task.result(), windows)

    def _begin(self, found: Resource, built_ms: int) -> asyncio.Task[Head]:
        """Join the running regeneration in this process, or begin one; it continues without its callers.

        `built_ms` is the time of the stale one, 0 without one.
        """
        task = self._making.get(found.key)
        if task is None:
            task = asyncio.create_task(self._regenerate(found, built_ms), name="regeneration")
            self._making[found.key] = task
            task.add_done_callback(lambda done: self._ended(found.key, done))
        return task

    def _ended(self, key: str, task: asyncio.Task[Head]) -> None:
        self._making.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, DocumentPendingError | NoSuchDocumentError):
            _log.warning("document_not_made", key=key, reason=str(error) or type(error).__name__)

    async def _regenerate(self, found: Resource, built_ms: int) -> Head:
        async with self._slots, self._locks.hold(found.key) as is_mine:
            if not is_mine:
                raise DocumentPendingError
            return await self._make(found, "expiry", found_built_ms=built_ms)

    async def _make(self, found: Resource, reason: str, *, found_built_ms: int | None) -> Head:
        async with transaction(self._pool()) as tx:
            made = await self._maker.make(
                tx, self._pool(), [BuildRequest(found, reason, found_built_ms=found_built_ms)]
            )
        windows = {} if self._windows is None else self._windows[1]
        for one in made:
            if one.head is not None:
                self._copies.put(one.resource.key, one.head, one.payload)
        told = [one.resource.key for one in made if one.outcome.is_to_be_told]
        if told:
            await self._maker.tell(self._pool(), told)
        for one in made:
            if one.head is not None and not one.outcome.is_to_be_told:
                kind = one.resource.kind
                head = stamped(self._rules, one.resource, one.head, windows, self._clock())
                # The head alone keeps the payload of the same version that Redis has; of a first one it has none.
                payload = one.payload if one.outcome is Outcome.FIRST else None
                await self._cache.put(
                    one.resource.key,
                    head,
                    None if payload is None else compress(payload),
                    ttl_seconds=kept_seconds(kind),
                    is_impersonal=kind.is_impersonal,
                )
        first = made[0].head
        if first is None:
            raise NoSuchDocumentError(
                f"there is no {found.kind.of} {found.id!r}" if found.id else f"there is no {found.kind.about}"
            )
        return first


def _served(head: Head, life: Refresh, now_ms: int) -> Served:
    age_seconds = max(0, now_ms - (head.built_ms or 0)) // 1000
    stale_left_seconds = max(0, life.stale_until_ms - now_ms) // 1000
    return Served(head, life.freshness, life.options, age_seconds, stale_left_seconds)
