"""The sliding window of calls of an address (R4.36)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.identity.rate_limits import LIVE_WINDOW_MS, Admission, admit
from tests.unit.identity.limit_cases import CASES, START_MS, WINDOW_MS, LimitCase

times = st.lists(st.integers(0, 60_000), max_size=60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case(case: LimitCase):
    """Requests of one address are answered as the case says."""
    known: tuple[int, ...] = ()
    for step in case.steps:
        answer = admit(known, START_MS + step.after_ms, case.requests_max, WINDOW_MS)
        assert (answer.is_admitted, answer.retry_after_ms) == (step.is_admitted, step.retry_after_ms), step
        known = answer.times


def test_the_window_is_ten_seconds():
    """By default requests count for 10 s."""
    assert LIVE_WINDOW_MS == WINDOW_MS == 10_000
    assert admit([0], 9_999, 1) == Admission(is_admitted=False, retry_after_ms=1, times=(0,))
    assert admit([0], 10_000, 1) == Admission(is_admitted=True, retry_after_ms=0, times=(10_000,))


@pytest.mark.requirement("R4.36")
@given(times, st.integers(1, 6))
def test_no_span_holds_more_than_the_limit(arrivals: list[int], requests_max: int):
    """Wherever a span of the window begins, no more than the limit were admitted in it, and no state holds more."""
    known: tuple[int, ...] = ()
    admitted: list[int] = []
    for now in sorted(arrivals):
        answer = admit(known, now, requests_max)
        known = answer.times
        admitted += [now] * answer.is_admitted
        assert len(known) <= requests_max
    for start in admitted:
        assert sum(start <= at < start + WINDOW_MS for at in admitted) <= requests_max


@given(times, st.integers(0, 70_000), st.integers(1, 6))
def test_who_waits_as_told_is_admitted(known: list[int], now: int, requests_max: int):
    """A refused request is admitted after exactly the announced time, and not a millisecond earlier."""
    answer = admit(known, now, requests_max)
    if answer.is_admitted:
        assert answer.retry_after_ms == 0
        return
    assert 0 < answer.retry_after_ms <= WINDOW_MS
    assert admit(answer.times, now + answer.retry_after_ms, requests_max).is_admitted
    assert not admit(answer.times, now + answer.retry_after_ms - 1, requests_max).is_admitted


@pytest.mark.parametrize(("milliseconds", "seconds"), [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (10_000, 10), (0, 0)])
def test_seconds_are_rounded_up(milliseconds: int, seconds: int):
    """`Retry-After` never sends a client back too early."""
    assert Admission(is_admitted=False, retry_after_ms=milliseconds, times=()).retry_after_seconds == seconds


def test_a_lowered_limit_counts_at_once():
    """If there are more known requests than a new limit, the newest count."""
    assert admit([1, 2, 3, 4], 5, 2) == Admission(is_admitted=False, retry_after_ms=9_998, times=(3, 4))


def test_a_limit_below_one_is_a_mistake():
    """It would refuse everybody with no time at which to come again."""
    with pytest.raises(ValueError, match="at least 1"):
        admit([], 0, 0)
