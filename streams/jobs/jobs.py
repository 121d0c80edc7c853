"""A job and the moves it makes, as values: what a worker stores is decided here.

What a job has in common with a run of a query, and the moves that are the same for both, are in `streams/engines/work.py`.
Invariant: progress never goes back (R2.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from highwater.streams.clock import to_datetime
from highwater.streams.engines.work import Work, given_back, taken_by, unheld
from highwater.streams.jobs.states import JobMove, JobRequested, JobStatus, Kind, advance, percent


@dataclass(frozen=True, slots=True)
class Job(Work):
    """A row of `jobs`. `args` is the JSON text as it was submitted; `seq` is the last progress told.

    `checkpoint` is what its steps left for the next one, None before the first. `attempts_before`: those calls of its present
    step that were made before the job was restarted; they are never made again.
    `approval_until_ms`: until when it waits for somebody's approval, None = it does not.
    """

    id: str
    kind: Kind
    organization_id: str
    user_id: str
    args: str
    status: JobStatus
    attempts_before: int = 0
    approval_until_ms: int | None = None
    expires_ms: int | None = None
    seq: int = 0
    progress_pct: int = 0
    steps_done: int = 0
    steps_total: int = 0
    checkpoint: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    tokens: int = 0
    cost_usd: Decimal = Decimal(0)

    @property
    def tries(self) -> int:
        """Calls of the present step since the job was submitted or restarted; they are what is limited (R1.32)."""
        return self.attempt - self.attempts_before

    @property
    def is_used(self) -> bool:
        """Whether its calls used anything."""
        return self.tokens > 0 or self.cost_usd > 0


def is_expired(job: Job, now_ms: int) -> bool:
    """Whether nobody began it in time (R2.40). One that was begun is brought to its end, however long that takes."""
    return job.epoch == 0 and job.expires_ms is not None and job.expires_ms <= now_ms


def taken(job: Job, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> Job:
    """The job in the hands of a worker; `command` is the position of the event that asked for it."""
    return taken_by(_moved(job, JobMove.TAKE, now_ms), worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command)


def stepped(job: Job, checkpoint: Mapping[str, Any], done: int, total: int, *, lease_until_ms: int, now_ms: int) -> Job:
    """With one more step made; what failed in it before no longer counts."""
    return replace(
        job,
        checkpoint=checkpoint,
        steps_done=done,
        steps_total=total,
        progress_pct=max(job.progress_pct, percent(done, total)),
        attempt=0,
        attempts_before=0,
        unusable=0,
        returns=0,
        lease_until_ms=lease_until_ms,
        updated_ms=now_ms,
    )


def finished(job: Job, result: Mapping[str, Any], now_ms: int, *, steps: int | None = None) -> Job:
    """At its end, with what it made; its checkpoint goes (R2.13). `steps`: how many it was in all, if only now that is known."""
    total = job.steps_total if steps is None else steps
    return _ended(
        replace(job, result=result, progress_pct=100, steps_done=total, steps_total=total, checkpoint=None),
        JobMove.FINISH,
        now_ms,
    )


def failed(job: Job, error: str, now_ms: int) -> Job:
    """At its end without what it was to give; how far it came stays to be seen."""
    return _ended(replace(job, error=error), JobMove.FAIL, now_ms)


def expired(job: Job, now_ms: int) -> Job:
    """At its end before anybody began it (R2.40)."""
    return _ended(replace(job, error="it expired before it was begun"), JobMove.EXPIRE, now_ms)


def revoked(job: Job, reason: str, now_ms: int) -> Job:
    """At its end because somebody said so; the epoch fences a worker that has it (R2.40)."""
    return _ended(replace(job, error=reason, epoch=job.epoch + 1, checkpoint=None), JobMove.REVOKE, now_ms)


def restarted(job: Job, now_ms: int) -> Job:
    """A failed job that is to go on from its checkpoint: what was made and paid stays, its calls are limited anew (R2.15)."""
    return replace(
        _moved(job, JobMove.RESTART, now_ms),
        epoch=job.epoch + 1,
        attempts_before=job.attempt,
        unusable=0,
        returns=0,
        error=None,
        completed_ms=None,
    )


def returned(job: Job, now_ms: int, *, is_counted: bool) -> Job:
    """Given back, to be asked for again. Not counted when its worker gives it back in order."""
    return given_back(_moved(job, JobMove.RETURN, now_ms), is_counted=is_counted)


def _ended(job: Job, move: JobMove, now_ms: int) -> Job:
    return replace(unheld(_moved(job, move, now_ms)), approval_until_ms=None, completed_ms=now_ms)


def _moved(job: Job, move: JobMove, now_ms: int) -> Job:
    return replace(job, status=advance(job.status, move), updated_ms=now_ms)


def request_event(job: Job, now_ms: int) -> JobRequested:
    """The command to work on a job."""
    return {
        "job_id": job.id,
        "organization_id": job.organization_id,
        "user_id": job.user_id,
        "args": job.args,
        "expires_at": job.expires_ms,
        "requested_at": now_ms,
    }


def cents(cost_usd: Decimal) -> int:
    """Cents of an exact sum in dollars, half a cent up (R2.36): 0.29 is 29, which a float would make 28."""
    return int((cost_usd * 100).quantize(Decimal(1), ROUND_HALF_UP))


def period_of(now_ms: int) -> str:
    """The month of a time in ms since 1970, as YYYY-MM in UTC (R2.36)."""
    return f"{to_datetime(now_ms):%Y-%m}"
