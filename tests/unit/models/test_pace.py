"""How long the rest of a backlog takes."""

from __future__ import annotations

from highwater.streams.models.pace import Pace


def test_nothing_is_known_before_anything_was_made():
    """No pace, no estimate."""
    assert Pace().seconds_for(10) is None


def test_an_estimate_is_the_rest_at_the_pace_so_far():
    """100 in 2 s, then 300 in 6 s: 50 a second."""
    assert Pace().after(100, 2).after(300, 6).seconds_for(5_000) == 100


def test_a_new_pace_wins_within_minutes():
    """After ten minutes at a tenth of the pace the estimate is that of the slower pace, within a tenth."""
    pace = Pace().after(60_000, 60)
    for _ in range(10):
        pace = pace.after(6_000, 60)
    assert 0.9 * 1_000 <= (pace.seconds_for(100_000) or 0) <= 1_000
