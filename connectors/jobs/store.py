"""Jobs of one kind in PostgreSQL: claimed, stored with their reports, released.

Invariant: a checkpoint, its reports and its results are one transaction, and are stored only if the job is unchanged
since the caller claimed it (R2.15). A job's usage is counted in the transaction that ends it, so once (R2.36); its
result is stored before its checkpoint is deleted (R2.13). Requested work waits in the table, and slots are shared
between organizations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import asyncpg
import orjson

from highwater.connectors.engines.changes import Call, call_begins
from highwater.connectors.engines.rows import json_or_none, work_columns
from highwater.connectors.engines.sharing import Share
from highwater.connectors.engines.store import RequestedWork, Statements, WorkStore, cause_of
from highwater.connectors.jobs import counting, redactions
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxEvent, OutboxRow, outbox_event
from highwater.connectors.models.call_rows import begin_calls
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, Row, transaction
from highwater.schemas.codec import Codec
from highwater.schemas.jobs import CHECKPOINT_SAVED, PROGRESS, USAGE_RECORDED, UsageRecorded
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import to_datetime
from highwater.streams.engines.work import RETURNS_MAX, resumed
from highwater.streams.jobs.args import parse_args
from highwater.streams.jobs.jobs import (
    BEGUN_MAX,
    Job,
    cents,
    expired,
    failed,
    is_expired,
    request_event,
    returned,
    taken,
)
from highwater.streams.jobs.progress import ERROR, JOB_STARTED, ProgressReport, checkpoint_event, progress_events
from highwater.streams.jobs.states import ENDED, REQUESTED, JobStatus, Kind
from highwater.streams.telemetry import JOBS_WAITING

SOURCE = "/connectors/workers/jobs"

STATEMENTS = Statements(
    has_waiting=QUERIES["has_waiting_jobs"],
    waiting=QUERIES["waiting_jobs"],
    in_progress=QUERIES["jobs_in_progress"],
    wanted=QUERIES["wanted_jobs"],
    ask_for_forgotten=QUERIES["ask_for_forgotten_jobs"],
    lost=QUERIES["lost_jobs"],
    of_worker=QUERIES["jobs_of_worker"],
    workers=QUERIES["workers_with_jobs"],
    has_unended=QUERIES["has_unended_jobs"],
)
# Effects in the transaction of a step; called only if the job is still ours.
Apply = Callable[[Connection], Awaitable[None]]


class Deck(NamedTuple):
    """A deck as it is stored; `slides` are JSON objects in order. `is_cached`: it was made before, for the same question."""

    title: str
    slides: tuple[Mapping[str, Any], ...]
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A job as it was claimed and as it is to be stored, with its reports and what is stored beside it.

    `events` are for the outbox; `deck` is the result of a generation, and is counted, unless it was reused.
    """

    before: Job
    after: Job
    now_ms: int
    told: tuple[ProgressReport, ...] = ()
    call: Call | None = None
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None
    deck: Deck | None = None

    @property
    def is_saved(self) -> bool:
        """Return whether its checkpoint has changed."""
        return self.after.checkpoint is not self.before.checkpoint

    @property
    def has_ended(self) -> bool:
        """Return whether it ends the job."""
        return self.after.status in ENDED

    @property
    def is_counted(self) -> bool:
        """Return whether it ends the job with usage to be counted."""
        return self.has_ended and (self.deck is not None or self.after.is_used)

    @property
    def ends_checkpoint(self) -> bool:
        """Return whether its checkpoint is no longer needed (R2.13)."""
        is_revoked = self.after.status is JobStatus.REVOKED and self.before.checkpoint is not None
        return self.after.status is JobStatus.COMPLETED or is_revoked

    @property
    def saves_checkpoint(self) -> bool:
        """Return whether its checkpoint is published: a changed one, that of a failed job, or that of a restarted one (R2.14)."""
        has_moved = self.after.status is not self.before.status and JobStatus.FAILED in (
            self.after.status,
            self.before.status,
        )
        return self.is_saved or (has_moved and self.after.checkpoint is not None)


def job_of(row: Row) -> Job:
    """Return the job in a row of `jobs`."""
    return Job(
        id=str(row["job_id"]),
        kind=Kind(row["kind"]),
        organization_id=row["organization_id"],
        user_id=row["user_id"],
        args=row["args"],
        status=JobStatus(row["status"]),
        attempts_before=row["attempts_before"],
        begun=row["begun"],
        approval_until_ms=row["approval_until_ms"],
        expires_ms=row["expires_ms"],
        seq=row["seq"],
        progress_pct=row["progress_pct"],
        steps_done=row["steps_done"],
        steps_total=row["steps_total"],
        checkpoint=json_or_none(row["checkpoint"]),
        result=json_or_none(row["result"]),
        tokens=row["tokens"],
        cost_usd=row["cost_usd"],
        **work_columns(row),
    )


class Jobs(WorkStore[Job, Change]):
    """The store of jobs of one kind, for their workers; a job that was not begun in time expires when its slot comes."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], codec: Codec, kind: Kind, *, begun_max: int) -> None:
        """`begun_max`: the maximum of jobs of one organization in progress, in all processes."""
        statements = STATEMENTS._replace(of_kind=(kind,))
        super().__init__(pool, statements, (LockClass.JOB_SLOTS, tuple(Kind).index(kind)), Share(begun_max))
        self.kind = kind
        self._codec = codec

    async def ask(self, tx: Connection, requests: Sequence[RequestedWork]) -> None:
        """Let jobs wait for a slot; those that do not wait are left alone."""
        commands = {one.work_id: str(one.command) for one in requests}  # however often a job is requested
        await tx.execute(QUERIES["ask_for_jobs"], list(commands), list(commands.values()), self.kind)

    async def workers(self, tx: Connection) -> list[int]:
        """Return the workers that hold jobs of this kind. It is called every second, so the number of waiting jobs is
        measured here.
        """
        JOBS_WAITING.labels(self.kind).set(await tx.fetchval(QUERIES["count_waiting_jobs"], self.kind))
        return await super().workers(tx)

    async def has_unended(self, tx: Connection) -> bool:
        """Return whether any job of this kind has not ended; otherwise none waits."""
        found = await super().has_unended(tx)
        if not found:
            JOBS_WAITING.labels(self.kind).set(0)
        return found

    async def count_late(self, work_id: str, now_ms: int) -> None:
        """Count the usage of a call of an ended job that was answered after its end; nothing if the job continues elsewhere."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["lock_jobs"], [work_id])
            jobs = [job for job in await counting.with_totals(tx, list(map(job_of, rows))) if job.status in ENDED]
            usages = await counting.count(tx, [counting.Ended(job, now_ms) for job in jobs])
            for job in jobs:
                if (usage := usages.get(job.id)) is not None:
                    used = (job.tokens, job.cost_usd, cents(job.cost_usd))
                    await tx.execute(QUERIES["store_late_totals"], job.id, *used, to_datetime(now_ms))
                    await outbox.add(tx, [_event_row(self._codec, SOURCE, USAGE_RECORDED, usage, job, now_ms)])

    # -- the parts for jobs
    # -----------------------------------------------------------------------------------------------

    async def _stored(self, tx: Connection, changes: Sequence[Change]) -> Mapping[str, Job]:
        return await store_changes(tx, self._codec, changes)

    def _taken(self, row: Row, worker: int, lease_ms: int, now_ms: int) -> Change:
        job = job_of(row)
        if job.status is JobStatus.RUNNING:
            return Change(job, resumed(job, worker=worker, lease_ms=lease_ms, now_ms=now_ms), now_ms)
        if is_expired(job, now_ms):
            return _expired(job, now_ms)
        return _taken(job, worker, lease_ms, now_ms, row["command"])

    def _work_of(self, row: Row) -> Job:
        return job_of(row)

    def _given_back(self, work: Job, now_ms: int, *, is_cause: bool = True) -> Change:
        return _given_back(work, now_ms, is_cause=is_cause)

    def _causes(self, lost: Sequence[Job]) -> frozenset[str]:
        """Return the jobs that may have ended their worker: those whose step it had begun, else all that it held."""
        begun = {job.worker for job in lost if job.begun}
        return frozenset(job.id for job in lost if job.begun or job.worker not in begun)

    def _handed_over(self, work: Job, now_ms: int) -> Change:
        return _asked_again(replace(work, begun=max(0, work.begun - 1)), now_ms, is_counted=False)


async def store_changes(
    tx: Connection, codec: Codec, changes: Sequence[Change], *, source: str = SOURCE
) -> dict[str, Job]:
    """Store changes of different jobs in the caller's transaction and return the jobs as stored, by id; one that
    changed since it was claimed is left out, and nothing of its change is stored.
    """
    if not changes:
        return {}
    if len(changes) > 1:
        await tx.execute(QUERIES["hold_jobs"], [change.before.id for change in changes])
    ordered = await _with_totals(tx, [_numbered(change) for change in changes])
    columns = map(list, zip(*map(_row, ordered), strict=True))
    stored = {row["job_id"] for row in await tx.fetch(QUERIES["store_jobs"], *columns)}
    kept = [change for change in ordered if change.before.id in stored]
    await begin_calls(tx, call_begins(kept))
    for change in kept:
        if change.deck is not None:
            await _store_deck(tx, change.after, change.deck, change.now_ms)
        if change.apply is not None:
            await change.apply(tx)
    usages = await counting.count(tx, [_ended(change) for change in kept if change.has_ended])
    rows = [row for change in kept for row in _rows(codec, source, change, usages.get(change.before.id))]
    await outbox.add(tx, rows)
    return {change.before.id: change.after for change in kept}


def _rows(codec: Codec, source: str, change: Change, usage: UsageRecorded | None) -> list[OutboxRow]:
    job, now_ms = change.after, change.now_ms
    told = [outbox_event(PROGRESS, event) for event in progress_events(job, change.told, now_ms)]
    rows = [_event_row(codec, source, one.topic, one.event, job, now_ms) for one in (*change.events, *told)]
    if change.ends_checkpoint:
        rows.append(
            outbox.tombstone_row(CHECKPOINT_SAVED, job.id, source=source, now_ms=now_ms, caused_by=cause_of(job))
        )
    elif change.saves_checkpoint:
        saved = checkpoint_event(job, change.before.worker, now_ms)
        rows.append(_event_row(codec, source, CHECKPOINT_SAVED, saved, job, now_ms))
    if usage is not None:
        rows.append(_event_row(codec, source, USAGE_RECORDED, usage, job, now_ms))
    return rows


def _event_row(codec: Codec, source: str, topic: TopicName[EventT], event: EventT, job: Job, now_ms: int) -> OutboxRow:
    return outbox.event_row(codec, topic, event, source=source, now_ms=now_ms, caused_by=cause_of(job))


def _taken(job: Job, worker: int, lease_ms: int, now_ms: int, command: str | None) -> Change:
    after = taken(job, worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command)
    # A deck publishes its own slides (R2.17).
    is_told = job.epoch == 0 and job.kind is not Kind.GENERATION
    return Change(job, after, now_ms, (ProgressReport(JOB_STARTED),) if is_told else ())


def _expired(job: Job, now_ms: int) -> Change:
    after = expired(job, now_ms)
    return Change(job, after, now_ms, (ProgressReport(ERROR, error_message=after.error),))


def _given_back(job: Job, now_ms: int, *, is_cause: bool) -> Change:
    """Return the job to be requested again, or failed if that has happened too often."""
    if job.begun < BEGUN_MAX and (job.returns < RETURNS_MAX or not is_cause):
        return _asked_again(job, now_ms, is_counted=is_cause)
    error = f"its worker ended or went silent {max(job.begun, job.returns + 1)} times"
    return Change(job, failed(job, error, now_ms), now_ms, (ProgressReport(ERROR, error_message=error),))


def _asked_again(job: Job, now_ms: int, *, is_counted: bool) -> Change:
    after = returned(job, now_ms, is_counted=is_counted)
    request = outbox_event(REQUESTED[job.kind], request_event(job, now_ms))
    return Change(job, after, now_ms, events=(request,))


def _numbered(change: Change) -> Change:
    """Return the change with its reports numbered."""
    return replace(change, after=replace(change.after, seq=change.before.seq + len(change.told)))


async def _with_totals(tx: Connection, changes: Sequence[Change]) -> list[Change]:
    """Return those that end a job with the total usage of its calls."""
    ended = await counting.with_totals(tx, [change.after for change in changes if change.has_ended])
    of = {job.id: job for job in ended}
    return [replace(change, after=of.get(change.after.id, change.after)) for change in changes]


def _ended(change: Change) -> counting.Ended:
    deck = change.deck
    made = (0, 0) if deck is None else (int(not deck.is_cached), len(deck.slides))
    return counting.Ended(change.after, change.now_ms, *made)


def _row(change: Change) -> tuple[Any, ...]:
    """Return a row in the order of `store_jobs`."""
    before, job = change.before, change.after
    return (
        job.id,
        before.status,
        before.epoch,
        job.status,
        job.epoch,
        job.worker,
        job.attempt,
        job.unusable,
        job.returns,
        job.lease_until_ms,
        job.due_ms,
        job.seq,
        job.progress_pct,
        job.steps_done,
        job.steps_total,
        change.is_saved,
        None if job.checkpoint is None or not change.is_saved else orjson.dumps(job.checkpoint).decode(),
        None if job.result is None else orjson.dumps(job.result).decode(),
        job.tokens,
        job.cost_usd,
        cents(job.cost_usd) if change.is_counted else None,
        job.error,
        job.caused_by,
        to_datetime(job.updated_ms),
        None if job.completed_ms is None else to_datetime(job.completed_ms),
        job.attempts_before,
        job.approval_until_ms,
        job.begun,
        job.position,
    )


async def _store_deck(tx: Connection, job: Job, deck: Deck, now_ms: int) -> None:
    slides = orjson.dumps(deck.slides).decode()
    given = (job.id, job.organization_id, job.user_id, deck.title, slides, job.position, to_datetime(now_ms))
    await tx.execute(QUERIES["store_presentation"], *given)
    quoted = {source["document"] for slide in deck.slides for source in slide.get("sources", ()) if source is not None}
    await redactions.tag_deck(tx, job.id, sorted({*parse_args(job.kind, job.args).documents, *quoted}))
