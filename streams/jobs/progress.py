"""The progress that watchers of a job get, and what the next worker reads (R2.11, R2.17).

Invariant: progress is rounded down (R2.18), never goes back, and its events are numbered per job without gaps, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import orjson

from highwater.schemas.jobs import CheckpointSaved, JobProgressed
from highwater.streams.jobs.states import JobStatus, Kind

if TYPE_CHECKING:
    from highwater.streams.jobs.jobs import Job

SLIDE_STARTED, SLIDE_COMPLETED, GENERATION_DONE, ERROR = (
    "slide_started",
    "slide_completed",
    "generation_done",
    "error",
)
JOB_STARTED, STEP_COMPLETED, JOB_DONE = "job_started", "step_completed", "job_done"
# A failed job continues: what follows comes after its `error`.
JOB_RESTARTED = "job_restarted"
# The outline is made, and slides wait for its approval.
OUTLINE_READY = "outline_ready"
# After one of these nothing more is published, unless a failed job is restarted.
ENDS = frozenset({GENERATION_DONE, JOB_DONE, ERROR})


class ProgressReport(NamedTuple):
    """One report to watchers; the job has the rest."""

    event_type: str
    slide_number: int | None = None
    slide_id: str | None = None
    slide_title: str | None = None
    error_message: str | None = None


def done_report(kind: Kind) -> ProgressReport:
    """Return the report that a job of this kind has its result."""
    return ProgressReport(GENERATION_DONE if kind is Kind.GENERATION else JOB_DONE)


def progress_events(job: Job, reports: Sequence[ProgressReport], now_ms: int) -> list[JobProgressed]:
    """Return the events that report on a job, the last ones up to its `seq`."""
    first = job.seq - len(reports) + 1
    return [
        {
            "job_id": job.id,
            "organization_id": job.organization_id,
            "user_id": job.user_id,
            "seq": first + place,
            "event_type": one.event_type,
            "slide_number": one.slide_number,
            "slide_id": one.slide_id,
            "slide_title": one.slide_title,
            "progress_pct": job.progress_pct,
            "error_message": one.error_message,
            "at": now_ms,
        }
        for place, one in enumerate(reports)
    ]


def checkpoint_event(job: Job, worker: int | None, now_ms: int) -> CheckpointSaved:
    """Return the state from which the next worker continues. `outline` and `slide_ids` of a checkpoint are separate
    fields, the rest is its state.
    """
    held = dict(job.checkpoint or {})
    outline = held.pop("outline", None)
    return {
        "job_id": job.id,
        "presentation_id": job.id,
        "status": "failed" if job.status is JobStatus.FAILED else "running",
        "outline": "" if outline is None else orjson.dumps(outline).decode(),
        "slides_completed": job.steps_done,
        "slides_total": job.steps_total,
        "completed_slide_ids": list(held.pop("slide_ids", ())),
        "worker_id": "" if worker is None else str(worker),
        "epoch": job.epoch,
        "state": orjson.dumps(held).decode(),
        "at": now_ms,
    }
