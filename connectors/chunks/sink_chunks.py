"""The sink of chunks: stores submitted chunks as rows, and counts what each ingest did to its sources (R3.1 to R3.13,
R3.24).

Invariants. A batch is planned under the locks of its sources, by `streams.chunks.upserts`; it is one transaction, in
which unchanged chunks are not written. A chunk that cannot be stored is counted in its ingest and blocks nothing; it is
dead-lettered, unless it is merely late (its ingest was superseded): nothing in it can be corrected. One without a
source belongs to no ingest, and is only dead-lettered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

from highwater.connectors.chunks import store
from highwater.connectors.chunks.namespaces import ensure_passports, store_given
from highwater.connectors.chunks.store import Namespace, Planned, SourceKey
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.chunks import (
    CHUNK_CHANGED,
    CHUNK_SUBMITTED,
    EMBEDDING_REQUESTED,
    INGEST_FINISHED,
    INGEST_PROGRESSED,
    ChangedChunk,
    ChunkChanged,
    ChunkSubmitted,
    EmbeddingRequested,
    IngestFinished,
    IngestProgressed,
)
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position
from highwater.streams.chunks.identity import content_hash
from highwater.streams.chunks.passports import NOTHING_GIVEN, Given, Passports
from highwater.streams.chunks.scoring import age_days
from highwater.streams.chunks.states import Temperature
from highwater.streams.chunks.upserts import (
    SUPERSEDED,
    End,
    Failure,
    Ingest,
    Refusal,
    Source,
    Submitted,
    Write,
    plan_upserts,
)
from highwater.streams.chunks.validation import IDENTITY, check_chunks_event
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.telemetry import get_log

Said: TypeAlias = ChunkSubmitted | IngestFinished
_SOURCE = "/connectors/sinks/chunks"
# Chunks of one source and reason that a log line names.
_NAMED_MAX = 20

_log = get_log("chunks")


@dataclass(slots=True)
class _Batch:
    """What a batch contains for one source, in the order of the log; the last event of each of its ingests."""

    submitted: list[Submitted] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    given: Given = NOTHING_GIVEN
    positions: dict[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch by source, in the order of sources, and events without one."""

    batches: Mapping[SourceKey, _Batch]
    dead: list[DeadLetter]


class ChunksSink(Handler[Said, Prepared]):
    """Stores a batch with one statement for its chunks; publishes one event per source and kind of change, and one per
    ingest and source.
    """

    group = "chunks"
    topics = (CHUNK_SUBMITTED, INGEST_FINISHED)
    # One transaction's fixed cost (locks, round trips, fsync: about 10 ms) spread over enough rows to vanish.
    batch_max = 5_000

    def __init__(self, context: ProcessContext, passports: Passports) -> None:
        self._codec = context.codec
        self._clock = context.clock
        self._passports = passports
        self._tell = OutboxFactory(context.codec, _SOURCE)

    async def prepare(self, events: Sequence[Event[Said]]) -> Prepared:
        """Check the events and hash the chunks (in a thread: it takes CPU, not I/O)."""
        return await asyncio.to_thread(_prepared, events)

    async def apply(self, tx: Connection, events: Sequence[Event[Said]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Plan under the locks of the sources, store, and publish."""
        if not prepared.batches:
            return prepared.dead
        now_ms = self._clock()
        namespaces = await self._namespaces(tx, prepared.batches, now_ms)
        sources = await _gather(tx, prepared.batches)
        planned, dimensions = _plan(prepared.batches, sources, namespaces)
        for ns, length in dimensions.items():
            await store.set_dimensions(tx, ns, length)
        await store.store_plans(tx, planned, now_ms)
        told = [row for key, one in planned.items() for row in self._told(key, one, namespaces[key.ns], now_ms)]
        await outbox.add(tx, told)
        await self._bump(tx, planned, now_ms)
        failures = [failure for one in planned.values() for failure in one.plan.failures]
        _say(planned)
        return [*prepared.dead, *_dead(events, failures)]

    async def _namespaces(
        self, tx: Connection, batches: Mapping[SourceKey, _Batch], now_ms: int
    ) -> dict[str, Namespace]:
        """Return the namespaces of a batch, created if missing; locked where the batch may bring the first vector."""
        given: dict[str, Given] = {}
        for key, batch in batches.items():
            given[key.ns] = given.get(key.ns, NOTHING_GIVEN) | batch.given
        names = set(given)
        found = await store.namespaces_of(tx, names)
        if len(found) < len(names):
            missing = {ns: one for ns, one in given.items() if ns not in found}
            await ensure_passports(tx, missing, self._passports, now_ms)
            found = await store.namespaces_of(tx, names)
        now_given = {ns: found[ns].given | one for ns, one in given.items()}
        if more := {ns: one for ns, one in now_given.items() if one != found[ns].given}:
            await store_given(tx, more, self._passports)
        first = {
            key.ns
            for key, batch in batches.items()
            if found[key.ns].dimensions is None and any(said.embedding is not None for said in batch.submitted)
        }
        if not first:
            return found
        await store.hold_without_dimensions(tx, first)
        return await store.namespaces_of(tx, names)  # the dimension may have been set while this waited

    def _told(self, key: SourceKey, planned: Planned, namespace: Namespace, now_ms: int) -> Iterator[OutboxRow]:
        plan = planned.plan
        last = max(planned.positions.values())
        for (kind, ingest_id), writes in _by_kind(plan.writes):
            changes = [_change(number, write) for number, write in writes]
            event = ChunkChanged(
                ns=key.ns,
                slot=key.slot,
                source_id=key.source_id,
                kind=kind,
                ingest_id=ingest_id,
                changes=changes,
                at=now_ms,
            )
            yield self._tell.row(CHUNK_CHANGED, event, now_ms, planned.positions[ingest_id])
        waiting = [write for write in plan.writes.values() if write.lacks_vector]
        if waiting:
            priority = _priority(waiting, namespace, now_ms)
            request = EmbeddingRequested(
                ns=key.ns,
                slot=key.slot,
                source_id=key.source_id,
                priority=priority,
                chunks=len(waiting),
                requested_at=now_ms,
            )
            yield self._tell.row(EMBEDDING_REQUESTED, request, now_ms, last)
        for ingest_id in plan.told:
            progress = progress_of(key, plan.ingests[ingest_id], now_ms)
            yield self._tell.row(INGEST_PROGRESSED, progress, now_ms, planned.positions.get(ingest_id, last))

    async def _bump(self, tx: Connection, planned: Mapping[SourceKey, Planned], now_ms: int) -> None:
        """Publish a new version of each namespace whose contents changed."""
        causes: dict[str, Position] = {}
        for key, one in planned.items():
            if one.plan.writes:
                cause = max(one.positions.values())
                causes[key.ns] = max(cause, causes.get(key.ns, cause))
        for ns in sorted(causes):
            cause_text = str(causes[ns])
            await bump(
                tx, self._codec, f"ns:{ns}", caused_by=cause_text, now_ms=now_ms, source=_SOURCE, reason="ingest"
            )


def progress_of(key: SourceKey, ingest: Ingest, now_ms: int) -> IngestProgressed:
    """Return the progress of an ingest of a source."""
    return {
        "ingest_id": ingest.ingest_id,
        "ns": key.ns,
        "slot": key.slot,
        "source_id": key.source_id,
        "revision": ingest.revision,
        "seen": ingest.seen_count,
        "failed": ingest.failures,
        "inserted": ingest.inserted,
        "updated": ingest.updated,
        "unchanged": ingest.unchanged,
        "expected": ingest.expected,
        "full": ingest.is_full,
        "force": ingest.is_forced,
        "truncated": ingest.is_truncated,
        "is_superseded": ingest.is_superseded,
        "at": now_ms,
    }


# -- prepare -------------------------------------------------------------------------------------------------------------


def _prepared(events: Sequence[Event[Said]]) -> Prepared:
    batches: dict[SourceKey, _Batch] = {}
    dead: list[DeadLetter] = []
    # A batch mixes partitions as they were fetched; (partition, offset) gives the order.
    for event in sorted(events, key=lambda event: (event.record.partition, event.record.offset)):
        record, value = event
        refusal = None
        try:
            check_chunks_event(record.topic, value)
        except InvalidEventError as error:
            if record.topic != CHUNK_SUBMITTED or error.field in IDENTITY:
                dead.append(DeadLetter(record, error.reason, str(error)))
                continue
            refusal = Refusal(error.reason, str(error))
        key = SourceKey(value["ns"], value["slot"], value["source_id"])
        batch = batches.get(key)
        if batch is None:
            batch = batches[key] = _Batch()
        if submitted := event.of(CHUNK_SUBMITTED):
            batch.submitted.append(_submitted(key, record, submitted, refusal))
            batch.given |= Given(submitted["lasts"], submitted["opens"])
        elif finished := event.of(INGEST_FINISHED):
            batch.ends.append(_end(record, finished))
        batch.positions[value["ingest_id"]] = record.position
    return Prepared({key: batches[key] for key in sorted(batches)}, dead)


def _submitted(key: SourceKey, record: Record, value: ChunkSubmitted, refusal: Refusal | None) -> Submitted:
    number, content = value["chunk_no"], value["content"]
    published = None if refusal or value["published_at"] is None else to_datetime(value["published_at"])
    return Submitted(
        value["ingest_id"],
        number,
        content_hash(*key, number, content),
        content,
        value["title"],
        value["url"],
        value["embedding"],
        published,
        f"{record.topic}/{record.partition}",
        record.partition,
        record.offset,
        record.arrived_ms,
        refusal,
    )


def _end(record: Record, value: IngestFinished) -> End:
    return End(
        value["ingest_id"],
        is_full=value["full"],
        is_forced=value["force"],
        is_truncated=value["truncated"],
        expected=value["expected_count"],
        window=value["window"],
        place=f"{record.topic}/{record.partition}",
        offset=record.offset,
        arrived_ms=record.arrived_ms,
    )


# -- gather and decide ---------------------------------------------------------------------------------------------------


async def _gather(tx: Connection, batches: Mapping[SourceKey, _Batch]) -> dict[SourceKey, Source]:
    """Lock the sources of a batch and return what is stored of them."""
    sources = await store.lock_sources(tx, list(batches))
    wanted = {(key, one) for key, batch in batches.items() for one in (*batch.positions, sources[key].latest) if one}
    ingests = await store.ingests_of(tx, sorted(wanted))
    submitted = {key: batch.submitted for key, batch in batches.items() if batch.submitted}
    rows = await store.rows_of(tx, submitted) if submitted else {}
    failing = {
        key: said for key, said in submitted.items() if any(ingest.failures for ingest in ingests.get(key, {}).values())
    }
    refused = await store.failures_of(tx, failing) if failing else {}
    return {
        key: replace(
            source, ingests=ingests.get(key, {}), rows=rows.get(key, {}), refused=refused.get(key, frozenset())
        )
        for key, source in sources.items()
    }


def _plan(
    batches: Mapping[SourceKey, _Batch], sources: Mapping[SourceKey, Source], namespaces: Mapping[str, Namespace]
) -> tuple[dict[SourceKey, Planned], dict[str, int]]:
    """Plan what to store for each source, and the dimension of vectors in namespaces that had none."""
    dimensions = {ns: namespace.dimensions for ns, namespace in namespaces.items()}
    planned = {}
    for key, batch in batches.items():
        plan = plan_upserts(sources[key], batch.submitted, batch.ends, dimensions=dimensions[key.ns])
        dimensions[key.ns] = plan.dimensions
        planned[key] = Planned(plan, sources[key], batch.positions)
    first = {
        ns: length for ns, length in dimensions.items() if length is not None and namespaces[ns].dimensions is None
    }
    return planned, first


# -- publish
# -------------------------------------------------------------------------------------------------------------


def _by_kind(writes: Mapping[int, Write]) -> list[tuple[tuple[str, str], list[tuple[int, Write]]]]:
    """Group changes of one kind by one ingest, by chunk number."""

    def way(item: tuple[int, Write]) -> tuple[str, str]:
        return item[1].kind, item[1].said.ingest_id

    return [(one, list(found)) for one, found in groupby(sorted(writes.items(), key=lambda i: (way(i), i[0])), way)]


def _change(number: int, write: Write) -> ChangedChunk:
    return {"chunk_no": number, "old_hash": write.old_hash, "new_hash": write.said.content_hash}


def _priority(waiting: Sequence[Write], namespace: Namespace, now_ms: int) -> str:
    """Return the priority: hot if any of them is hot (R3.15)."""
    published = [write.row.published_at for write in waiting]
    youngest = min(age_days(None if one is None else to_ms(one), now_ms, now_ms) for one in published)
    return Temperature.HOT if namespace.is_hot and youngest <= namespace.hot_days else Temperature.WARM


def _dead(events: Sequence[Event[Said]], failures: Sequence[Failure]) -> list[DeadLetter]:
    """Return the dead letters of chunks that cannot be stored."""
    poison = [failure for failure in failures if failure.refusal.reason != SUPERSEDED]
    if not poison:
        return []
    records = {(record.partition, record.offset): record for record, _ in events if record.topic == CHUNK_SUBMITTED}
    return [
        DeadLetter(records[said.partition, said.offset], refusal.reason, refusal.detail) for said, refusal, _ in poison
    ]


def _say(planned: Mapping[SourceKey, Planned]) -> None:
    """Log the chunks that were refused (R3.24)."""
    for key, one in planned.items():
        failures = [failure for failure in one.plan.failures if failure.is_new]
        ways = Counter((failure.said.ingest_id, failure.refusal.reason) for failure in failures)
        for (ingest_id, reason), count in ways.items():
            numbers = [
                said.chunk_no
                for said, refusal, _ in failures
                if (said.ingest_id, refusal.reason) == (ingest_id, reason)
            ]
            facts = {**key._asdict(), "reason": reason, "chunks": count, "numbers": numbers[:_NAMED_MAX]}
            _log.warning("chunks_refused", ingest_id=ingest_id, **facts)
