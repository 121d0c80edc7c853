"""The sink of jobs: what is submitted becomes a row, and a command if the organization may.

Law: a job id is one job, whoever sends it how often; what differs under a known id is refused. Whether an organization may is
decided in the order of the log and while its other jobs wait, so that a month holds no more of them than its plan says. A job
that may not be is a row that failed, with the limit in its error: whoever submitted it finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from highwater.connectors.identity import erasures, organizations
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.outbox import OutboxRow, Teller
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.jobs import JOB_SUBMITTED, PROGRESS, JobSubmitted
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import Plan, Usage, refusal, refusal_text
from highwater.streams.jobs.args import Args, parse_args
from highwater.streams.jobs.jobs import Job, failed, request_event
from highwater.streams.jobs.progress import ERROR, Told, progress_events
from highwater.streams.jobs.states import REQUESTED, JobStatus, Kind
from highwater.streams.jobs.validation import check_jobs_event

_COLUMNS = [
    "job_id", "kind", "organization_id", "user_id", "args", "status", "expires_ms", "seq", "error", "arrived_ms", "position",
    "caused_by", "created_at", "updated_at", "completed_at",
]  # fmt: skip


class Said(NamedTuple):
    """What two submissions of one job must have in common."""

    kind: Kind
    organization_id: str
    user_id: str
    args: Args
    expires_ms: int | None


class Prepared(NamedTuple):
    """Valid submissions of a batch in the order of the log, and what is refused."""

    submitted: list[tuple[Event[JobSubmitted], Said]]
    dead: list[DeadLetter]


class JobsSink(Handler[JobSubmitted, Prepared]):
    """One row a job; a command for each that may be worked on, one progress event for each that may not."""

    group = "jobs"
    topics = (JOB_SUBMITTED,)
    # One transaction's fixed cost spread over enough jobs to vanish; with the longest args a batch is 32 MiB.
    batch_max = 500

    def __init__(self, around: Surroundings, plans: Mapping[str, Plan]) -> None:
        self._clock = around.clock
        self._plans = plans
        self._tell = Teller(around.codec, "/connectors/sinks/jobs")

    async def prepare(self, events: Sequence[Event[JobSubmitted]]) -> Prepared:
        """Check the events (in a thread: long args take CPU)."""
        return await asyncio.to_thread(_prepared, events)

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobSubmitted]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Store what is new, and ask for it or say why not."""
        valid = {id(event) for event in await erasures.valid(tx, [event for event, _ in prepared.submitted])}
        submitted = [(event, said) for event, said in prepared.submitted if id(event) in valid]
        if not submitted:
            return prepared.dead
        await organizations.lock(tx, {said.organization_id for _, said in submitted})
        new, refused = await _new_ones(tx, submitted)
        if new:
            now_ms = self._clock()
            judge = await _Judge.of(tx, [said for _, said in new], self._plans, now_ms)
            jobs = [judge.job(event, said) for event, said in new]
            rows = [_row(job, event) for job, (event, _) in zip(jobs, new, strict=True)]
            await tx.copy_records_to_table("jobs", records=rows, columns=_COLUMNS)
            told = [row for job, (event, _) in zip(jobs, new, strict=True) for row in self._told(job, event, now_ms)]
            await outbox.add(tx, told)
        return [*prepared.dead, *refused]

    def _told(self, job: Job, event: Event[JobSubmitted], now_ms: int) -> list[OutboxRow]:
        at = event.record.position
        if job.status is JobStatus.PENDING:
            return [self._tell.row(REQUESTED[job.kind], request_event(job, now_ms), now_ms, at)]
        told = progress_events(job, [Told(ERROR, error_message=job.error)], now_ms)
        return [self._tell.row(PROGRESS, one, now_ms, at) for one in told]


def _prepared(events: Sequence[Event[JobSubmitted]]) -> Prepared:
    good, dead = divided(events, check_jobs_event)
    # A batch mixes partitions as they were fetched; who comes first is said by (partition, offset).
    good.sort(key=lambda event: (event.record.partition, event.record.offset))
    return Prepared([(event, _said(event.value)) for event in good], dead)


def _said(value: JobSubmitted) -> Said:
    args = parse_args(value["kind"], value["args"])
    return Said(Kind(value["kind"]), value["organization_id"], value["user_id"], args, value["expires_at"])


def _said_before(row: Row) -> Said:
    args = parse_args(row["kind"], row["args"])
    return Said(Kind(row["kind"]), row["organization_id"], row["user_id"], args, row["expires_ms"])


async def _new_ones(
    tx: Connection, submitted: Sequence[tuple[Event[JobSubmitted], Said]]
) -> tuple[list[tuple[Event[JobSubmitted], Said]], list[DeadLetter]]:
    """Submissions whose id is new, and those that say something else under a known one."""
    ids = sorted({event.value["job_id"] for event, _ in submitted})
    rows = await tx.fetch(QUERIES["known_submissions"], ids)
    known = {row["job_id"]: _said_before(row) for row in rows}
    new, refused = [], []
    for event, said in submitted:
        before = known.setdefault(event.value["job_id"], said)
        if before is said:
            new.append((event, said))
        elif before != said:
            detail = f"{event.value['job_id']} is another job"
            refused.append(DeadLetter(event.record, "conflicting_repeat", detail))
    return new, refused


class _Judge:
    """Decides on new jobs one after the other; each that may be made counts for those behind it."""

    def __init__(
        self, known: Mapping[str, Organization], used: Mapping[str, Usage], sizes: Mapping[str, int], now_ms: int
    ) -> None:
        self._known = known
        self._used = dict(used)
        self._sizes = sizes
        self._now_ms = now_ms

    @classmethod
    async def of(cls, tx: Connection, wanted: Sequence[Said], plans: Mapping[str, Plan], now_ms: int) -> _Judge:
        """What there is to know of the organizations and documents of these jobs; the organizations are locked."""
        names = {said.organization_id for said in wanted}
        known = await organizations.organizations_of(tx, names, plans)
        used = await organizations.usages_of(tx, names, now_ms)
        sizes = await organizations.sizes_of(tx, {document for said in wanted for document in said.args.documents})
        return cls(known, used, sizes, now_ms)

    def job(self, event: Event[JobSubmitted], said: Said) -> Job:
        """The job of a submission: pending, or failed by a limit."""
        found, used = self._known[said.organization_id], self._used[said.organization_id]
        largest = max((self._sizes.get(document, 0) for document in said.args.documents), default=0)
        wanted = replace(used, file_bytes=largest)
        limit = refusal(found.plan, found.status, wanted, is_new_deck=said.kind is Kind.GENERATION)
        job = self._pending(event, said)
        if limit is not None:
            error = refusal_text(limit, said.organization_id, found.plan)
            return replace(failed(job, error, self._now_ms), seq=1)
        if said.kind is Kind.GENERATION:
            self._used[said.organization_id] = replace(used, presentations=used.presentations + 1)
        return job

    def _pending(self, event: Event[JobSubmitted], said: Said) -> Job:
        at = str(event.record.position)
        return Job(
            id=event.value["job_id"],
            kind=said.kind,
            organization_id=said.organization_id,
            user_id=said.user_id,
            args=event.value["args"],
            status=JobStatus.PENDING,
            expires_ms=said.expires_ms,
            position=at,
            caused_by=at,
            created_ms=self._now_ms,
            updated_ms=self._now_ms,
        )


def _row(job: Job, event: Event[JobSubmitted]) -> tuple[Any, ...]:
    """In the order of `_COLUMNS`."""
    created, updated = to_datetime(job.created_ms), to_datetime(job.updated_ms)
    completed = None if job.completed_ms is None else to_datetime(job.completed_ms)
    said = (
        job.id,
        job.kind,
        job.organization_id,
        job.user_id,
        job.args,
        job.status,
        job.expires_ms,
        job.seq,
        job.error,
    )
    return (*said, event.record.arrived_ms, job.position, job.caused_by, created, updated, completed)
