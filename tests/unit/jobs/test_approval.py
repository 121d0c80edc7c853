"""The wait of a job for an approval: how long it may be, that no crash moves its deadline, and what an approval makes of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import CONTROL
from highwater.streams.engines.states import IllegalMoveError
from highwater.streams.engines.work import resumed
from highwater.streams.jobs.approval import (
    TIMEOUT_SECONDS_DEFAULT,
    approved,
    awaiting_approval,
    is_approved,
    overdue_text,
    waits_for_approval,
)
from highwater.streams.jobs.args import GenerationArgs, parse_args
from highwater.streams.jobs.decks import Outline, Planned
from highwater.streams.jobs.jobs import Job, failed, restarted, returned, revoked, taken
from highwater.streams.jobs.states import JobStatus, Kind
from highwater.streams.jobs.validation import check_jobs_event

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
OUTLINE = {"title": "KRaft", "slides": [{"title": "One", "points": ["a"]}, {"title": "Two", "points": []}]}
HELD = {"outline": OUTLINE, "slide_ids": [], "slides": []}


def running(**given: Any) -> Job:
    """A job that worker 7 took, with its outline made."""
    job = Job("job-1", Kind.GENERATION, "acme", "ada", "{}", JobStatus.PENDING, checkpoint=HELD, steps_total=2, **given)
    return taken(job, worker=7, lease_ms=1_000, now_ms=NOW_MS)


def waiting() -> Job:
    """One that waits for an hour."""
    job = awaiting_approval(running(), HOUR_MS, NOW_MS)
    assert job is not None
    return job


def test_a_job_that_waits_is_running_without_a_worker():
    """It is due at its deadline, when a worker must let it fail."""
    job = waiting()
    assert (job.status, job.worker, job.lease_until_ms) == (JobStatus.RUNNING, None, None)
    assert (job.approval_until_ms, job.due_ms) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS)
    assert (waits_for_approval(job), waits_for_approval(running())) == (True, False)


def test_a_deadline_is_set_once():
    """A worker that claims the job early, or after a crash, waits for the remaining time; at the deadline the job fails."""
    early = resumed(waiting(), worker=8, lease_ms=1_000, now_ms=NOW_MS + 5)
    lost = taken(returned(early, NOW_MS + 6, is_counted=True), worker=9, lease_ms=1_000, now_ms=NOW_MS + 7)
    for job in (early, lost):
        again = awaiting_approval(job, HOUR_MS, NOW_MS + HOUR_MS - 1)
        assert again is not None
        assert again.approval_until_ms == NOW_MS + HOUR_MS
        assert awaiting_approval(job, HOUR_MS, NOW_MS + HOUR_MS) is None
    assert overdue_text(early) == "nobody approved the outline by 2023-11-14T23:13:20Z; restart the job to wait again"


def test_a_job_that_failed_by_its_deadline_waits_anew_when_it_is_restarted():
    """Its end clears the deadline; so does a revocation."""
    job = failed(resumed(waiting(), worker=8, lease_ms=1, now_ms=NOW_MS), "late", NOW_MS + HOUR_MS)
    assert (job.approval_until_ms, waits_for_approval(job)) == (None, False)
    again = awaiting_approval(
        taken(restarted(job, NOW_MS), worker=8, lease_ms=1, now_ms=NOW_MS), HOUR_MS, NOW_MS + 2 * HOUR_MS
    )
    assert again is not None
    assert again.approval_until_ms == NOW_MS + 3 * HOUR_MS
    assert revoked(waiting(), "no", NOW_MS).approval_until_ms is None


def test_an_approved_job_waits_for_a_slot_as_any_other():
    """Its epoch fences the worker that was about to let it fail; the outline is kept, and the next worker finds it approved."""
    job = approved(waiting(), None, NOW_MS + 1)
    assert (job.status, job.epoch, job.due_ms, job.approval_until_ms) == (JobStatus.PENDING, 2, None, None)
    assert job.returns == 0
    assert job.checkpoint == {**HELD, "is_approved": True}
    assert (is_approved(HELD), is_approved(job.checkpoint or {})) == (False, True)


def test_an_edited_outline_is_the_one_that_is_made():
    """It replaces the one of the checkpoint, and its slides are counted."""
    edited = Outline("Mine", (Planned("Only", ("b",)),))
    job = approved(waiting(), edited, NOW_MS + 1)
    assert (job.checkpoint or {})["outline"] == {"title": "Mine", "slides": ({"title": "Only", "points": ("b",)},)}
    assert job.steps_total == 1


def test_what_has_ended_is_not_approved():
    """Nothing is changed."""
    with pytest.raises(IllegalMoveError):
        approved(revoked(waiting(), "no", NOW_MS), None, NOW_MS)


def args(**more: Any) -> GenerationArgs:
    """The arguments of a generation."""
    found = parse_args("generation", orjson.dumps({"query": "q", **more}).decode())
    assert isinstance(found, GenerationArgs)
    return found


def test_a_wait_is_a_day_unless_it_is_said():
    """Such a deck is not given again, nor made of one that was: its outline is a person's."""
    asked = args(await_approval=True)
    assert (asked.await_approval, asked.approval_timeout_seconds, asked.is_of_query) == (True, 86_400, False)
    assert args(await_approval=True, approval_timeout_seconds=60).approval_timeout_seconds == 60
    assert (args().await_approval, args().is_of_query, TIMEOUT_SECONDS_DEFAULT) == (False, True, 86_400)


@pytest.mark.parametrize(
    ("more", "reason", "field"),
    [
        *(
            (
                {"await_approval": True, "approval_timeout_seconds": seconds},
                "bad_timeout",
                "args.approval_timeout_seconds",
            )
            for seconds in (59, 30 * 86_400 + 1, 60.0, "60", True, None)
        ),
        ({"approval_timeout_seconds": 60}, "contradiction", "args.approval_timeout_seconds"),
        ({"await_approval": 1}, "not_a_boolean", "args.await_approval"),
        ({"await_approval": True, "outline_only": True}, "contradiction", "args"),
        ({"await_approval": True, "outline": OUTLINE}, "contradiction", "args"),
    ],
)
def test_what_is_no_wait_is_refused(more: dict[str, Any], reason: str, field: str):
    """By the field at fault."""
    with pytest.raises(InvalidEventError) as refused:
        args(**more)
    assert (refused.value.reason, refused.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("outline", "reason"),
    [
        ("{", "bad_outline"),
        ("[]", "bad_outline"),
        ("null", "bad_outline"),
        ('{"title": "A"}', "bad_outline"),
        ('{"title": "A", "slides": []}', "bad_outline"),
        ('{"title": "", "slides": [{"title": "B"}]}', "bad_outline"),
        ('{"title": "A", "slides": [{"points": ["b"]}]}', "bad_outline"),
        ('{"title": "A", "slides": [{"title": "B", "points": "b"}]}', "bad_outline"),
        (orjson.dumps({"title": "A", "slides": [{"title": "B"}] * 51}).decode(), "bad_outline"),
        (" " * 65_537, "too_long"),
    ],
)
def test_an_outline_of_another_form_is_refused(outline: str, reason: str):
    """At the API and in the sink alike, by one message of one field."""
    event = {"job_id": "0b5e3f5e-6a40-4a2b-9d5a-0d3c0f6a1c11", "action": "approve", "reason": "", "ts": 1}
    check_jobs_event(CONTROL, {**event, "outline": orjson.dumps(OUTLINE).decode()})
    check_jobs_event(CONTROL, {**event, "outline": None})
    with pytest.raises(InvalidEventError) as refused:
        check_jobs_event(CONTROL, {**event, "outline": outline})
    assert (refused.value.reason, refused.value.field) == (reason, "outline")
