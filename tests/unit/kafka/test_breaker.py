"""The ratio breaker: a few bad events never stop a consumer, a broken producer does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.breaker import DEAD_MIN, WINDOW_EVENTS, RatioBreaker
from highwater.schemas.errors import BreakerOpenError


def feed(breaker: RatioBreaker, events: int, dead: int) -> None:
    """One batch, checked and recorded as a consumer does."""
    breaker.check(events, dead)
    breaker.record(events, dead)


def test_a_test_file_of_bad_lines_does_not_stop_it():
    """Fewer dead letters than the minimum pass, even when nothing else came."""
    feed(RatioBreaker(), DEAD_MIN - 1, DEAD_MIN - 1)


def test_a_broken_producer_stops_it():
    """From the minimum on, more dead than alive opens it."""
    breaker = RatioBreaker()
    with pytest.raises(BreakerOpenError, match="100 of the last 100"):
        feed(breaker, DEAD_MIN, DEAD_MIN)


def test_half_is_still_good():
    """Exactly half dead passes, one more does not."""
    breaker = RatioBreaker()
    breaker.check(1_000, 500)
    with pytest.raises(BreakerOpenError):
        breaker.check(1_000, 501)


@pytest.mark.parametrize("events", [1_000, 2_000, 5_000, 50_000])
def test_the_share_counts_in_large_batches_too(events: int):
    """A batch far larger than the window is judged by its share: an eighth of dead letters never opens it."""
    RatioBreaker().check(events, events // 8)


def test_a_batch_without_dead_letters_always_passes():
    """Good events are never held up by what went before."""
    breaker = RatioBreaker()
    breaker.record(1_000, 1_000)
    feed(breaker, 1, 0)


def test_it_forgets():
    """What lies more than a window back no longer counts."""
    breaker = RatioBreaker()
    feed(breaker, 500, 99)
    for _ in range(20):
        feed(breaker, 100, 0)
    feed(breaker, 600, 99)


def test_check_records_nothing():
    """Asking does not count: a batch that is repeated while a store is away is one batch."""
    breaker = RatioBreaker()
    for _ in range(50):
        breaker.check(60, 60)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), max_size=60))
def test_the_window_is_that_of_the_last_batches(batches: list[tuple[int, int]]):
    """The counts are those of the fewest last batches that hold a window's worth of events."""
    breaker = RatioBreaker()
    batches = [(events, min(events, dead)) for events, dead in batches]
    for events, dead in batches:
        breaker.record(events, dead)
    kept: list[tuple[int, int]] = []
    for batch in reversed(batches):
        if sum(events for events, _ in kept) >= WINDOW_EVENTS:
            break
        kept.append(batch)
    assert (sum(e for e, _ in kept), sum(d for _, d in kept)) == (breaker._total, breaker._dead)
