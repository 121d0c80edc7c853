"""The ratio breaker: a few bad events never stop a partition, a broken producer stops its own and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.kafka.breaker import DEAD_MIN, WINDOW_EVENTS, Counts, RatioBreaker, Window

PLACE, OTHER = ("t", 0), ("t", 1)


def feed(window: Window, events: int, dead: int) -> Counts | None:
    """One batch, judged and recorded as a consumer does."""
    verdict = window.judge(Counts(events, dead))
    if verdict is None:
        window.record(Counts(events, dead))
    return verdict


def test_a_test_file_of_bad_lines_does_not_stop_it():
    """Fewer dead letters than the minimum pass, even when nothing else came."""
    assert feed(Window(), DEAD_MIN - 1, DEAD_MIN - 1) is None


def test_a_broken_producer_stops_it():
    """From the minimum on, more dead than alive opens it, and the verdict has the counts."""
    window = Window()
    assert feed(window, 60, 60) is None
    assert feed(window, 60, 50) == Counts(120, 110)


def test_half_is_still_good():
    """Exactly half dead passes, one more does not."""
    assert Window().judge(Counts(1_000, 500)) is None
    assert Window().judge(Counts(1_000, 501)) == Counts(1_000, 501)


@pytest.mark.parametrize("events", [1_000, 2_000, 5_000, 50_000])
def test_the_share_counts_in_large_batches_too(events: int):
    """A batch far larger than the window is judged by its share: an eighth of dead letters never opens it."""
    assert Window().judge(Counts(events, events // 8)) is None


def test_a_batch_without_dead_letters_always_passes():
    """Good events are never held up by what went before."""
    window = Window()
    window.record(Counts(1_000, 1_000))
    assert feed(window, 1, 0) is None


def test_it_forgets():
    """Results more than a window old no longer count."""
    window = Window()
    assert feed(window, 500, 99) is None
    for _ in range(20):
        feed(window, 100, 0)
    assert feed(window, 600, 99) is None


def test_to_judge_records_nothing():
    """Asking does not count: a batch that is repeated while a store is unavailable is one batch."""
    window = Window()
    assert [window.judge(Counts(60, 60)) for _ in range(50)] == [None] * 50


def test_one_partition_stops_alone():
    """A partition full of poison trips; one beside it with a few bad events of its own, in the same batch, does not."""
    breaker = RatioBreaker()
    breaker.record({OTHER: Counts(900, 0)})
    assert breaker.tripped({PLACE: Counts(130, 130), OTHER: Counts(50, 50)}) == {PLACE: Counts(130, 130)}


def test_a_partition_that_was_looked_at_begins_anew():
    """After an operator has acted, what went before counts no more."""
    breaker = RatioBreaker()
    breaker.record({PLACE: Counts(99, 99)})
    assert breaker.tripped({PLACE: Counts(1, 1)}) == {PLACE: Counts(100, 100)}
    breaker.forget(PLACE)
    assert breaker.tripped({PLACE: Counts(1, 1)}) == {}


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), max_size=60))
def test_the_window_is_that_of_the_last_batches(batches: list[tuple[int, int]]):
    """The counts are those of the fewest last batches that hold a window's worth of events."""
    window = Window()
    batches = [(events, min(events, dead)) for events, dead in batches]
    for batch in batches:
        window.record(Counts(*batch))
    kept: list[tuple[int, int]] = []
    for batch in reversed(batches):
        if sum(events for events, _ in kept) >= WINDOW_EVENTS:
            break
        kept.append(batch)
    assert (sum(e for e, _ in kept), sum(d for _, d in kept)) == (window._total, window._dead)
