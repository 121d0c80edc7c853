"""A job and its moves as values: this decides what a worker stores.

The fields that a job shares with a query run, and the moves that are the same for both, are in
`streams/engines/work.py`. Invariant: progress never goes back (R2.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from highwater.streams.clock import to_datetime
from highwater.streams.engines.work import Work, claimed_by, released_work, unclaimed
from highwater.streams.jobs.states import JobMove, JobRequested, JobStatus, Kind, advance, percent


@dataclass(frozen=True, slots=True)
class Job(Work):
    """A row of `jobs`. `args` is the JSON text as it was submitted; `seq` is the last published progress.

    `checkpoint` contains the results of its steps for the next one, None before the first. `attempts_before`: the calls
    of its current step before the job was restarted; they are never repeated. `begun`: how often its current step was begun
    and not ended. `approval_until_ms`: the deadline for approval, None if it does not wait for one.
    """

    id: str
    kind: Kind
    organization_id: str
    user_id: str
    args: str
    status: JobStatus
    attempts_before: int = 0
    begun: int = 0
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
        """Return the calls of the current step since the job was submitted or restarted, which are limited (R1.32)."""
        return self.attempt - self.attempts_before

    @property
    def is_used(self) -> bool:
        """Return whether its calls consumed anything."""
        return self.tokens > 0 or self.cost_usd > 0


# A step is begun this often; the third worker that ends in it was ended by it (R1.7).
BEGUN_MAX = 3


def is_expired(job: Job, now_ms: int) -> bool:
    """Return whether no worker began it in time (R2.40). A job that was begun is finished, however long that takes."""
    return job.epoch == 0 and job.expires_ms is not None and job.expires_ms <= now_ms


def taken(job: Job, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> Job:
    """Return the job claimed by a worker; `command` is the position of the event that requested it."""
    return claimed_by(
        _moved(job, JobMove.TAKE, now_ms), worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command
    )


def stepped(job: Job, checkpoint: Mapping[str, Any], done: int, total: int, *, lease_until_ms: int, now_ms: int) -> Job:
    """Return the job after one more step; earlier failures of the step no longer count."""
    return replace(
        job,
        checkpoint=checkpoint,
        steps_done=done,
        steps_total=total,
        progress_pct=max(job.progress_pct, percent(done, total)),
        attempt=0,
        attempts_before=0,
        begun=0,
        unusable=0,
        returns=0,
        lease_until_ms=lease_until_ms,
        updated_ms=now_ms,
    )


def finished(job: Job, result: Mapping[str, Any], now_ms: int, *, steps: int | None = None) -> Job:
    """Return the completed job with its result, without its checkpoint (R2.13). `steps`: their total, if it is known only now."""
    total = job.steps_total if steps is None else steps
    return _ended(
        replace(job, result=result, progress_pct=100, steps_done=total, steps_total=total, checkpoint=None),
        JobMove.FINISH,
        now_ms,
    )


def failed(job: Job, error: str, now_ms: int) -> Job:
    """Return the failed job; its progress stays visible."""
    return _ended(replace(job, error=error), JobMove.FAIL, now_ms)


def expired(job: Job, now_ms: int) -> Job:
    """Return the job that expired before a worker began it (R2.40)."""
    return _ended(replace(job, error="it expired before it was begun"), JobMove.EXPIRE, now_ms)


def revoked(job: Job, reason: str, now_ms: int) -> Job:
    """Return the job that a caller ended; the epoch fences a worker that holds it (R2.40)."""
    return _ended(replace(job, error=reason, epoch=job.epoch + 1, checkpoint=None), JobMove.REVOKE, now_ms)


def restarted(job: Job, now_ms: int) -> Job:
    """Return a failed job that continues from its checkpoint: paid results are kept, and its calls are limited again
    from zero (R2.15).
    """
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
    """Return the job released for another worker. Not counted as an attempt if its worker releases it in order."""
    return released_work(_moved(job, JobMove.RETURN, now_ms), is_counted=is_counted)


def step_begun(job: Job) -> Job:
    """Return the job with its current step begun once more: it is stored before anything of the step is read."""
    return replace(job, begun=job.begun + 1)


def _ended(job: Job, move: JobMove, now_ms: int) -> Job:
    return replace(unclaimed(_moved(job, move, now_ms)), begun=0, approval_until_ms=None, completed_ms=now_ms)


def _moved(job: Job, move: JobMove, now_ms: int) -> Job:
    return replace(job, status=advance(job.status, move), updated_ms=now_ms)


def request_event(job: Job, now_ms: int) -> JobRequested:
    """Return the command to work on a job."""
    return {
        "job_id": job.id,
        "organization_id": job.organization_id,
        "user_id": job.user_id,
        "args": job.args,
        "expires_at": job.expires_ms,
        "requested_at": now_ms,
    }


def cents(cost_usd: Decimal) -> int:
    """Return the cents of an exact sum in dollars, half a cent rounded up (R2.36): 0.29 is 29, which a float would make 28."""
    return int((cost_usd * 100).quantize(Decimal(1), ROUND_HALF_UP))


def period_of(now_ms: int) -> str:
    """Return the month of a time in ms since 1970, as YYYY-MM in UTC (R2.36)."""
    return f"{to_datetime(now_ms):%Y-%m}"
