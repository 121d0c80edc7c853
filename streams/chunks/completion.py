"""When the ingest of a source ends, and what that means for chunks that it did not contain (R3.19, R3.20).

Invariant: only a full ingest of which every chunk was stored or unchanged, and none refused, creates orphans. The end
event may arrive before the chunks, so the counts decide: as many processed as announced. Progress is absolute and has a
revision: each revision is decided once, and late or repeated events are recognized by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from highwater.schemas.chunks import IngestDecided, IngestProgressed
from highwater.streams.chunks.states import Outcome
from highwater.streams.versioned_rows import RowForm

_HOUR_MS = 3_600_000
# An ingest without progress for this long is abandoned. The slowest source, which may be rate-limited per hour, reports
# every hour; a program that ended is restarted by then.
ABANDONED_MS = 6 * _HOUR_MS
# A row is kept this long after its decision, so that a restarted worker does not decide repeated events again.
KEPT_MS = 24 * _HOUR_MS
_SEPARATOR = b"\0"


@dataclass(frozen=True, slots=True)
class Ingest:
    """The row of an ingest and source: the newest progress, and when it was decided, None before.

    `key` is that of the source, ns|slot|source_id. `heard_ms` is the time of the progress by the product's clock;
    `expected` is None before the end was announced.
    """

    key: str
    ingest_id: str
    revision: int
    seen: int
    failed: int
    inserted: int
    updated: int
    unchanged: int
    expected: int | None
    full: bool
    force: bool
    truncated: bool
    is_superseded: bool
    heard_ms: int
    decided_ms: int | None = None

    @property
    def row_key(self) -> bytes:
        """Return its key in the table."""
        return row_key(self.key, self.ingest_id)

    @property
    def due_ms(self) -> int:
        """Return when a tick must check it: then it is abandoned, or deleted."""
        return self.heard_ms + ABANDONED_MS if self.decided_ms is None else self.decided_ms + KEPT_MS


class Decision(NamedTuple):
    """How an ingest ended, and whether chunks that it did not contain are orphans."""

    outcome: Outcome

    @property
    def marks_orphans(self) -> bool:
        """Return whether it marks orphans: only a complete ingest does."""
        return self.outcome is Outcome.COMPLETE


def source_key(event: IngestProgressed | IngestDecided) -> str:
    """Return the key of an event's source; no part of it contains a |."""
    return f"{event['ns']}|{event['slot']}|{event['source_id']}"


def row_key(key: str, ingest_id: str) -> bytes:
    """Return the key of a row; no id contains a NUL."""
    return key.encode() + _SEPARATOR + ingest_id.encode()


def progressed(row: Ingest | None, event: IngestProgressed) -> Ingest:
    """Return the row after progress; a known revision changes nothing."""
    if row is not None and event["revision"] <= row.revision:
        return row
    return Ingest(
        key=source_key(event),
        ingest_id=event["ingest_id"],
        revision=event["revision"],
        seen=event["seen"],
        failed=event["failed"],
        inserted=event["inserted"],
        updated=event["updated"],
        unchanged=event["unchanged"],
        expected=event["expected"],
        full=event["full"],
        force=event["force"],
        truncated=event["truncated"],
        is_superseded=event["is_superseded"],
        heard_ms=event["at"],
    )


def decide(row: Ingest, now_ms: int) -> Decision | None:
    """The outcome of the ingest; None while it is running, or if its newest progress was decided already.

    A later ingest of the source ends it at once. Else it ends when the announced number of chunks is processed, or after
    `ABANDONED_MS` without progress.
    """
    if row.decided_ms is not None:
        return None
    if row.is_superseded:
        return Decision(Outcome.SUPERSEDED)
    if row.expected is None or row.seen + row.failed < row.expected:
        return Decision(Outcome.ABANDONED) if now_ms >= row.heard_ms + ABANDONED_MS else None
    return Decision(_outcome(row, row.expected))


def _outcome(row: Ingest, expected: int) -> Outcome:
    """The outcome of an ingest whose chunks are all processed. More chunks than announced contradict the announcement: not all
    are known then, and missing ones may still arrive.
    """
    stands_in_the_way = {
        Outcome.FAILED: row.failed > 0 or row.seen > expected,
        Outcome.TRUNCATED: row.truncated,
        Outcome.PARTIAL: not row.full,
        Outcome.EMPTY: expected == 0 and not row.force,
    }
    return next((outcome for outcome, is_so in stands_in_the_way.items() if is_so), Outcome.COMPLETE)


class Counted(NamedTuple):
    """The chunks of a source that were stored or unchanged, those refused, and the announced number."""

    seen: int
    failed: int
    expected: int | None


def reason_of(outcome: str, counted: Counted) -> str | None:
    """Return why an ingest did not end as complete, for its sender; None while it is running or if it is complete."""
    if outcome == Outcome.FAILED and counted.failed:
        return (
            f"{counted.failed} of {counted.seen + counted.failed} chunks were refused; `failed` names the first of them"
        )
    reasons: dict[str, str] = {
        Outcome.FAILED: f"{counted.seen} chunks arrived, but its end announced {counted.expected}: which is right is unknown",
        Outcome.TRUNCATED: "the source was cut off before its end",
        Outcome.PARTIAL: "the ingest is not full, so chunks that it does not name remain",
        Outcome.EMPTY: "a full ingest without chunks would mark the whole source; use `force` to do so",
        Outcome.SUPERSEDED: "another ingest of the source began after it",
        Outcome.ABANDONED: f"nothing more was heard of it for {ABANDONED_MS // _HOUR_MS} hours: {_left(counted)}",
    }
    return reasons.get(outcome)


def _left(counted: Counted) -> str:
    if counted.expected is None:
        return "its end never came"
    return f"{counted.seen + counted.failed} of {counted.expected} chunks came"


def decided(row: Ingest, now_ms: int) -> Ingest:
    """Return the row after the decision on its newest progress."""
    return replace(row, decided_ms=now_ms)


class Plan(NamedTuple):
    """What a tick does with due rows: their outcome is reported, they are deleted, or they are checked again."""

    told: list[tuple[Ingest, Decision]]
    forgotten: list[Ingest]
    left: list[Ingest]


def plan_tick(rows: Iterable[Ingest], now_ms: int) -> Plan:
    """Decide what to do with rows at a tick. At most one ingest per source is reported, the longest silent first, since
    the id of an event is derived from the tick and the source.
    """
    told: dict[str, tuple[Ingest, Decision]] = {}
    plan = Plan([], [], [])
    for row in sorted(rows, key=lambda row: (row.heard_ms, row.row_key)):
        decision = decide(row, now_ms)
        if row.decided_ms is not None and now_ms >= row.due_ms:
            plan.forgotten.append(row)
        elif decision is None or row.key in told:
            plan.left.append(row)
        else:
            told[row.key] = (row, decision)
    return plan._replace(told=list(told.values()))


def decided_event(row: Ingest, decision: Decision, now_ms: int) -> IngestDecided:
    """Return the event of a decision with its inputs."""
    ns, slot, source_id = row.key.split("|")
    return {
        "ingest_id": row.ingest_id,
        "ns": ns,
        "slot": slot,
        "source_id": source_id,
        "outcome": decision.outcome,
        "marks_orphans": decision.marks_orphans,
        "revision": row.revision,
        "seen": row.seen,
        "failed": row.failed,
        "inserted": row.inserted,
        "updated": row.updated,
        "unchanged": row.unchanged,
        "expected": row.expected,
        "full": row.full,
        "force": row.force,
        "truncated": row.truncated,
        "is_superseded": row.is_superseded,
        "decided_at": now_ms,
    }


_FORM = RowForm(1, tuple(field.name for field in fields(Ingest)))


def encode_row(row: Ingest) -> bytes:
    """Return the row as JSON."""
    return _FORM.encode([getattr(row, name) for name in _FORM.names])


def decode_row(data: bytes | None) -> Ingest | None:
    """Return the row of an ingest and source; None without one.

    Raises:
        ValueError: the row has an unknown form.
    """
    return None if data is None else Ingest(*_FORM.decode(data))
