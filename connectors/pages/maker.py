"""The making of documents: read the facts, make the bytes, and give them a version when they differ.

Invariants. One maker of a document at a time over all processes, and it reads the facts after it has the document to itself:
what was begun before a change never overwrites what was made after it (R4.28). The same bytes keep their version (R4.7), also
those of a document that was taken away and is made again; an explicit invalidation takes a new one whatever they are. Bytes,
version and the event that tells of it are one transaction. All documents of a making are of one moment, and with one of them
everything is made that has changed by then (`connectors/pages/changes.py`).

Before that transaction is committed the coming version is announced, and every lease on copies in memory is waited for: whoever
learns of a version in any way (a page, an event, a position), nobody serves an older one after it. A maker that dies between the
two leaves an announcement that only costs questions, until the document is made the next time.
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
from highwater.connectors.pages.leases import wait_until_told
from highwater.connectors.pages.versions import bump, version_of_bytes
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redis.link import TRUSTED_MS, Head, RedisAwayError, ResourceCache
from highwater.schemas.codec import Codec
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.pages.kinds import Resource
from highwater.streams.pages.rules import PageRules
from highwater.streams.pages.windows import Windows
from highwater.streams.telemetry import BUMP_ACKNOWLEDGED_SECONDS, DOCUMENT_LOADS

SOURCE = "/connectors/materializers/documents"
# An entry in Redis outlives the longest life and stale life of a document: garbage collection only.
ENTRY_SECONDS_MAX = 8 * 86_400
# How long Redis refuses what is older than an announced version: longer than a reader may still be under way with it.
ANNOUNCED_SECONDS = 30
# Of a family so many are made anew with the one that is wanted; the rest (each page of a rating that anybody ever turned to) are
# taken away, and made when somebody asks for one again.
RELATIVES_MADE_MAX = 32


class Built(Protocol):
    """What a builder gives: the bytes, and the position of the newest event that they come from (empty = none)."""

    @property
    def payload(self) -> bytes:
        """The bytes."""

    @property
    def caused_by(self) -> str:
        """The position."""


Builder = Callable[[Connection, str, int], Awaitable["Built | None"]]


class Outcome(StrEnum):
    """The outcome of building a document."""

    KEPT = "kept"  # somebody else has just made it
    SAME = "same"  # the same bytes
    FIRST = "first"  # it was not there: nobody serves an older copy
    BUMPED = "bumped"
    GONE = "gone"  # there is no such thing any more
    NONE = "none"  # nor was there before

    @property
    def is_to_be_told(self) -> bool:
        """Whether somebody may hold a copy that is old now."""
        return self in (Outcome.BUMPED, Outcome.GONE)


class Wanted(NamedTuple):
    """A document to be made, or taken away.

    Whoever found it too old says when that one was made, `found_built_ms` (0: there was none): one made later, by whoever,
    is taken as it is. None: it is made in any case.
    """

    resource: Resource
    reason: str
    is_forced: bool = False
    is_dropped: bool = False
    found_built_ms: int | None = None


class Made(NamedTuple):
    """The result of building a document; without a head if the document does not exist."""

    resource: Resource
    outcome: Outcome
    head: Head | None = None
    payload: bytes | None = None


class _Plan(NamedTuple):
    """What is to become of a document: what it is now, what was built, and when."""

    wanted: Wanted
    outcome: Outcome
    before: documents.Document | None
    built: Built | None
    now_ms: int


class DocumentMaker:
    """Makes documents in a transaction of the caller's, and tells of them after it; `builders` make them by kind.

    `rules` say which there are. Whoever reads or refreshes documents takes the rules of the maker.
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

    async def make(self, tx: Connection, pool: Any, wanted: Sequence[Wanted], *, is_alone: bool = False) -> list[Made]:
        """Make documents in a transaction of the caller's, and with them everything that has changed (`changes.note_changes`).

        `pool` gives the connections on which facts are read and versions are announced before; `is_alone` says that the caller
        has called `changes.hold_alone`. What was made besides comes after what was wanted.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        plans = None if is_alone else await self._plan_beside_others(tx, pool, wanted)
        if plans is None:
            plans = await self._plan_alone(tx, pool, wanted)
        coming = {
            plan.wanted.resource.key: plan.before.head.version + 1
            for plan in plans
            if plan.before is not None and plan.outcome.is_to_be_told
        }
        if coming:
            await self._revoke(pool, coming)
        return [await self._store(tx, plan) for plan in plans]

    async def _plan_beside_others(self, tx: Connection, pool: Any, wanted: Sequence[Wanted]) -> list[_Plan] | None:
        """What becomes of these documents alone; None if anything else has changed, and then no lock is held any more."""
        beside = tx.transaction()  # a savepoint
        await beside.start()
        try:
            await changes.share(tx)
            await _lock(tx, wanted)
            async with one_moment(pool) as moment:
                plans = None if await moment.has_changes() else await self._plans(tx, moment, wanted)
        except BaseException:
            await beside.rollback()
            raise
        await (beside.rollback() if plans is None else beside.commit())
        return plans

    async def _plan_alone(self, tx: Connection, pool: Any, wanted: Sequence[Wanted]) -> list[_Plan]:
        """What becomes of these documents and of all that changed."""
        await changes.hold_alone(tx)
        async with one_moment(pool) as moment:
            named = {one.resource.key for one in wanted}
            changed = await moment.changed()
            keys = [*changed, *await self.relatives(tx, changed)]
            also = [self._also(key, number - len(changed)) for number, key in enumerate(keys) if key not in named]
            # What changed is made, also by whoever has found one of them too old only by its age.
            both = [one._replace(found_built_ms=None) if one.resource.key in keys else one for one in wanted] + also
            await _lock(tx, both)
            plans = await self._plans(tx, moment, both)
            await moment.forget(tx)
        return plans

    def _also(self, key: str, place: int) -> Wanted:
        """A document that changed, or the relative of one in its `place` from 0."""
        return Wanted(self._known(key), "changed", is_dropped=place >= RELATIVES_MADE_MAX)

    def _known(self, key: str) -> Resource:
        found = self.rules.page_of(key)
        assert found is not None, key  # only what the rules name was ever stored
        return found

    async def relatives(self, tx: Connection, keys: Collection[str]) -> list[str]:
        """The other stored documents of the families of these, as old as those."""
        kinds = {self._known(key).kind for key in keys}
        found = [
            key
            for kind in sorted(kinds, key=lambda kind: kind.name)
            if kind.is_family
            for key in await documents.existing_from(tx, kind.template.split("{id}")[0])
        ]
        return [key for key in found if key not in keys]

    async def _plans(self, tx: Connection, moment: Moment, wanted: Sequence[Wanted]) -> list[_Plan]:
        now_ms = self._clock()
        return [await self._plan(tx, moment, one, now_ms) for one in wanted]

    async def _plan(self, tx: Connection, moment: Moment, wanted: Wanted, now_ms: int) -> _Plan:
        """What becomes of a document that nobody else makes, by the facts of the moment."""
        resource = wanted.resource
        before = await documents.stored(tx, resource.key, now_ms)
        if before is not None and not wanted.is_forced and _was_made_after(before.head, wanted.found_built_ms):
            return _Plan(wanted, Outcome.KEPT, before, None, now_ms)
        build = self._builders[resource.kind.name]
        built = None if wanted.is_dropped else await build(moment.connection, resource.id, now_ms)
        if built is None:
            return _Plan(wanted, Outcome.NONE if before is None else Outcome.GONE, before, None, now_ms)
        if before is None:
            return _Plan(wanted, Outcome.FIRST, None, built, now_ms)
        is_same = before.payload == built.payload and not wanted.is_forced
        return _Plan(wanted, Outcome.SAME if is_same else Outcome.BUMPED, before, built, now_ms)

    async def _revoke(self, pool: Any, coming: Mapping[str, int]) -> None:
        """Before anything is committed: see to it that nobody serves what is about to be old, from memory or from Redis."""
        started = monotonic_seconds()
        await documents.announce(pool, coming)
        for key, version in coming.items():
            with suppress(RedisAwayError):  # `tell` waits for that
                await self._cache.announce(key, version, seconds=ANNOUNCED_SECONDS)
        await wait_until_told(pool)
        BUMP_ACKNOWLEDGED_SECONDS.observe(monotonic_seconds() - started)

    async def _store(self, tx: Connection, plan: _Plan) -> Made:
        resource, before = plan.wanted.resource, plan.before
        DOCUMENT_LOADS.labels(resource.kind.name, plan.outcome.value).inc()
        if plan.outcome is Outcome.GONE:
            await documents.drop(tx, [resource.key])
        if plan.outcome in (Outcome.GONE, Outcome.NONE):
            return Made(resource, plan.outcome)
        if before is not None and not plan.outcome.is_to_be_told:
            if plan.outcome is Outcome.SAME:
                await documents.touch(tx, resource.key, plan.now_ms)
                before = before._replace(head=replace(before.head, built_ms=plan.now_ms))
            return Made(resource, plan.outcome, *before)
        assert plan.built is not None  # what is first or bumped was built
        is_back = plan.outcome is Outcome.FIRST and not (plan.wanted.is_forced or resource.kind.is_absence_shown)
        known = await version_of_bytes(tx, resource.key, plan.built.payload, plan.now_ms) if is_back else None
        taken = known or await bump(
            tx, self._codec(), resource.key,
            caused_by=plan.built.caused_by, now_ms=plan.now_ms, source=SOURCE, reason=plan.wanted.reason,
            payload=plan.built.payload,
        )  # fmt: skip
        head = replace(taken, built_ms=plan.now_ms)
        await documents.put(tx, resource.key, head.version, plan.built.payload, plan.now_ms)
        return Made(resource, plan.outcome, head, plan.built.payload)

    async def tell(self, pool: Any, keys: Sequence[str], *, erased: Collection[str] = ()) -> None:
        """Carry bumped documents to Redis, once their transaction has ended, whichever way: what is carried is read again.

        Returns when the bump is acknowledged: nobody is served anything older from now on. Of `keys` those in `erased` went with
        their user, and nobody announced it.

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
                        key, head, payload, ttl_seconds=ENTRY_SECONDS_MAX, is_impersonal=is_impersonal
                    )
                elif document is None and key in erased:
                    await self._cache.forget(key)
            except RedisAwayError:
                is_told = False
        if not is_told:
            # Redis was not told, be it for one late answer, and others may reach it: what it holds is trusted for no longer.
            await asyncio.sleep(TRUSTED_MS / 1000)


async def _lock(tx: Connection, wanted: Sequence[Wanted]) -> None:
    """Have the documents to oneself, in one order for all, or two makers could wait for each other."""
    for key in sorted({one.resource.key for one in wanted}):
        await documents.lock(tx, key)


def windows_in(payload: bytes) -> Windows:
    """The windows by scope in their document."""
    found: Windows = orjson.loads(payload)["windows"]
    return found


def stamped(rules: PageRules, resource: Resource, head: Head, windows: Windows, now_ms: int) -> Head:
    """A head with `expires_ms` and `stale_until_ms` as they are known now (R4.8).

    For whoever looks into a store: a window may move, so a reader judges by `built_ms` and the windows each time (R4.14).
    """
    found = rules.judge(resource, head.built_ms or 0, windows, now_ms)
    return replace(head, expires_ms=found.expires_ms, stale_until_ms=found.stale_until_ms)


def _was_made_after(head: Head, found_built_ms: int | None) -> bool:
    return found_built_ms is not None and (head.built_ms or 0) > found_built_ms
