"""Which failed work is restarted together: by the text of its error, by the stage where it continues,
and by the limit at once.
"""

from __future__ import annotations

from highwater.streams.engines.restarts import LOOKED_AT_MAX, FailedWork, RestartFilter, plan_restarts


def job(
    number: int, error: str = "no model: slide 3", *, done: int = 2, failed_ms: int | None = None, user: str = "ada"
) -> FailedWork:
    """A failed job of five steps."""
    return FailedWork(f"j{number}", user, error, done, 5 - done, number if failed_ms is None else failed_ms)


def test_a_filter_finds_by_reason_and_place() -> None:
    """In any case of letters; without either it finds all."""
    failed = [job(1), job(2, "No Model: slide 7"), job(3, "timeout", done=0), job(4, "")]

    def ids(**wanted: object) -> list[str]:
        return [one.id for one in plan_restarts(failed, RestartFilter(**wanted)).work]  # type: ignore[arg-type]

    assert ids() == ["j4", "j3", "j2", "j1"]
    assert ids(reason="no MODEL") == ["j2", "j1"]
    assert ids(place=0) == ["j3"]


def test_a_plan_says_why_they_failed_of_whom_and_what_is_left() -> None:
    """Reasons without the ids of one job, the most frequent first; if there are too many, those that failed last are taken."""
    failed = [job(1), job(2, "No model", user="bob"), job(3, "no model: slide 9"), job(4, "", done=5)]
    plan = plan_restarts(failed, RestartFilter(), restarts_max=2)
    assert plan.reasons == (("no model", 2), ("No model", 1), ("unknown", 1))
    assert plan.users == (("ada", 3), ("bob", 1))
    assert ([one.id for one in plan.work], plan.found, plan.left) == (["j4", "j3"], 4, 3)


def test_a_plan_that_did_not_look_at_all_says_so() -> None:
    """Work that was not checked is not counted as found."""
    failed = [job(number) for number in range(LOOKED_AT_MAX + 1)]
    plan = plan_restarts(failed, RestartFilter())
    assert (plan.is_whole, plan.found) == (False, LOOKED_AT_MAX)
    assert plan_restarts(failed[:-1], RestartFilter()).is_whole
