"""Which failed jobs a filter finds, and what becomes of them if they are restarted together. Pure; times in ms since 1970.

Invariant: page, API and command decide by `plan_restarts` alone, so that what is shown beforehand is what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Jobs that are restarted at once: as many as the sink of controls stores in one batch.
RESTARTS_MAX = 500
# Failed jobs that are looked at, the latest; of more the plan says that it is not whole.
LOOKED_AT_MAX = 5_000
# The beginning of an error says what went wrong; what follows a colon is of the one job.
_REASON_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that failed; `steps_done`: the steps that are stored, after which it goes on."""

    job_id: str
    kind: str
    user_id: str
    error: str
    steps_done: int
    steps_total: int
    failed_ms: int

    @property
    def reason(self) -> str:
        """What went wrong, without what is of this job alone."""
        return self.error.partition(":")[0].strip()[:_REASON_CHARACTERS_MAX] or "unknown"


@dataclass(frozen=True, slots=True)
class RestartFilter:
    """Which failed jobs are meant.

    Attributes:
        reason: what their error contains, in any case of letters; empty: any.
        step: only those that failed after this many steps.
        job_ids: only these; None: all that are found.
    """

    reason: str = ""
    step: int | None = None
    job_ids: Collection[str] | None = None

    def finds(self, job: FailedJob) -> bool:
        """Whether a failed job is one of them."""
        return (
            self.reason.casefold() in job.error.casefold()
            and self.step in (None, job.steps_done)
            and (self.job_ids is None or job.job_id in self.job_ids)
        )


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart begins. `found`: how many the filter finds; `is_whole`: whether every failed job was looked at."""

    jobs: tuple[FailedJob, ...]
    found: int
    reasons: tuple[tuple[str, int], ...]
    is_whole: bool

    @property
    def steps_left(self) -> int:
        """Steps that are still to be made, as far as their number is known."""
        return sum(max(0, job.steps_total - job.steps_done) for job in self.jobs)


def plan_restarts(failed: Sequence[FailedJob], wanted: RestartFilter, *, jobs_max: int = RESTARTS_MAX) -> RestartPlan:
    """What a restart of the failed jobs that a filter finds begins: of more than `jobs_max` those that failed last.

    Args:
        failed: the latest failed jobs, at most `LOOKED_AT_MAX` and one.
        wanted: the filter.
        jobs_max: how many are restarted at once.
    """
    found = [job for job in failed[:LOOKED_AT_MAX] if wanted.finds(job)]
    found.sort(key=lambda job: (-job.failed_ms, job.job_id))
    reasons = sorted(Counter(job.reason for job in found).items(), key=lambda one: (-one[1], one[0]))
    return RestartPlan(tuple(found[:jobs_max]), len(found), tuple(reasons), len(failed) <= LOOKED_AT_MAX)
