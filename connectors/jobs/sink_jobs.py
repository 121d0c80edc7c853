"""The sink of jobs: a submission becomes a row, and a command if the organization may run it.

Invariant: a job id is one job, however often it is sent; different content under a known id is refused. Whether an
organization may run it is decided in the order of the log and while its other jobs wait, so that a month has no more of
them than its plan allows. A job that is not allowed is a failed row, with the limit in its error, where the submitter
finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from highwater.connectors.engines.submissions import new_ones
from highwater.connectors.identity import erasures, organizations
from highwater.connectors.jobs.judging import Judge
from highwater.connectors.jobs.submissions import known_submissions
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import checked_in_order
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import JOB_SUBMITTED, PROGRESS, JobSubmitted
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import Plan
from highwater.streams.jobs.args import Submission, submission_of
from highwater.streams.jobs.jobs import Job, failed, request_event
from highwater.streams.jobs.progress import ERROR, ProgressReport, progress_events
from highwater.streams.jobs.states import REQUESTED, JobStatus
from highwater.streams.jobs.validation import check_jobs_event

_COLUMNS = [
    "job_id", "kind", "organization_id", "user_id", "args", "status", "expires_ms", "seq", "error", "arrived_ms", "position",
    "caused_by", "created_at", "updated_at", "completed_at",
]  # fmt: skip


class Prepared(NamedTuple):
    """Valid submissions of a batch in the order of the log, and refused ones."""

    submitted: list[tuple[Event[JobSubmitted], Submission]]
    dead: list[DeadLetter]


class JobsSink(Handler[JobSubmitted, Prepared]):
    """One row per job; a command for each permitted one, one progress event for each refused one."""

    group = "jobs"
    topics = (JOB_SUBMITTED,)
    # The fixed cost of one transaction spread over enough jobs to be negligible; with the longest args a batch is 32
    # MiB.
    batch_max = 500

    def __init__(self, context: ProcessContext, plans: Mapping[str, Plan]) -> None:
        self._clock = context.clock
        self._plans = plans
        self._tell = OutboxFactory(context.codec, "/connectors/sinks/jobs")

    async def prepare(self, events: Sequence[Event[JobSubmitted]]) -> Prepared:
        """Check the events (in a thread: long args take CPU)."""
        return await asyncio.to_thread(_prepared, events)

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobSubmitted]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Store new jobs, and request them or report why not."""
        valid = {id(event) for event in await erasures.valid(tx, [event for event, _ in prepared.submitted])}
        submitted = [(event, said) for event, said in prepared.submitted if id(event) in valid]
        if not submitted:
            return prepared.dead
        await organizations.lock(tx, {said.organization_id for _, said in submitted})
        new, refused = await new_ones(tx, submitted, known_submissions, _id_of, "another job")
        if new:
            now_ms = self._clock()
            names = {said.organization_id for _, said in new}
            documents = {document for _, said in new for document in said.args.documents}
            judge = await Judge.of(tx, names, documents, self._plans, now_ms)
            jobs = [_judged(judge, event, said, now_ms) for event, said in new]
            rows = [_row(job, event) for job, (event, _) in zip(jobs, new, strict=True)]
            await tx.copy_records_to_table("jobs", records=rows, columns=_COLUMNS)
            told = [row for job, (event, _) in zip(jobs, new, strict=True) for row in self._told(job, event, now_ms)]
            await outbox.add(tx, told)
        return [*prepared.dead, *refused]

    def _told(self, job: Job, event: Event[JobSubmitted], now_ms: int) -> list[OutboxRow]:
        at = event.record.position
        if job.status is JobStatus.PENDING:
            return [self._tell.row(REQUESTED[job.kind], request_event(job, now_ms), now_ms, at)]
        told = progress_events(job, [ProgressReport(ERROR, error_message=job.error)], now_ms)
        return [self._tell.row(PROGRESS, one, now_ms, at) for one in told]


def _prepared(events: Sequence[Event[JobSubmitted]]) -> Prepared:
    good, dead = checked_in_order(events, check_jobs_event)
    return Prepared([(event, submission_of(event.value)) for event in good], dead)


def _id_of(event: Event[JobSubmitted]) -> str:
    return event.value["job_id"]


def _judged(judge: Judge, event: Event[JobSubmitted], submission: Submission, now_ms: int) -> Job:
    """Return the job of a submission: pending, or failed by a limit."""
    job = _pending(event, submission, now_ms)
    error = judge.refused(submission.kind, submission.organization_id, submission.args)
    return job if error is None else replace(failed(job, error, now_ms), seq=1)


def _pending(event: Event[JobSubmitted], submission: Submission, now_ms: int) -> Job:
    at = str(event.record.position)
    return Job(
        id=event.value["job_id"],
        kind=submission.kind,
        organization_id=submission.organization_id,
        user_id=submission.user_id,
        args=event.value["args"],
        status=JobStatus.PENDING,
        expires_ms=submission.expires_ms,
        position=at,
        caused_by=at,
        created_ms=now_ms,
        updated_ms=now_ms,
    )


def _row(job: Job, event: Event[JobSubmitted]) -> tuple[Any, ...]:
    """Return a row in the order of `_COLUMNS`."""
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
