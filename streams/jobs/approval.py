"""The wait of a job for a user's approval of its outline: how long it may take, how it begins, and its two ends.

Invariant: a waiting job has no worker and uses no slot of its organization (`streams/identity/sharing.py`). After
approval it waits for a slot as any job, or it fails at its deadline; the deadline is set once, and no crash moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from highwater.schemas.envelope import iso_from_ms
from highwater.streams.jobs.decks import Outline, as_json
from highwater.streams.jobs.jobs import Job, returned
from highwater.streams.jobs.states import JobStatus

# # A minute is enough for a program that approves. An outline unapproved for a month is forgotten, and it counts as a
# deck of its month.
TIMEOUT_SECONDS_MIN, TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS_DEFAULT = 60, 30 * 86_400, 86_400
# # In a checkpoint: its outline was approved.
_APPROVED = "is_approved"


def is_approved(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether the slides of this checkpoint's outline may be made."""
    return checkpoint.get(_APPROVED) is True


def waits_for_approval(job: Job) -> bool:
    """Return whether the job's outline can be approved now."""
    return job.status is JobStatus.RUNNING and job.approval_until_ms is not None


def awaiting_approval(job: Job, timeout_ms: int, now_ms: int) -> Job | None:
    """Return the job waiting until it is approved or its deadline passes; None if the deadline has passed without approval."""
    until_ms = now_ms + timeout_ms if job.approval_until_ms is None else job.approval_until_ms
    if until_ms <= now_ms:
        return None
    return replace(
        job, approval_until_ms=until_ms, due_ms=until_ms, worker=None, lease_until_ms=None, updated_ms=now_ms
    )


def overdue_text(job: Job) -> str:
    """Return why a job that was not approved in time fails."""
    assert job.approval_until_ms is not None
    return f"nobody approved the outline by {iso_from_ms(job.approval_until_ms)}; restart the job to wait again"


def approved(job: Job, outline: Outline | None, now_ms: int) -> Job:
    """Return the waiting job, queued again, with its outline or another one (`outline`) approved."""
    held = {**(job.checkpoint or {}), _APPROVED: True}
    if outline is not None:
        held["outline"] = as_json(outline)
    after = returned(job, now_ms, is_counted=False)
    return replace(after, checkpoint=held, approval_until_ms=None, steps_total=len(held["outline"]["slides"]))
