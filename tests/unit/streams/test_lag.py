"""How long the oldest unread record has waited, from samples of where the log ended."""

from __future__ import annotations

from highwater.streams.lag import SAMPLES_MAX, Lag, Mark, Marks, by_topic


def sampled(*marks: tuple[int, int], following: int = 0) -> Marks:
    """Samples of time (ms) and end, while the reader stands still."""
    found = Marks()
    for at_ms, high in marks:
        found.note(Mark(at_ms, high), following)
    return found


def test_who_has_read_all_is_not_behind():
    """No events and no seconds, however old the last record is."""
    assert sampled((0, 10), following=10).lag(10, 60_000) == Lag(0, 0.0)


def test_the_wait_is_from_the_first_sample_that_held_the_record():
    """Record 10 was there at 5 s, record 20 at 10 s: a reader at 10 has waited since 5 s, one at 20 since 10 s."""
    marks = sampled((0, 10), (5_000, 20), (10_000, 30), following=10)
    assert marks.lag(10, 15_000) == Lag(20, 10.0)
    assert marks.lag(20, 15_000) == Lag(10, 5.0)
    assert marks.lag(30, 15_000) == Lag(0, 0.0)


def test_a_record_at_work_says_when_it_arrived():
    """A backlog that is older than the first sample: the arrival of the record in hand counts."""
    assert sampled((10_000, 5)).lag(0, 12_000, in_hand_ms=2_000) == Lag(5, 10.0)


def test_a_reader_that_stands_still_is_remembered_in_bounded_memory():
    """Samples without end: the oldest is kept, so the wait stays true."""
    marks = sampled(*((second * 1_000, second) for second in range(1, 10 * SAMPLES_MAX)))
    assert len(marks._marks) <= SAMPLES_MAX
    assert marks.lag(0, 10 * SAMPLES_MAX * 1_000).seconds == 10 * SAMPLES_MAX - 1


def test_of_a_topic_events_add_up_and_the_longest_wait_counts():
    """Over its partitions."""
    lags = {("a", 0): Lag(3, 1.0), ("a", 1): Lag(4, 9.0), ("b", 0): Lag(0, 0.0)}
    assert by_topic(lags) == {"a": Lag(7, 9.0), "b": Lag(0, 0.0)}
