"""The sink of controls: jobs are revoked, restarted, approved, or requested again (R2.40, R2.41).

Invariant: an ended job is unchanged, except for a failed job that is restarted, which its organization must be allowed
as a new one. Of two approvals of one wait the first counts. A revoked job is fenced from its worker by its epoch, and
is never begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from highwater.connectors.engines.controls import Controls, ControlsSink, Prepared
from highwater.connectors.identity import organizations
from highwater.connectors.jobs.judging import Judge
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.store import Change, job_of, store_changes
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.known import Origin
from highwater.connectors.kafka.outbox import outbox_event
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import CONTROL, JOB_SUBMITTED, JobControl
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import Plan
from highwater.streams.jobs.approval import approved, waits_for_approval
from highwater.streams.jobs.args import outline_from_text, parse_args
from highwater.streams.jobs.jobs import Job, request_event, restarted, revoked
from highwater.streams.jobs.progress import ERROR, JOB_RESTARTED, ProgressReport
from highwater.streams.jobs.states import ENDED, REQUESTED, JobStatus
from highwater.streams.jobs.validation import APPROVE, REPUBLISH, RESTART, REVOKE, check_jobs_event

_SOURCE = "/connectors/sinks/jobcontrols"
REVOKED = "revoked"


async def _found(tx: Connection, job_ids: list[str]) -> set[str]:
    return {row["job_id"] for row in await tx.fetch(QUERIES["known_jobs"], job_ids)}


SUBMISSIONS = Origin(JOB_SUBMITTED, "jobs", "a job", "submissions", _found)


class Decided(NamedTuple):
    """The result of a batch: changes of jobs in their order, jobs to be requested again, and refused events."""

    changes: list[Change]
    repeats: list[tuple[Job, Event[JobControl]]]
    refused: list[DeadLetter]


class JobControlsSink(ControlsSink[JobControl]):
    """A revoked job ends under the lock of its row; a failed or approved one continues; a waiting one is requested again."""

    group = "jobcontrols"
    topics = (CONTROL,)
    controls = Controls(check_jobs_event, SUBMISSIONS, _SOURCE)

    def __init__(self, context: ProcessContext, plans: Mapping[str, Plan]) -> None:
        super().__init__(context)
        self._plans = plans

    def _named(self, events: Sequence[Event[JobControl]]) -> set[str]:
        return {event.value["job_id"] for event in events}

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobControl]], prepared: Prepared[JobControl]
    ) -> Sequence[DeadLetter]:
        """Revoke, restart and request again; a job that does not exist now was never submitted, was refused, or is erased."""
        if not prepared.events:
            return prepared.dead
        now_ms = self._clock()
        judge = await self._judge(tx, prepared.events, now_ms)
        ids = sorted({event.value["job_id"] for event in prepared.events})
        held = {job.id: job for job in map(job_of, await tx.fetch(QUERIES["lock_jobs"], ids))}
        changes, repeats, refused = _decided(held, prepared.events, judge, now_ms)
        for some in _rounds(changes):
            if len(await store_changes(tx, self._codec, some, source=_SOURCE)) < len(some):
                raise UnavailableError("a job changed while it was locked; the batch is repeated")
        await tx.execute(QUERIES["republish_jobs"], [job.id for job, _ in repeats], to_datetime(now_ms))
        told = [
            self._tell.row(REQUESTED[job.kind], request_event(job, now_ms), now_ms, event.record.position)
            for job, event in repeats
        ]
        await outbox.add(tx, told)
        return [*prepared.dead, *refused]

    async def _judge(self, tx: Connection, events: Sequence[Event[JobControl]], now_ms: int) -> Judge:
        """Return the judge of restarts; it locks organizations before the rows of jobs."""
        ids = sorted({event.value["job_id"] for event in events if event.value["action"] == RESTART})
        rows = await tx.fetch(QUERIES["submissions_to_restart"], ids) if ids else []
        names = {row["organization_id"] for row in rows}
        if names:
            await organizations.lock(tx, names)
        documents = {one for row in rows for one in parse_args(row["kind"], row["args"]).documents}
        return await Judge.of(tx, names, documents, self._plans, now_ms)


def _decided(stored_jobs: Mapping[str, Job], events: Sequence[Event[JobControl]], judge: Judge, now_ms: int) -> Decided:
    """Return the result of each event, in the order of the log; one that finds its job elsewhere changes nothing."""
    jobs, repeats = dict(stored_jobs), dict[str, tuple[Job, Event[JobControl]]]()
    changes: list[Change] = []
    refused: list[DeadLetter] = []
    for event in events:
        action, job = event.value["action"], jobs.get(event.value["job_id"])
        if job is None:
            detail = f"no job {event.value['job_id']} was submitted before"
            refused.append(DeadLetter(event.record, "unknown_job", detail))
        elif action == REPUBLISH and job.status is JobStatus.PENDING:
            repeats[job.id] = (job, event)
        elif (change := _change(job, event, judge, now_ms)) is not None:
            changes.append(change)
            jobs[job.id] = replace(change.after, seq=job.seq + len(change.told))
            repeats.pop(job.id, None)
    return Decided(changes, list(repeats.values()), refused)


def _rounds(changes: Sequence[Change]) -> list[list[Change]]:
    """Return the changes of each job one after the other, those of different jobs together."""
    rounds: list[list[Change]] = []
    count: Counter[str] = Counter()
    for change in changes:
        place = count[change.before.id]
        if place == len(rounds):
            rounds.append([])
        rounds[place].append(change)
        count[change.before.id] += 1
    return rounds


def _change(job: Job, event: Event[JobControl], judge: Judge, now_ms: int) -> Change | None:
    """Return the change of a job by a revocation, an approval or a restart; None if there is none."""
    action, at = event.value["action"], str(event.record.position)
    if action == REVOKE and job.status not in ENDED:
        error = f"{REVOKED}: {event.value['reason']}" if event.value["reason"].strip() else REVOKED
        after = replace(revoked(job, error, now_ms), caused_by=at)
        return Change(job, after, now_ms, (ProgressReport(ERROR, error_message=error),))
    if action == APPROVE and waits_for_approval(job):
        outline = event.value.get("outline")
        edited = None if outline is None else outline_from_text("outline", outline)
        after = replace(approved(job, edited, now_ms), caused_by=at)
        request = outbox_event(REQUESTED[job.kind], request_event(after, now_ms))
        return Change(job, after, now_ms, events=(request,))
    if action == RESTART and job.status is JobStatus.FAILED:
        limit = judge.refused(job.kind, job.organization_id, parse_args(job.kind, job.args))
        if limit is not None:
            after = replace(job, error=limit, caused_by=at, updated_ms=now_ms)
            return Change(job, after, now_ms, (ProgressReport(ERROR, error_message=limit),))
        after = replace(restarted(job, now_ms), caused_by=at)
        request = outbox_event(REQUESTED[job.kind], request_event(after, now_ms))
        return Change(job, after, now_ms, (ProgressReport(JOB_RESTARTED),), events=(request,))
    return None
