"""The progress that watchers get and the state that the next worker finds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.progress import ProgressReport, checkpoint_event, done_report, progress_events
from highwater.streams.jobs.states import JobStatus, Kind, percent

NOW_MS = 1_700_000_000_000


@pytest.mark.requirement("R2.18")
@pytest.mark.parametrize(
    ("done", "total", "expected"),
    [
        (7, 15, 46),
        (0, 15, 0),
        (15, 15, 100),
        (14, 15, 93),
        (1, 3, 33),
        (2, 3, 66),
        (0, 0, 0),
        (16, 15, 100),
        (-1, 3, 0),
    ],
)
def test_percents_are_rounded_down(done: int, total: int, expected: int):
    """R2.18: 7 of 15 is 46; nothing is 100 before the end."""
    assert percent(done, total) == expected


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_percents_never_pass_what_is_done(total: int, done: int):
    """They grow with the finished steps, and only the end is 100."""
    assert percent(done, total) <= percent(done + 1, total)
    assert (percent(done, total) == 100) == (done >= total)


def job(**more: object) -> Job:
    """A job that has published five events."""
    return Job("job-1", Kind.GENERATION, "acme", "ada", "{}", JobStatus.RUNNING, seq=5, progress_pct=46, **more)  # type: ignore[arg-type]


def test_events_are_dense_up_to_the_jobs_last():
    """Each has its own place, and the percents of the job as it is stored."""
    events = progress_events(
        job(), [ProgressReport("slide_completed", 7, "s7", "KRaft"), ProgressReport("slide_started", 8, "s8")], NOW_MS
    )
    assert [(one["seq"], one["event_type"], one["slide_number"]) for one in events] == [
        (4, "slide_completed", 7),
        (5, "slide_started", 8),
    ]
    assert {one["progress_pct"] for one in events} == {46}
    assert {one["error_message"] for one in events} == {None}


@pytest.mark.requirement("R2.11")
def test_a_checkpoint_has_its_outline_apart():
    """R2.11: outline and finished slides are fields, the rest is state; nothing of it is lost."""
    held = {"outline": {"title": "A"}, "slide_ids": ["s1"], "slides": [{"slide_id": "s1"}]}
    event = checkpoint_event(job(checkpoint=held, steps_done=1, steps_total=15, epoch=3), 7, NOW_MS)
    assert json.loads(event["outline"]) == {"title": "A"}
    assert json.loads(event["state"]) == {"slides": [{"slide_id": "s1"}]}
    assert (event["completed_slide_ids"], event["slides_completed"], event["slides_total"]) == (["s1"], 1, 15)
    assert (event["status"], event["worker_id"], event["epoch"]) == ("running", "7", 3)


def test_a_checkpoint_before_its_outline_has_none():
    """Empty, not the text null."""
    assert checkpoint_event(job(checkpoint={"place": 3}), None, NOW_MS)["outline"] == ""


@pytest.mark.requirement("R2.17")
def test_the_end_of_a_deck_has_its_own_name():
    """R2.17 names it; other kinds say that the job is done."""
    assert [done_report(kind).event_type for kind in Kind] == ["generation_done", "job_done", "job_done"]
