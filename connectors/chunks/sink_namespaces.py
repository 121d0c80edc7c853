"""The sink of namespaces: stores how often they are searched, and sweeps expired chunks (R3.20 to R3.23).

Invariants. A sweep removes a limited number of chunks per transaction, with the events that report them, and is
accounted for when nothing is left; so it blocks nothing for long, and an interrupted one is repeated and finds the
rest. Ages are computed at the tick that requested it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.chunks.namespaces import (
    Gone,
    Sweep,
    align_passports,
    cold_count,
    remove_cold,
    remove_former,
    remove_orphans,
    store_ratings,
    sweeps,
)
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres.pool import Connection, reading, transaction
from highwater.schemas.chunks import (
    CHUNK_CHANGED,
    NAMESPACE_RATED,
    SWEEP_REQUESTED,
    ChunkChanged,
    NamespaceRated,
    SweepRequested,
)
from highwater.schemas.codec import Codec
from highwater.streams.checks import check_time
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.passports import Passports
from highwater.streams.chunks.states import Change
from highwater.streams.telemetry import get_log

Said: TypeAlias = NamespaceRated | SweepRequested
_SOURCE = "/connectors/sinks/namespaces"
# Chunks removed in one transaction: about 0.1 s, during which ingests of their sources wait.
_CHUNKS_MAX = 1_000

_Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
_Remove: TypeAlias = Callable[[Connection, Sweep, int, int], Awaitable[tuple[int, list[Gone]]]]
_log = get_log("namespaces")


class Prepared(NamedTuple):
    """Ratings to store, and refused events; the sweeps are done by then."""

    ratings: list[Event[NamespaceRated]]
    dead: list[DeadLetter]


class NamespacesSink(Handler[Said, Prepared]):
    """Stores the ratings of a batch with one statement; its sweeps run in separate transactions."""

    group = "namespaces"
    topics = (NAMESPACE_RATED, SWEEP_REQUESTED)
    # A namespace is rated at most once an hour; after a long pause the hourly sweeps come together, and all but one
    # find nothing.
    batch_max = 500

    def __init__(self, context: ProcessContext) -> None:
        self._pool = context.pool
        self._codec = context.codec
        self._clock = context.clock

    async def prepare(self, events: Sequence[Event[Said]]) -> Prepared:
        """Check the events and do the sweeps."""
        good, dead = divided(events, _check)
        for event in of_topic(good, SWEEP_REQUESTED):
            await self._sweep(event)
        return Prepared(of_topic(good, NAMESPACE_RATED), dead)

    async def apply(self, tx: Connection, events: Sequence[Event[Said]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Store the ratings; publish a version of pages whose temperatures changed."""
        causes = {event.value["ns"]: str(event.record.position) for event in prepared.ratings}
        ratings = [event.value for event in prepared.ratings]
        for ns in await store_ratings(tx, ratings):
            await _bump(tx, self._codec, ns, causes[ns], self._clock(), "rated")
        return prepared.dead

    async def _sweep(self, event: Event[SweepRequested]) -> None:
        now_ms = event.value["now"]
        async with reading(self._pool) as connection:
            found = await sweeps(connection, now_ms)
        orphaned = archived = 0
        candidates: dict[str, int] = {}
        for sweep in found:
            orphaned += await self._remove_all(remove_orphans, sweep, event)
            if sweep.archives_cold:
                archived += await self._remove_all(remove_cold, sweep, event)
            else:
                async with reading(self._pool) as connection:
                    candidates[sweep.ns] = await cold_count(connection, sweep)
        former = await self._remove_former(now_ms)
        cold = {ns: count for ns, count in candidates.items() if count}
        if orphaned or archived or cold or former:
            counts = {"orphans": orphaned, "cold": archived, "cold_candidates": cold, "former": former}
            _log.info("swept", sweep=event.value["sweep"], **counts)

    async def _remove_former(self, at_ms: int) -> int:
        """Delete the former texts past their retention, one transaction after another; return how many."""
        count = 0
        found = _CHUNKS_MAX
        while found == _CHUNKS_MAX:
            async with transaction(self._pool) as tx:
                found = await remove_former(tx, at_ms, _CHUNKS_MAX)
            count += found
        return count

    async def _remove_all(self, remove: _Remove, sweep: Sweep, event: Event[SweepRequested]) -> int:
        """Remove all expired chunks, one transaction after another; return how many."""
        count = 0
        found = _CHUNKS_MAX
        while found == _CHUNKS_MAX:
            now_ms = self._clock()
            async with transaction(self._pool) as tx:
                found, gone = await remove(tx, sweep, _CHUNKS_MAX, now_ms)
                if gone:
                    await self._tell(tx, sweep, gone, event, now_ms)
            count += len(gone)
        return count

    async def _tell(
        self, tx: Connection, sweep: Sweep, gone: Sequence[Gone], event: Event[SweepRequested], now_ms: int
    ) -> None:
        cause = event.record.position
        rows = [
            outbox.event_row(self._codec, CHUNK_CHANGED, changed, source=_SOURCE, now_ms=now_ms, caused_by=cause)
            for changed in _changes(sweep, gone, now_ms)
        ]
        await outbox.add(tx, rows)
        await _bump(tx, self._codec, sweep.ns, str(cause), now_ms, "swept")


def _changes(sweep: Sweep, gone: Sequence[Gone], now_ms: int) -> Iterator[ChunkChanged]:
    """Yield the events about removed chunks, in order: one per source."""
    for (slot, source_id), chunks in groupby(gone, key=lambda chunk: (chunk.slot, chunk.source_id)):
        yield {
            "ns": sweep.ns,
            "slot": slot,
            "source_id": source_id,
            "kind": Change.ARCHIVED if sweep.is_archived else Change.REMOVED,
            "ingest_id": None,
            "changes": [
                {"chunk_no": chunk.chunk_no, "old_hash": chunk.content_hash, "new_hash": None} for chunk in chunks
            ],
            "at": now_ms,
        }


def _check(topic: str, value: Mapping[str, Any]) -> None:
    if topic == NAMESPACE_RATED:
        check_key_part("ns", value["ns"])
        check_time("decided_at", value["decided_at"])
    else:
        check_time("now", value["now"])


async def _bump(tx: Connection, codec: Codec, ns: str, caused_by: str, now_ms: int, reason: str) -> None:
    await bump(tx, codec, f"ns:{ns}", caused_by=caused_by, now_ms=now_ms, source=_SOURCE, reason=reason)


async def align(pool: _Pool, codec: Codec, passports: Passports, now_ms: int) -> None:
    """Update the stored passports to the configuration, and their pages with them.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with transaction(pool) as tx:
        changed = await align_passports(tx, passports, now_ms)
        for ns in changed:
            await _bump(tx, codec, ns, "", now_ms, "configured")
    if changed:
        _log.info("namespaces_aligned", namespaces=changed)
