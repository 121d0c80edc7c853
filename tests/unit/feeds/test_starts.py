"""How many rebuild processes start at once, and what follows when the machine fails a rebuild."""

from __future__ import annotations

from highwater.streams.feeds.starts import SLOW_START_SECONDS, TURN_SECONDS_MAX, StartPace, wait_ms_after_machine


def test_fewer_processes_start_at_once_while_starts_are_slow():
    """Half as many after each slow or failed start, at least one; each quick start allows one more."""
    pace, seen = StartPace(8, 8), []
    for seconds in (2.0, SLOW_START_SECONDS + 1, None, None, None, 2.0, SLOW_START_SECONDS, *[2.0] * 9):
        pace = pace.after(seconds)
        seen.append(pace.at_once)
    assert seen == [8, 4, 2, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]


def test_a_request_is_tried_a_bounded_number_of_times():
    """Three times while that is quick; a failure that took longer gives the turn to the other users at once."""
    assert [wait_ms_after_machine(attempt, 1.0) for attempt in (1, 2, 3, 4)] == [500, 1_000, None, None]
    assert wait_ms_after_machine(1, TURN_SECONDS_MAX) is None
