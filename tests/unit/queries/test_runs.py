"""Transitions of a run as values: its worker, its events, and what survives a crash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.engines.states import IllegalMoveError
from highwater.streams.engines.work import begun, call_key, waiting_until
from highwater.streams.queries.runs import (
    Run,
    captured,
    failed,
    finished,
    is_waiting,
    returned,
    stage_events,
)
from highwater.streams.queries.states import ArchiveStatus, Stage, Status

NEW = Run("run", "user", 1, "query", Status.NEW)


def held(run: Run = NEW, now_ms: int = 10) -> Run:
    """A run in the hands of worker 7."""
    return captured(run, worker=7, lease_ms=100, now_ms=now_ms)


def through(run: Run, stages: int) -> Run:
    """The run after N stages."""
    for _ in range(stages):
        run = finished(begun(held(run)), 20)
    return run


def test_a_captured_run_is_held_under_a_lease():
    """Another epoch, a worker, a lease; the status of the stage running."""
    run = held()
    assert (run.status, run.epoch, run.worker, run.lease_until_ms, run.revision) == (Status.ANALYZING, 1, 7, 110, 2)
    with pytest.raises(IllegalMoveError):
        held(run)


def test_an_attempt_keeps_its_number_over_a_crash():
    """And with it the key under which its call is sent again; the next stage counts from the beginning."""
    run = begun(held())
    again = held(returned(run, 50, is_counted=True))
    assert (again.attempt, call_key(again.id, again.stage, again.attempt)) == (1, call_key("run", Stage.ANALYZER, 1))
    assert (again.returns, again.epoch) == (1, 3)
    assert finished(again, 60).attempt == 0


@pytest.mark.requirement("R1.37")
def test_a_wait_names_the_next_attempt_and_holds_nobody():
    """It is due later, in the same status (R1.37), without a worker."""
    run = waiting_until(begun(held()), 2_000)
    assert (run.status, run.attempt, run.due_ms, run.worker, run.lease_until_ms) == (
        Status.ANALYZING, 2, 2_000, None, None,
    )  # fmt: skip
    assert not is_waiting(run)


@pytest.mark.requirement("R1.26", "R1.27")
def test_a_completed_run_is_released_by_its_memory():
    """COMPLETED first, with the answer; released when the memory is stored (R1.26, R1.27)."""
    completed = through(NEW, 3)
    assert (completed.status, completed.archive_status, completed.released) == (
        Status.COMPLETED, ArchiveStatus.WAITING, False,
    )  # fmt: skip
    stored = through(completed, 1)
    assert (stored.archive_status, stored.released, stored.revision) == (ArchiveStatus.STORED, True, completed.revision)


@pytest.mark.requirement("R1.28")
def test_a_failed_memory_takes_no_answer_away():
    """R1.28: the run stays COMPLETED, without an error, and is released."""
    lost = failed(held(through(NEW, 3)), "no memory", 30)
    assert (lost.status, lost.archive_status, lost.error, lost.released) == (
        Status.COMPLETED, ArchiveStatus.FAILED, None, True,
    )  # fmt: skip
    with pytest.raises(IllegalMoveError):
        failed(lost, "again", 40)


@pytest.mark.requirement("R1.15")
def test_events_of_moves_stored_together():
    """One a change of status, in order; only the last may say that the run waits; none for what changes no status (R1.15)."""
    run = begun(held())
    after = finished(run, 20)
    onward = held(after, 20)
    told = stage_events(run, (after, onward), 20)
    assert [(one["status"], one["revision"], one["waiting"], one["attempt"]) for one in told] == [
        ("ANALYZED", 3, False, 1), ("ASSEMBLING", 4, False, 0),
    ]  # fmt: skip
    assert [one["waiting"] for one in stage_events(run, (after,), 20)] == [True]
    assert stage_events(run, (begun(run),), 20) == []
    completed = through(NEW, 3)
    assert stage_events(completed, (held(completed),), 30) == []


@given(st.lists(st.sampled_from(["capture", "begin", "wait", "finish", "return", "fail"]), max_size=40))
def test_any_moves(moves: list[str]):
    """For any moves in any order: revision and epoch never fall, an end is kept, and a released run has ended."""
    run = NEW
    for move in moves:
        before = run
        try:
            run = {
                "capture": held,
                "begin": begun,
                "wait": lambda one: waiting_until(one, 9),
                "finish": lambda one: finished(one, 20),
                "return": lambda one: returned(one, 30, is_counted=True),
                "fail": lambda one: failed(one, "error", 40),
            }[move](run)
        except IllegalMoveError:
            continue
        assert run.epoch >= before.epoch
        assert run.revision - before.revision == (run.status is not before.status)
        if before.status in (Status.COMPLETED, Status.FAILED):
            assert run.status is before.status
        assert run.released == (run.stage is None)
