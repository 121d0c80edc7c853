"""The transitions of a job as values: its worker, its progress, and that an ended job never changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest

from highwater.connectors.jobs.store import Jobs
from highwater.connectors.jobs.turns import Turns
from highwater.streams.engines.states import IllegalMoveError
from highwater.streams.engines.work import begun, waiting_until
from highwater.streams.jobs.jobs import (
    Job,
    cents,
    expired,
    failed,
    finished,
    is_expired,
    period_of,
    restarted,
    returned,
    revoked,
    step_begun,
    stepped,
    taken,
)
from highwater.streams.jobs.states import JobStatus, Kind

NOW_MS = 1_700_000_000_000


def job(status: JobStatus = JobStatus.PENDING, **given: object) -> Job:
    """A job of 15 slides."""
    return Job("job-1", Kind.GENERATION, "acme", "ada", "{}", status, **given)  # type: ignore[arg-type]


def running(**given: object) -> Job:
    """One that worker 7 took."""
    return taken(job(**given), worker=7, lease_ms=1_000, now_ms=NOW_MS, command="t/0/1")


@pytest.mark.requirement("R2.15")
def test_a_job_that_is_taken_has_another_epoch():
    """So the former worker can no longer change it (R2.15)."""
    held = running(epoch=3, attempt=2)
    assert (held.status, held.epoch, held.worker, held.lease_until_ms) == (JobStatus.RUNNING, 4, 7, NOW_MS + 1_000)
    assert (held.attempt, held.caused_by) == (2, "t/0/1")


def test_a_forgotten_job_keeps_its_cause():
    """No new event requested it."""
    assert taken(job(caused_by="t/0/9"), worker=7, lease_ms=1, now_ms=NOW_MS).caused_by == "t/0/9"


@pytest.mark.requirement("R2.18")
def test_a_step_forgets_failures_and_never_goes_back():
    """7 of 15 are 46 percent (R2.18); another total does not lower the published progress."""
    after = stepped(running(attempt=2, unusable=1, returns=1), {"slides": []}, 7, 15, lease_until_ms=5, now_ms=NOW_MS)
    assert (after.progress_pct, after.steps_done, after.steps_total) == (46, 7, 15)
    assert (after.attempt, after.unusable, after.returns, after.lease_until_ms) == (0, 0, 0, 5)
    assert stepped(after, {}, 7, 100, lease_until_ms=5, now_ms=NOW_MS).progress_pct == 46


def test_a_wait_keeps_the_job_where_it_stands():
    """Its next attempt has its number already, and it has no worker."""
    after = waiting_until(begun(running()), NOW_MS + 2_000)
    assert (after.status, after.attempt, after.worker, after.due_ms) == (JobStatus.RUNNING, 2, None, NOW_MS + 2_000)


def test_a_call_keeps_its_key_over_a_crash():
    """The attempt is stored before the call, and the next worker of the job repeats the same call."""
    begun_once = begun(running())
    again = taken(returned(begun_once, NOW_MS, is_counted=True), worker=8, lease_ms=1, now_ms=NOW_MS)
    assert again.call_key("slide-8") == begun_once.call_key("slide-8") == "job-1/slide-8/1"
    assert (again.returns, again.epoch) == (1, begun_once.epoch + 2)


@pytest.mark.requirement("R2.13")
def test_what_is_finished_has_no_checkpoint():
    """Its result is what stays (R2.13)."""
    after = finished(running(checkpoint={"slides": []}, steps_total=15), {"title": "x"}, NOW_MS)
    assert (after.status, after.checkpoint, after.progress_pct) == (JobStatus.COMPLETED, None, 100)
    assert (after.steps_done, after.worker, after.completed_ms) == (15, None, NOW_MS)


@pytest.mark.requirement("R2.14")
def test_what_failed_keeps_how_far_it_came():
    """It explains the failure (R2.14)."""
    after = failed(running(checkpoint={"slides": []}, progress_pct=46), "no", NOW_MS)
    assert (after.status, after.error, after.progress_pct, after.checkpoint) == (
        JobStatus.FAILED,
        "no",
        46,
        {"slides": []},
    )


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.REVOKED, JobStatus.EXPIRED])
def test_an_ended_job_is_never_left(status: JobStatus):
    """Every move raises."""
    ended = job(status)
    for move in (
        lambda: taken(ended, worker=7, lease_ms=1, now_ms=NOW_MS),
        lambda: finished(ended, {}, NOW_MS),
        lambda: failed(ended, "no", NOW_MS),
        lambda: revoked(ended, "no", NOW_MS),
        lambda: expired(ended, NOW_MS),
        lambda: returned(ended, NOW_MS, is_counted=False),
    ):
        with pytest.raises(IllegalMoveError):
            move()


def test_a_failed_job_is_restarted_where_it_was():
    """Results, published progress and paid calls are kept; its calls continue from their number with a new limit."""
    held = begun(begun(running(checkpoint={"slides": []}, progress_pct=46, seq=7, tokens=5, returns=2, unusable=1)))
    after = restarted(failed(held, "no", NOW_MS), NOW_MS + 1)
    assert (after.status, after.epoch, after.error, after.completed_ms) == (
        JobStatus.PENDING,
        held.epoch + 1,
        None,
        None,
    )
    assert (after.checkpoint, after.progress_pct, after.seq, after.tokens) == ({"slides": []}, 46, 7, 5)
    assert (after.attempt, after.attempts_before, after.tries, after.returns, after.unusable) == (2, 2, 0, 0, 0)
    assert begun(after).tries == 1
    assert (
        stepped(taken(after, worker=1, lease_ms=1, now_ms=1), {}, 1, 2, lease_until_ms=1, now_ms=1).attempts_before == 0
    )


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.FAILED}))
def test_nothing_else_is_restarted(status: JobStatus):
    """A revoked or expired job is never begun again (R2.40)."""
    with pytest.raises(IllegalMoveError):
        restarted(job(status), NOW_MS)


def test_a_revoked_job_is_fenced():
    """Its worker finds another epoch."""
    held = running()
    after = revoked(held, "not wanted", NOW_MS)
    assert (after.status, after.epoch, after.worker, after.error) == (
        JobStatus.REVOKED,
        held.epoch + 1,
        None,
        "not wanted",
    )


@pytest.mark.requirement("R2.40")
@pytest.mark.parametrize(
    ("epoch", "expires_ms", "expected"),
    [(0, None, False), (0, NOW_MS + 1, False), (0, NOW_MS, True), (1, NOW_MS - 1, False)],
)
def test_only_what_nobody_began_expires(epoch: int, expires_ms: int | None, expected: bool):
    """R2.40: an expired job is not begun; one that was begun is brought to its end."""
    assert is_expired(job(epoch=epoch, expires_ms=expires_ms), NOW_MS) is expected


@pytest.mark.requirement("R2.36")
@pytest.mark.parametrize(
    ("usd", "expected"),
    [("0.29", 29), ("0.145", 15), ("0.00499999", 0), ("0.005", 1), ("1.15", 115), ("0", 0), ("123456.785", 12345679)],
)
def test_cents_are_rounded_from_the_exact_sum(usd: str, expected: int):
    """R2.36: 0.29 dollars are 29 cents, where a float gives 28."""
    assert cents(Decimal(usd)) == expected


def test_a_period_is_a_month_in_utc():
    """The last millisecond of a year is in December."""
    assert [period_of(ms) for ms in (1_704_067_199_999, 1_704_067_200_000)] == ["2023-12", "2024-01"]


def deaths(*held: Job) -> dict[str, Job]:
    """The jobs that a worker held when it ended, as they are given back."""
    jobs = Jobs(None, None, Kind.GENERATION, begun_max=1)  # type: ignore[arg-type]
    causes = jobs._causes(held)
    return {one.id: jobs._given_back(one, NOW_MS, is_cause=one.id in causes).after for one in held}


def test_a_step_that_ends_its_worker_three_times_fails_its_job_alone():
    """A step is counted before it is read. Of the jobs of a dead worker only those whose step was begun are counted."""
    bad, others = job(), [replace(job(), id=f"other-{number}", returns=3) for number in range(2)]
    for times in range(1, 4):
        held = [step_begun(taken(bad, worker=7, lease_ms=1, now_ms=NOW_MS))]
        held += [taken(one, worker=7, lease_ms=1, now_ms=NOW_MS) for one in others]
        found = deaths(*held)
        bad, others = found[bad.id], [found[one.id] for one in others]
        assert bad.status is (JobStatus.FAILED if times == 3 else JobStatus.PENDING)
        assert [(one.status, one.returns) for one in others] == [(JobStatus.PENDING, 3)] * 2
    assert (bad.error, bad.begun) == ("its worker ended or went silent 3 times", 0)
    assert restarted(bad, NOW_MS).begun == 0


def test_a_step_that_ends_is_no_longer_begun():
    """Nor is one that is released in order."""
    held = step_begun(step_begun(running()))
    assert stepped(held, {}, 1, 3, lease_until_ms=5, now_ms=NOW_MS).begun == 0
    jobs = Jobs(None, None, Kind.GENERATION, begun_max=1)  # type: ignore[arg-type]
    assert jobs._handed_over(held, NOW_MS).after.begun == 1


async def test_a_step_that_was_begun_before_is_begun_alone():
    """Before others that wait; the others are begun together."""
    turns, order = Turns(), []

    async def step(name: str, *, is_alone: bool) -> None:
        async with turns.begun(is_alone=is_alone):
            order.append(f"+{name}")
            await asyncio.sleep(0)
            order.append(f"-{name}")

    steps = (("a", False), ("b", False), ("X", True), ("c", False), ("d", False))
    await asyncio.gather(*(step(name, is_alone=is_alone) for name, is_alone in steps))
    assert "".join(order) == "+a+b-a-b+X-X+c+d-c-d"
