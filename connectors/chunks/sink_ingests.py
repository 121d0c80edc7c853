"""The sink of ingests: ends completed ingests and marks the chunks that they orphan (R3.19, R3.20, R3.24).

Invariants. Chunks are marked only under the lock of their source, by a decision on exactly the counters stored at that
time, and only by an ingest that was not superseded. A decision on fewer events than are stored is skipped: a later one
follows. One on more events than are stored waits for the sink of chunks: this happens when the log is read again into
an empty store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from highwater.connectors.chunks import store
from highwater.connectors.chunks.store import Ended, Orphan, SourceKey
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.known import KnownIds, Origin
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres.pool import Connection, reading
from highwater.connectors.redaction import RedactionStep
from highwater.schemas.chunks import (
    CHUNK_CHANGED,
    CHUNK_SUBMITTED,
    INGEST_DECIDED,
    INGEST_FINISHED,
    INGEST_REPORTED,
    ChangedChunk,
    ChunkChanged,
    IngestDecided,
)
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position
from highwater.streams.checks import check_id
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.states import Change, Outcome
from highwater.streams.chunks.upserts import OPEN, Ingest
from highwater.streams.telemetry import get_log

_SOURCE = "/connectors/sinks/ingests"

_log = get_log("ingests")


class _Decision(NamedTuple):
    key: SourceKey
    said: IngestDecided
    event: Event[IngestDecided]

    @property
    def position(self) -> Position:
        return self.event.record.position

    def is_on(self, ingest: Ingest) -> bool:
        """Return whether it was based on what is stored of the ingest."""
        said = self.said
        return (
            (said["seen"], said["failed"], said["expected"]) == (ingest.seen_count, ingest.failures, ingest.expected)
            and (said["full"], said["force"]) == (ingest.is_full, ingest.is_forced)
            and said["truncated"] == ingest.is_truncated
        )

    def is_ahead_of(self, ingest: Ingest | None) -> bool:
        """Return whether it was based on events that are not stored."""
        return ingest is None or (not self.is_on(ingest) and self.said["revision"] >= ingest.revision)


_Ingests = Mapping[SourceKey, Mapping[str, Ingest]]
_Orphans = Mapping[tuple[SourceKey, str], Sequence[Orphan]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The last decision on each ingest of a source, in the order of sources, and refused events."""

    decisions: list[_Decision]
    dead: list[DeadLetter]


class IngestsSink(Handler[IngestDecided, Prepared]):
    """Marks the orphans of a batch with one statement; publishes one absolute report per ingest."""

    group = "ingests"
    topics = (INGEST_DECIDED,)
    # Each may mark all the chunks of a source; what waits behind it is not urgent.
    batch_max = 500

    def __init__(self, context: ProcessContext, redaction: Sequence[RedactionStep] = ()) -> None:
        """`redaction` removes deleted chunks from the documents of each slice."""
        self._redaction = redaction
        self._codec = context.codec
        self._clock = context.clock
        self._pool = context.pool
        self._tell = OutboxFactory(context.codec, _SOURCE)
        self._stored = [
            KnownIds(context.pool, context.admin, Origin(topic, "chunks", "an ingest", "events", _none))
            for topic in (CHUNK_SUBMITTED, INGEST_FINISHED)
        ]

    async def prepare(self, events: Sequence[Event[IngestDecided]]) -> Prepared:
        """Check the events; wait for what their decisions were based on."""
        good, dead = divided(events, _check)
        decisions = _last_ones(good)
        async with reading(self._pool) as tx:
            ingests = await store.ingests_of(tx, [(one.key, one.said["ingest_id"]) for one in decisions])
        if any(one.is_ahead_of(_of(ingests, one)) for one in decisions):
            for stored in self._stored:
                await stored.require_all()
        return Prepared(decisions, dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[IngestDecided]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Judge each decision under the lock of its source, mark, end, report."""
        decisions = prepared.decisions
        if not decisions:
            return prepared.dead
        now_ms = self._clock()
        await store.lock_sources(tx, list(dict.fromkeys(one.key for one in decisions)))
        ingests = await store.ingests_of(tx, [(one.key, one.said["ingest_id"]) for one in decisions])
        # Events that they were ahead of have been stored meanwhile, or are not in the log.
        lost = [one for one in decisions if one.is_ahead_of(_of(ingests, one))]
        ended = [end for one in decisions if (end := _judge(one, _of(ingests, one))) is not None]
        if ended:
            full = {
                (one.key, one.said["ingest_id"]): one.event.record.arrived_ms
                for one in decisions
                if one.said["marks_orphans"]
            }
            marking = {one.of: full[one.of] for one in ended if one.status == Outcome.COMPLETE and one.of in full}
            if marking:
                await surrogate_keys.hold(tx)
            orphans = await store.mark_orphans(tx, marking, now_ms)
            await self._redact(tx, ended, orphans, now_ms)
            await store.end_ingests(tx, ended, orphans, now_ms)
            await self._tell_of(tx, ended, orphans, now_ms)
        return [*prepared.dead, *(_unknown(one) for one in lost)]

    async def _redact(self, tx: Connection, ended: Sequence[Ended], orphans: _Orphans, now_ms: int) -> None:
        """Remove chunks to be deleted from every document that quotes them."""
        marked = {(one.key, orphan.chunk_no): str(one.position) for one in ended for orphan in orphans.get(one.of, ())}
        withdrawn = await store.withdrawn_chunks(tx, marked) if marked else []
        for redact in self._redaction if withdrawn else ():
            await redact(tx, self._codec, withdrawn, now_ms)

    async def _tell_of(self, tx: Connection, ended: Sequence[Ended], orphans: _Orphans, now_ms: int) -> None:
        marked = [one for one in ended if one.of in orphans]
        rows = [self._orphaned(one, orphans[one.of], now_ms) for one in marked]
        last = {one.ingest.ingest_id: one.position for one in ended}
        reports = await store.reports_of(tx, last, now_ms)
        rows += [self._tell.row(INGEST_REPORTED, report, now_ms, last[report["ingest_id"]]) for report in reports]
        await outbox.add(tx, rows)
        causes = {one.key.ns: one.position for one in marked}
        for ns, cause in sorted(causes.items()):
            key = f"ns:{ns}"
            await bump(tx, self._codec, key, caused_by=str(cause), now_ms=now_ms, source=_SOURCE, reason="orphaned")
        for one in ended:
            _say(one, len(orphans.get(one.of, ())))

    def _orphaned(self, ended: Ended, orphans: Sequence[Orphan], now_ms: int) -> OutboxRow:
        changes = [
            ChangedChunk(chunk_no=one.chunk_no, old_hash=one.content_hash, new_hash=one.content_hash) for one in orphans
        ]
        key, ingest_id = ended.key, ended.ingest.ingest_id
        event = ChunkChanged(
            ns=key.ns, slot=key.slot, source_id=key.source_id,
            kind=Change.ORPHANED, ingest_id=ingest_id, changes=changes, at=now_ms,
        )  # fmt: skip
        return self._tell.row(CHUNK_CHANGED, event, now_ms, ended.position)


async def _none(_tx: Connection, _ids: list[str]) -> set[str]:
    return set()


def _check(_topic: str, event: Mapping[str, object]) -> None:
    said = cast("IngestDecided", event)
    check_key_part("ns", said["ns"])
    check_key_part("slot", said["slot"])
    check_key_part("source_id", said["source_id"])
    check_id("ingest_id", said["ingest_id"])
    if said["outcome"] not in list(Outcome):
        raise InvalidEventError("bad_outcome", f"outcome is not one of {', '.join(Outcome)}", field="outcome")


def _last_ones(events: Sequence[Event[IngestDecided]]) -> list[_Decision]:
    last: dict[tuple[SourceKey, str], _Decision] = {}
    for event in events:
        said = event.value
        key = SourceKey(said["ns"], said["slot"], said["source_id"])
        before = last.get((key, said["ingest_id"]))
        if before is None or before.said["revision"] <= said["revision"]:
            last[key, said["ingest_id"]] = _Decision(key, said, event)
    return [last[one] for one in sorted(last)]


def _of(ingests: _Ingests, decision: _Decision) -> Ingest | None:
    return ingests.get(decision.key, {}).get(decision.said["ingest_id"])


def _judge(decision: _Decision, ingest: Ingest | None) -> Ended | None:
    """Return how an ingest ended by a decision; None if the decision does not end it."""
    if ingest is None or ingest.status not in OPEN:
        return None
    if ingest.is_superseded:
        return Ended(decision.key, ingest, Outcome.SUPERSEDED, decision.position)
    if decision.is_on(ingest) and decision.said["outcome"] != ingest.status:
        return Ended(decision.key, ingest, decision.said["outcome"], decision.position)
    return None


def _unknown(decision: _Decision) -> DeadLetter:
    said = decision.said
    detail = f"of ingest {said['ingest_id']} nothing is stored that revision {said['revision']} was decided on"
    return DeadLetter(decision.event.record, "unknown_ingest", detail)


def _say(ended: Ended, orphaned: int) -> None:
    """Log what an ingest did to a source (R3.24)."""
    ingest = ended.ingest
    _log.info(
        "ingest_ended",
        **ended.key._asdict(),
        ingest_id=ingest.ingest_id,
        status=str(ended.status),
        inserted=ingest.inserted,
        updated=ingest.updated,
        unchanged=ingest.unchanged,
        failures=ingest.failures,
        orphaned=orphaned,
        window=ingest.window,
    )
