"""The sink of what is said of jobs: they are revoked, or asked for again (R2.40, R2.41).

Law: what has ended stays as it ended; a revoked job is taken from whoever has it by its epoch, and is never begun. A control of a
job that is not known waits until all submissions of the log are accounted for, so it is a group of its own: were it that of the
submissions, a batch that waits would keep them from being read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.store import job_of
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.known import Known, Origin
from highwater.connectors.kafka.outbox import OutboxRow, Teller
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import CHECKPOINT_SAVED, CONTROL, JOB_SUBMITTED, PROGRESS, JobControl
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.jobs import Job, request_event, revoked
from highwater.streams.jobs.progress import ERROR, Told, progress_events
from highwater.streams.jobs.states import ENDED, REQUESTED, JobStatus
from highwater.streams.jobs.validation import REVOKE, check_jobs_event

_SOURCE = "/connectors/sinks/jobcontrols"
REVOKED = "revoked"


async def _found(tx: Connection, job_ids: list[str]) -> set[str]:
    return {row["job_id"] for row in await tx.fetch(QUERIES["known_jobs"], job_ids)}


SUBMISSIONS = Origin(JOB_SUBMITTED, "jobs", "a job", "submissions", _found)


class Prepared(NamedTuple):
    """Valid events of a batch in the order of the log, and what is refused."""

    events: list[Event[JobControl]]
    dead: list[DeadLetter]


class Moved(NamedTuple):
    """A job before and after a control."""

    before: Job
    after: Job
    event: Event[JobControl]


class JobControlsSink(Handler[JobControl, Prepared]):
    """A revoked job ends under the lock of its row; one that waits is asked for again."""

    group = "jobcontrols"
    topics = (CONTROL,)
    # Each is the row of a job that is locked until the batch ends; who works on one of them waits as long.
    batch_max = 500

    def __init__(self, around: Surroundings) -> None:
        self._clock = around.clock
        self._known = Known(around.pool, around.admin, SUBMISSIONS)
        self._tell = Teller(around.codec, _SOURCE)

    async def prepare(self, events: Sequence[Event[JobControl]]) -> Prepared:
        """Check the events, and that all submissions are stored if one of their jobs is not."""
        good, dead = divided(events, check_jobs_event)
        good.sort(key=lambda event: (event.record.partition, event.record.offset))
        await self._known.unknown({event.value["job_id"] for event in good})
        return Prepared(good, dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobControl]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Revoke and ask again; a job that is not there now was never submitted, was refused, or is erased."""
        if not prepared.events:
            return prepared.dead
        now_ms = self._clock()
        ids = sorted({event.value["job_id"] for event in prepared.events})
        held = {job.id: job for job in map(job_of, await tx.fetch(QUERIES["lock_jobs"], ids))}
        revocations, repeats, refused = _decided(held, prepared.events, now_ms)
        await _store(tx, revocations, now_ms)
        await tx.execute(QUERIES["republish_jobs"], [job.id for job, _ in repeats], to_datetime(now_ms))
        told = [row for moved in revocations for row in self._ended(moved, now_ms)]
        told += [
            self._tell.row(REQUESTED[job.kind], request_event(job, now_ms), now_ms, event.record.position)
            for job, event in repeats
        ]
        await outbox.add(tx, told)
        return [*prepared.dead, *refused]

    def _ended(self, moved: Moved, now_ms: int) -> list[OutboxRow]:
        """That a job was revoked; nobody goes on from its checkpoint."""
        before, after, event = moved
        at = event.record.position
        told = progress_events(after, [Told(ERROR, error_message=after.error)], now_ms)
        rows = [self._tell.row(PROGRESS, one, now_ms, at) for one in told]
        if before.checkpoint is not None:
            rows.append(outbox.tombstone_row(CHECKPOINT_SAVED, after.id, source=_SOURCE, now_ms=now_ms, caused_by=at))
        return rows


def _decided(
    held: Mapping[str, Job], events: Sequence[Event[JobControl]], now_ms: int
) -> tuple[list[Moved], list[tuple[Job, Event[JobControl]]], list[DeadLetter]]:
    """Jobs that are revoked, those asked for again, each once, and controls of jobs that nobody submitted."""
    jobs, repeats = dict(held), dict[str, tuple[Job, Event[JobControl]]]()
    revocations, refused = [], []
    for event in events:
        job = jobs.get(event.value["job_id"])
        if job is None:
            detail = f"no job {event.value['job_id']} was submitted before"
            refused.append(DeadLetter(event.record, "unknown_job", detail))
        elif event.value["action"] == REVOKE and job.status not in ENDED:
            error = f"{REVOKED}: {event.value['reason']}" if event.value["reason"].strip() else REVOKED
            after = replace(revoked(job, error, now_ms), seq=job.seq + 1)
            revocations.append(Moved(job, after, event))
            jobs[job.id] = after
            repeats.pop(job.id, None)
        elif event.value["action"] != REVOKE and job.status is JobStatus.PENDING:
            repeats[job.id] = (job, event)
    return revocations, list(repeats.values()), refused


async def _store(tx: Connection, revocations: Sequence[Moved], now_ms: int) -> None:
    if not revocations:
        return
    used = await tx.fetch(QUERIES["totals_of_jobs"], [after.id for _, after, _ in revocations])
    totals = {row["job_id"]: (row["tokens"], row["cost_usd"]) for row in used}
    rows = [
        (
            before.id,
            before.status,
            after.epoch,
            after.status,
            after.seq,
            after.error,
            *totals.get(before.id, (before.tokens, before.cost_usd)),
            str(event.record.position),
        )
        for before, after, event in revocations
    ]
    status = await tx.execute(QUERIES["revoke_jobs"], *map(list, zip(*rows, strict=True)), to_datetime(now_ms))
    if status != f"UPDATE {len(rows)}":
        raise UnavailableError("a job moved while it was locked; the batch is repeated")
