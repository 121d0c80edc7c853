"""Jobs of one kind in PostgreSQL: taken, stored with what they tell, given back.

Law: a checkpoint, what is told of it and what was made are one transaction, and all of it happens only if the job still is as
whoever stores it took it (R2.15). A job is counted in the transaction that completes it, so once (R2.36); its result is stored
before its checkpoint goes (R2.13).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import asyncpg
import orjson

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxEvent, OutboxRow, outbox_event
from highwater.connectors.models.call_rows import CallBegin, begin_calls
from highwater.connectors.postgres.pool import Connection, Row, reading, transaction
from highwater.schemas.codec import Codec
from highwater.schemas.jobs import CHECKPOINT_SAVED, PROGRESS, USAGE_RECORDED, UsageRecorded
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.jobs.jobs import (
    RETURNS_MAX,
    Job,
    cents,
    expired,
    failed,
    is_expired,
    period_of,
    request_event,
    returned,
    taken,
)
from highwater.streams.jobs.progress import ERROR, JOB_STARTED, Told, checkpoint_event, progress_events
from highwater.streams.jobs.states import ENDED, REQUESTED, JobStatus, Kind

_SOURCE = "/connectors/workers/jobs"

# Effects in the transaction of a step; called only if the job still is ours.
Apply = Callable[[Connection], Awaitable[None]]


class Asked(NamedTuple):
    """A job that is to be worked on, and the command that says so."""

    job_id: str
    command: Position


class Call(NamedTuple):
    """A call of the language model that is about to be made."""

    stage: str
    attempt: int
    model: str


class Deck(NamedTuple):
    """A deck as it is stored; `slides` are JSON objects in order. `is_cached`: it was made before, for the same question."""

    title: str
    slides: tuple[Mapping[str, Any], ...]
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A job as it was taken and as it is to be stored, with what is told and stored beside it.

    `events` are for the outbox; `deck` is what a generation made, and is what is counted, unless it was made before.
    """

    before: Job
    after: Job
    now_ms: int
    told: tuple[Told, ...] = ()
    call: Call | None = None
    events: tuple[OutboxEvent, ...] = ()
    apply: Apply | None = None
    deck: Deck | None = None

    @property
    def is_saved(self) -> bool:
        """Whether its checkpoint is another one."""
        return self.after.checkpoint is not self.before.checkpoint

    @property
    def has_ended(self) -> bool:
        """Whether the job has come to its end by it."""
        return self.after.status in ENDED


def job_of(row: Row) -> Job:
    """The job in a row of `jobs`."""
    return Job(
        id=str(row["job_id"]),
        kind=Kind(row["kind"]),
        organization_id=row["organization_id"],
        user_id=row["user_id"],
        args=row["args"],
        status=JobStatus(row["status"]),
        epoch=row["epoch"],
        worker=row["worker"],
        attempt=row["attempt"],
        unusable=row["unusable"],
        returns=row["returns"],
        lease_until_ms=row["lease_until_ms"],
        due_ms=row["due_ms"],
        expires_ms=row["expires_ms"],
        seq=row["seq"],
        progress_pct=row["progress_pct"],
        steps_done=row["steps_done"],
        steps_total=row["steps_total"],
        checkpoint=_json(row["checkpoint"]),
        result=_json(row["result"]),
        tokens=row["tokens"],
        cost_usd=row["cost_usd"],
        error=row["error"],
        position=row["position"],
        caused_by=row["caused_by"],
        created_ms=to_ms(row["created_at"]),
        updated_ms=to_ms(row["updated_at"]),
        completed_ms=None if row["completed_at"] is None else to_ms(row["completed_at"]),
    )


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


class Jobs:
    """The store of jobs of one kind, for those that work on them."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], codec: Codec, kind: Kind) -> None:
        self.kind = kind
        self._pool = pool
        self._codec = codec

    async def capture(self, asked: Sequence[Asked], *, worker: int, lease_ms: int, now_ms: int) -> list[Job]:
        """The jobs that nobody had and that are ours now; one that nobody began in time has expired instead (R2.40)."""
        commands = {one.job_id: str(one.command) for one in asked}  # however often a job is asked for
        if not commands:
            return []
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["wanted_jobs"], list(commands), self.kind)
            return await self._take(tx, map(job_of, rows), worker, lease_ms, now_ms, commands)

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[Job]:
        """Jobs whose next attempt is due, ours now."""
        async with reading(self._pool) as tx:
            rows = await tx.fetch(QUERIES["take_due_jobs"], now_ms, worker, now_ms + lease_ms, most, self.kind)
        return [job_of(row) for row in rows]

    async def take_forgotten(self, *, worker: int, lease_ms: int, now_ms: int, silent_ms: int, most: int) -> list[Job]:
        """Jobs that wait and that nobody asks for, ours now (R2.41)."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["forgotten_jobs"], to_datetime(now_ms - silent_ms), most, self.kind)
            return await self._take(tx, map(job_of, rows), worker, lease_ms, now_ms, {})

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[Job]:
        """Jobs whose worker is gone or whose lease is over: asked for again, or failed after so many times."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["lost_jobs"], list(dead), now_ms, most, self.kind)
            changes = [_given_back(job_of(row), now_ms) for row in rows]
            await self._store(tx, changes)
        return [change.after for change in changes]

    async def hand_over(self, worker: int, *, now_ms: int) -> int:
        """Give back what a worker holds that ends in order; the number of jobs."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["jobs_of_worker"], worker)
            changes = [_asked_again(job_of(row), now_ms, is_counted=False) for row in rows]
            await self._store(tx, changes)
        return len(changes)

    async def workers(self, tx: Connection) -> list[int]:
        """Who holds jobs of this kind."""
        return [row["worker"] for row in await tx.fetch(QUERIES["workers_with_jobs"], self.kind)]

    async def store(self, changes: Sequence[Change]) -> list[Job | None]:
        """Store changes in one transaction: each job as it was stored; None if it was not as it was taken: nothing of it is."""
        async with transaction(self._pool) as tx:
            stored = await self._store(tx, changes)
        return [stored.get(change.before.id) for change in changes]

    # -- in a transaction -----------------------------------------------------------------------------------------------

    async def _take(
        self, tx: Connection, jobs: Iterable[Job], worker: int, lease_ms: int, now_ms: int, commands: Mapping[str, str]
    ) -> list[Job]:
        changes = [
            _expired(job, now_ms)
            if is_expired(job, now_ms)
            else _taken(job, worker, lease_ms, now_ms, commands.get(job.id))
            for job in jobs
        ]
        stored = await self._store(tx, changes)
        return [job for job in stored.values() if job.status is JobStatus.RUNNING]

    async def _store(self, tx: Connection, changes: Sequence[Change]) -> dict[str, Job]:
        if not changes:
            return {}
        if len(changes) > 1:
            await tx.execute(QUERIES["hold_jobs"], [change.before.id for change in changes])
        ordered = await _with_totals(tx, [_numbered(change) for change in changes])
        columns = map(list, zip(*map(_row, ordered), strict=True))
        stored = {row["job_id"] for row in await tx.fetch(QUERIES["store_jobs"], *columns)}
        kept = [change for change in ordered if change.before.id in stored]
        await begin_calls(tx, _begins(kept))
        for change in kept:
            if change.deck is not None:
                await _store_deck(tx, change.after, change.deck, change.now_ms)
            if change.apply is not None:
                await change.apply(tx)
        usages = await _usages(tx, kept)
        await outbox.add(tx, [row for change in kept for row in self._rows(change, usages.get(change.before.id))])
        return {change.before.id: change.after for change in kept}

    def _rows(self, change: Change, usage: UsageRecorded | None) -> list[OutboxRow]:
        job, now_ms = change.after, change.now_ms
        told = [outbox_event(PROGRESS, event) for event in progress_events(job, change.told, now_ms)]
        rows = [self._event(one.topic, one.event, job, now_ms) for one in (*change.events, *told)]
        if job.status is JobStatus.COMPLETED:
            cause = _cause(job)
            rows.append(outbox.tombstone_row(CHECKPOINT_SAVED, job.id, source=_SOURCE, now_ms=now_ms, caused_by=cause))
        elif change.is_saved or (job.status is JobStatus.FAILED and job.checkpoint is not None):
            rows.append(self._event(CHECKPOINT_SAVED, checkpoint_event(job, change.before.worker, now_ms), job, now_ms))
        if usage is not None:
            rows.append(self._event(USAGE_RECORDED, usage, job, now_ms))
        return rows

    def _event(self, topic: TopicName[EventT], event: EventT, job: Job, now_ms: int) -> OutboxRow:
        return outbox.event_row(self._codec, topic, event, source=_SOURCE, now_ms=now_ms, caused_by=_cause(job))


def _cause(job: Job) -> Position | None:
    return parse_position(job.caused_by) if job.caused_by else None


def _taken(job: Job, worker: int, lease_ms: int, now_ms: int, command: str | None) -> Change:
    after = taken(job, worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command)
    # A deck tells of its slides alone (R2.17).
    is_told = job.epoch == 0 and job.kind is not Kind.GENERATION
    return Change(job, after, now_ms, (Told(JOB_STARTED),) if is_told else ())


def _expired(job: Job, now_ms: int) -> Change:
    after = expired(job, now_ms)
    return Change(job, after, now_ms, (Told(ERROR, error_message=after.error),))


def _given_back(job: Job, now_ms: int) -> Change:
    """To be asked for again, or failed when that was so often enough."""
    if job.returns < RETURNS_MAX:
        return _asked_again(job, now_ms, is_counted=True)
    error = f"its worker ended or went silent {job.returns + 1} times"
    return Change(job, failed(job, error, now_ms), now_ms, (Told(ERROR, error_message=error),))


def _asked_again(job: Job, now_ms: int, *, is_counted: bool) -> Change:
    after = returned(job, now_ms, is_counted=is_counted)
    request = outbox_event(REQUESTED[job.kind], request_event(job, now_ms))
    return Change(job, after, now_ms, events=(request,))


def _numbered(change: Change) -> Change:
    """With the progress that it tells counted."""
    return replace(change, after=replace(change.after, seq=change.before.seq + len(change.told)))


async def _with_totals(tx: Connection, changes: Sequence[Change]) -> list[Change]:
    """Those that end a job with what its calls used in all."""
    ended = [change.before.id for change in changes if change.has_ended]
    if not ended:
        return list(changes)
    rows = {row["job_id"]: row for row in await tx.fetch(QUERIES["totals_of_jobs"], ended)}
    return [
        replace(change, after=replace(change.after, tokens=row["tokens"], cost_usd=row["cost_usd"]))
        if change.has_ended and (row := rows.get(change.before.id)) is not None
        else change
        for change in changes
    ]


def _row(change: Change) -> tuple[Any, ...]:
    """In the order of `store_jobs`."""
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
        None if change.deck is None else cents(job.cost_usd),
        job.error,
        job.caused_by,
        to_datetime(job.updated_ms),
        None if job.completed_ms is None else to_datetime(job.completed_ms),
    )


def _begins(changes: Sequence[Change]) -> list[CallBegin]:
    return [
        CallBegin(change.after.id, change.call.stage, change.call.attempt, None, change.call.model, (), change.now_ms)
        for change in changes
        if change.call is not None
    ]


async def _store_deck(tx: Connection, job: Job, deck: Deck, now_ms: int) -> None:
    slides = orjson.dumps(deck.slides).decode()
    given = (job.id, job.organization_id, job.user_id, deck.title, slides, job.position, to_datetime(now_ms))
    await tx.execute(QUERIES["store_presentation"], *given)


async def _usages(tx: Connection, changes: Sequence[Change]) -> dict[str, UsageRecorded]:
    """What is counted of decks that are completed (R2.36), by job."""
    usages: dict[str, UsageRecorded] = {}
    # Places are locked in this order.
    for change in sorted(changes, key=lambda change: (change.after.organization_id, change.before.id)):
        job, period = change.after, period_of(change.now_ms)
        if change.deck is None:
            continue
        usages[job.id] = {
            "organization_id": job.organization_id,
            "job_id": job.id,
            "period": period,
            "seq": await tx.fetchval(QUERIES["next_usage_place"], job.organization_id, period),
            "presentations": 0 if change.deck.is_cached else 1,
            "slides": len(change.deck.slides),
            "tokens": job.tokens,
            "cost_cents": cents(job.cost_usd),
            "at": change.now_ms,
        }
    return usages
