"""Owns the wait of a job for somebody's approval of its outline: how long it may be, how it begins, and its two ends.

Invariant. A job that waits has no worker and takes no place of its organization (`streams/identity/sharing.py`). It
goes on as any job that waits for a slot, or fails at its deadline; the deadline is set once, and no crash moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from highwater.schemas.envelope import iso_from_ms
from highwater.streams.jobs.decks import Outline, as_json
from highwater.streams.jobs.jobs import Job, returned
from highwater.streams.jobs.states import JobStatus

# A minute is enough for a program that approves; what nobody has approved in a month is forgotten, and holds a deck of its month.
TIMEOUT_SECONDS_MIN, TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS_DEFAULT = 60, 30 * 86_400, 86_400
# In a checkpoint: its outline was approved.
_APPROVED = "is_approved"


def is_approved(checkpoint: Mapping[str, Any]) -> bool:
    """Whether the slides of this checkpoint's outline may be made."""
    return checkpoint.get(_APPROVED) is True


def waits_for_approval(job: Job) -> bool:
    """Whether somebody can approve its outline now."""
    return job.status is JobStatus.RUNNING and job.approval_until_ms is not None


def awaiting_approval(job: Job, timeout_ms: int, now_ms: int) -> Job | None:
    """The job put aside until it is approved or its deadline has come; None: it has, and nobody approved it."""
    until_ms = now_ms + timeout_ms if job.approval_until_ms is None else job.approval_until_ms
    if until_ms <= now_ms:
        return None
    return replace(
        job, approval_until_ms=until_ms, due_ms=until_ms, worker=None, lease_until_ms=None, updated_ms=now_ms
    )


def overdue_text(job: Job) -> str:
    """Why a job fails that nobody approved in time."""
    assert job.approval_until_ms is not None
    return f"nobody approved the outline by {iso_from_ms(job.approval_until_ms)}; restart the job to wait again"


def approved(job: Job, outline: Outline | None, now_ms: int) -> Job:
    """The job that waited, to be asked for again, with its outline or another one (`outline`) approved."""
    held = {**(job.checkpoint or {}), _APPROVED: True}
    if outline is not None:
        held["outline"] = as_json(outline)
    after = returned(job, now_ms, is_counted=False)
    return replace(after, checkpoint=held, approval_until_ms=None, steps_total=len(held["outline"]["slides"]))
