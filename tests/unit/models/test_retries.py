"""The reaction to a failed call: R1.32 to R1.36 as a table."""

from __future__ import annotations

import pytest

from highwater.streams.models.retries import (
    ATTEMPTS_MAX,
    EXHAUSTED,
    RATE_LIMIT_MS,
    RETRY_AFTER_MS_MAX,
    Again,
    Failure,
    GiveUp,
    after_failure,
)


def follows(
    failure: Failure, attempt: int = 1, *, unusable: int = 0, retry_after_ms: int | None = None
) -> Again | GiveUp:
    """The reaction to a failure with the detail "why"."""
    return after_failure(failure, "why", attempt=attempt, unusable=unusable, retry_after_ms=retry_after_ms)


@pytest.mark.requirement("R1.32")
@pytest.mark.parametrize("failure", [Failure.TIMEOUT, Failure.UNAVAILABLE])
def test_a_timeout_is_waited_for_twice(failure: Failure):
    """2 s, then 4 s, then no more: three calls in all."""
    assert [follows(failure, attempt) for attempt in (1, 2)] == [Again(2_000), Again(4_000)]
    assert follows(failure, 3) == GiveUp(f"{EXHAUSTED}: why", is_alert=False)
    assert follows(failure, retry_after_ms=15_000) == Again(15_000)


@pytest.mark.requirement("R1.33")
@pytest.mark.parametrize(
    ("asked_ms", "wait_ms"),
    [
        (None, RATE_LIMIT_MS),
        (1_000, RATE_LIMIT_MS),
        (90_000, 90_000),
        (86_400_000, RETRY_AFTER_MS_MAX),
    ],
)
def test_a_rate_limit_is_waited_for(asked_ms: int | None, wait_ms: int):
    """A minute; longer where the service asks for it, up to ten."""
    assert follows(Failure.RATE_LIMITED, retry_after_ms=asked_ms) == Again(wait_ms)


@pytest.mark.requirement("R1.33", "R1.36")
@pytest.mark.parametrize("failure", [one for one in Failure if one is not Failure.REFUSED])
def test_one_count_for_all(failure: Failure):
    """There is no fourth call after any failure of the third."""
    assert isinstance(follows(failure, ATTEMPTS_MAX), GiveUp)


@pytest.mark.requirement("R1.34")
def test_an_unusable_answer_is_asked_for_once_more():
    """At once; the second time it is given up."""
    assert follows(Failure.UNUSABLE) == Again(0)
    assert follows(Failure.UNUSABLE, 2, unusable=1) == GiveUp(f"{EXHAUSTED}: why", is_alert=False)


@pytest.mark.requirement("R1.35")
def test_a_refusal_is_final_and_somebody_is_told():
    """R1.35: not tried again."""
    assert follows(Failure.REFUSED) == GiveUp("why", is_alert=True)
