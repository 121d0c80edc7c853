"""Builds documents: reads the facts, serializes them, and assigns a new version if the bytes differ.

Invariants. One process builds a document at a time, and it reads the facts after it has locked the document: a build
that began before a change never overwrites one after it (R4.28). Equal bytes keep their version (R4.7), also those of a
deleted document that is built again; an explicit invalidation always assigns a new one. Bytes, version and event are
one transaction. All documents of a build are of one snapshot, and it builds everything that has changed by then
(`connectors/pages/changes.py`).

Before that transaction is committed the new version is announced, and the build waits for every lease on copies in
memory: after anybody can learn of a version (by a page, an event, a position), no older one is served. A process that
dies between the two leaves an announcement that only costs queries, until the next build of the document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import orjson

from highwater.connectors.pages import changes
from highwater.connectors.pages import rows as documents
from highwater.connectors.pages.changes import Moment, one_moment
from highwater.connectors.pages.copies import compress
from highwater.connectors.pages.leases import wait_until_invalidated
from highwater.connectors.pages.versions import bump, version_of_bytes
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redis.link import RedisAwayError
from highwater.connectors.redis.resource_cache import TRUSTED_MS, Head, ResourceCache
from highwater.schemas.codec import Codec
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.pages.kinds import Resource, kept_seconds
from highwater.streams.pages.rules import PageRules
from highwater.streams.pages.windows import Windows
from highwater.streams.telemetry import BUMP_ACKNOWLEDGED_SECONDS, DOCUMENT_LOADS

SOURCE = "/connectors/materializers/documents"
# How long Redis refuses versions older than an announced one: longer than any reader may still hold one.
ANNOUNCED_SECONDS = 30
# How many documents of a family are rebuilt with the requested one; the rest (each page of a rating that anybody ever
# opened) are deleted, and built when they are requested again.
RELATIVES_MADE_MAX = 32


class Built(Protocol):
    """The result of a builder: the bytes, and the position of the newest event behind them (empty = none)."""

    @property
    def payload(self) -> bytes:
        """Return the bytes."""

    @property
    def caused_by(self) -> str:
        """Return the position."""


Builder = Callable[[Connection, str, int], Awaitable["Built | None"]]


class Outcome(StrEnum):
    """The outcome of building a document."""

    KEPT = "kept"  # another process has just built it
    SAME = "same"  # equal bytes
    FIRST = "first"  # it did not exist: nobody serves an older copy
    BUMPED = "bumped"
    GONE = "gone"  # it no longer exists
    NONE = "none"  # it did not exist before either

    @property
    def is_to_be_told(self) -> bool:
        """Return whether somebody may hold a stale copy."""
        return self in (Outcome.BUMPED, Outcome.GONE)


class BuildRequest(NamedTuple):
    """A document to be built or deleted.

    A caller that found a stale one passes its time, `found_built_ms` (0: there was none): a later one, by any process,
    is used unchanged. None: it is built in any case.
    """

    resource: Resource
    reason: str
    is_forced: bool = False
    is_dropped: bool = False
    found_built_ms: int | None = None


class BuildResult(NamedTuple):
    """The result of building a document; without a head if the document does not exist."""

    resource: Resource
    outcome: Outcome
    head: Head | None = None
    payload: bytes | None = None


class _Plan(NamedTuple):
    """The plan for a document: its present state, what was built, and when."""

    wanted: BuildRequest
    outcome: Outcome
    before: documents.Document | None
    built: Built | None
    now_ms: int


class DocumentMaker:
    """Builds documents in a transaction of the caller, and publishes them after it; `builders` build them by kind.

    `rules` define the documents. Code that reads or refreshes documents uses the rules of the maker.
    """

    def __init__(
        self,
        rules: PageRules,
        builders: Mapping[str, Builder],
        codec: Callable[[], Codec],
        cache: ResourceCache,
        clock: Clock,
    ) -> None:
        self.rules = rules
        self._builders = builders
        self._codec = codec
        self._cache = cache
        self._clock = clock

    async def make(
        self, tx: Connection, pool: Any, requests: Sequence[BuildRequest], *, is_alone: bool = False
    ) -> list[BuildResult]:
        """Build documents in a transaction of the caller, together with everything that has changed
        (`changes.note_changes`).

        `pool` gives the connections for reading facts and announcing versions; `is_alone` means that the caller has
        called `changes.hold_alone`. Other built documents follow the requested ones.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        plans = None if is_alone else await self._plan_beside_others(tx, pool, requests)
        if plans is None:
            plans = await self._plan_alone(tx, pool, requests)
        coming = {
            plan.wanted.resource.key: plan.before.head.version + 1
            for plan in plans
            if plan.before is not None and plan.outcome.is_to_be_told
        }
        if coming:
            await self._revoke(pool, coming)
        return [await self._store(tx, plan) for plan in plans]

    async def _plan_beside_others(
        self, tx: Connection, pool: Any, requests: Sequence[BuildRequest]
    ) -> list[_Plan] | None:
        """Plan only these documents; return None without any lock if anything else has changed."""
        beside = tx.transaction()  # a savepoint
        await beside.start()
        try:
            await changes.share(tx)
            await _lock(tx, requests)
            async with one_moment(pool) as moment:
                plans = None if await moment.has_changes() else await self._plans(tx, moment, requests)
        except BaseException:
            await beside.rollback()
            raise
        await (beside.rollback() if plans is None else beside.commit())
        return plans

    async def _plan_alone(self, tx: Connection, pool: Any, requests: Sequence[BuildRequest]) -> list[_Plan]:
        """Plan these documents and everything that changed."""
        await changes.hold_alone(tx)
        async with one_moment(pool) as moment:
            named = {one.resource.key for one in requests}
            changed = await moment.changed()
            keys = [*changed, *await self.relatives(tx, changed)]
            also = [self._also(key, number - len(changed)) for number, key in enumerate(keys) if key not in named]
            # What changed is built, even if the caller found only the age of its document too high.
            both = [one._replace(found_built_ms=None) if one.resource.key in keys else one for one in requests] + also
            await _lock(tx, both)
            plans = await self._plans(tx, moment, both)
            await moment.forget(tx)
        return plans

    def _also(self, key: str, place: int) -> BuildRequest:
        """Return a request for a document that changed, or for the relative of one at index `place`."""
        return BuildRequest(self._known(key), "changed", is_dropped=place >= RELATIVES_MADE_MAX)

    def _known(self, key: str) -> Resource:
        found = self.rules.page_of(key)
        assert found is not None, key  # only documents of the rules were ever stored
        return found

    async def relatives(self, tx: Connection, keys: Collection[str]) -> list[str]:
        """Return the other stored documents of the same families, which are as stale."""
        kinds = {self._known(key).kind for key in keys}
        found = [
            key
            for kind in sorted(kinds, key=lambda kind: kind.name)
            if kind.is_family
            for key in await documents.existing_from(tx, kind.template.split("{id}")[0])
        ]
        return [key for key in found if key not in keys]

    async def _plans(self, tx: Connection, moment: Moment, requests: Sequence[BuildRequest]) -> list[_Plan]:
        now_ms = self._clock()
        return [await self._plan(tx, moment, one, now_ms) for one in requests]

    async def _plan(self, tx: Connection, moment: Moment, request: BuildRequest, now_ms: int) -> _Plan:
        """Plan a document under its lock, by the facts of the snapshot."""
        resource = request.resource
        before = await documents.stored(tx, resource.key, now_ms)
        if before is not None and not request.is_forced and _was_made_after(before.head, request.found_built_ms):
            return _Plan(request, Outcome.KEPT, before, None, now_ms)
        build = self._builders[resource.kind.name]
        built = None if request.is_dropped else await build(moment.connection, resource.id, now_ms)
        if built is None:
            return _Plan(request, Outcome.NONE if before is None else Outcome.GONE, before, None, now_ms)
        if before is None:
            return _Plan(request, Outcome.FIRST, None, built, now_ms)
        is_same = before.payload == built.payload and not request.is_forced
        return _Plan(request, Outcome.SAME if is_same else Outcome.BUMPED, before, built, now_ms)

    async def _revoke(self, pool: Any, coming: Mapping[str, int]) -> None:
        """Before the commit: ensure that no process serves what becomes stale, from memory or from Redis."""
        started = monotonic_seconds()
        await documents.announce(pool, coming)
        for key, version in coming.items():
            with suppress(RedisAwayError):  # `tell` waits for that
                await self._cache.announce(key, version, seconds=ANNOUNCED_SECONDS)
        await wait_until_invalidated(pool)
        BUMP_ACKNOWLEDGED_SECONDS.observe(monotonic_seconds() - started)

    async def _store(self, tx: Connection, plan: _Plan) -> BuildResult:
        resource, before = plan.wanted.resource, plan.before
        DOCUMENT_LOADS.labels(resource.kind.name, plan.outcome.value).inc()
        if plan.outcome is Outcome.GONE:
            await documents.drop(tx, [resource.key])
        if plan.outcome in (Outcome.GONE, Outcome.NONE):
            return BuildResult(resource, plan.outcome)
        if before is not None and not plan.outcome.is_to_be_told:
            if plan.outcome is Outcome.SAME:
                await documents.touch(tx, resource.key, plan.now_ms, form=resource.kind.form)
                before = before._replace(head=replace(before.head, built_ms=plan.now_ms))
            return BuildResult(resource, plan.outcome, *before)
        assert plan.built is not None  # first or bumped documents were built
        is_back = plan.outcome is Outcome.FIRST and not (plan.wanted.is_forced or resource.kind.is_absence_shown)
        known = await version_of_bytes(tx, resource.key, plan.built.payload, plan.now_ms) if is_back else None
        taken = known or await bump(
            tx, self._codec(), resource.key,
            caused_by=plan.built.caused_by, now_ms=plan.now_ms, source=SOURCE, reason=plan.wanted.reason,
            payload=plan.built.payload,
        )  # fmt: skip
        head = replace(taken, built_ms=plan.now_ms)
        await documents.put(tx, resource.key, head.version, plan.built.payload, plan.now_ms, form=resource.kind.form)
        return BuildResult(resource, plan.outcome, head, plan.built.payload)

    async def tell(self, pool: Any, keys: Sequence[str], *, erased: Collection[str] = ()) -> None:
        """Copy bumped documents to Redis once their transaction has ended, after every outcome: the stored state is
        read again.

        Returns when the bump is acknowledged: nothing older is served from now on. Those of `keys` that are in `erased`
        were deleted with their user, and were not announced.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        now_ms = self._clock()
        window_key = self.rules.window.key
        found = await documents.read(pool, [*keys, window_key], now_ms)
        window = found.get(window_key)
        windows = {} if window is None else windows_in(window.payload)
        is_told = True
        for key in keys:
            document, resource = found.get(key), self.rules.page_of(key)
            try:
                if document is not None and resource is not None:
                    head = stamped(self.rules, resource, document.head, windows, now_ms)
                    payload, is_impersonal = compress(document.payload), resource.kind.is_impersonal
                    await self._cache.carry(
                        key, head, payload, ttl_seconds=kept_seconds(resource.kind), is_impersonal=is_impersonal
                    )
                elif document is None and key in erased:
                    await self._cache.forget(key)
            except RedisAwayError:
                is_told = False
        if not is_told:
            # Redis was not updated, perhaps because of one late answer, and others may reach it: wait until its
            # contents are no longer trusted.
            await asyncio.sleep(TRUSTED_MS / 1000)


async def _lock(tx: Connection, requests: Sequence[BuildRequest]) -> None:
    """Lock the documents, in one order for all, or two builds could deadlock."""
    for key in sorted({one.resource.key for one in requests}):
        await documents.lock(tx, key)


def windows_in(payload: bytes) -> Windows:
    """Return the windows by scope in their document."""
    found: Windows = orjson.loads(payload)["windows"]
    return found


def stamped(rules: PageRules, resource: Resource, head: Head, windows: Windows, now_ms: int) -> Head:
    """Return a head with the current `expires_ms` and `stale_until_ms` (R4.8).

    For people who inspect a store: a window may move, so readers judge by `built_ms` and the windows each time (R4.14).
    """
    found = rules.judge(resource, head.built_ms or 0, windows, now_ms)
    return replace(head, expires_ms=found.expires_ms, stale_until_ms=found.stale_until_ms)


def _was_made_after(head: Head, found_built_ms: int | None) -> bool:
    return found_built_ms is not None and (head.built_ms or 0) > found_built_ms
