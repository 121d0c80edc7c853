"""How fresh a document is, and that time only makes it older."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.league.resources import KINDS
from highwater.streams.pages.kinds import resolve_cache_options
from highwater.streams.pages.refresh import CLOCK_SKEW_MS_MAX, Freshness, refresh_decision
from highwater.streams.pages.windows import is_match_window_active

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_790_000_000_000
TABLE, RESULTS = KINDS["league_table"], KINDS["league_results"]
AGES = {Freshness.FRESH: 0, Freshness.STALE: 1, Freshness.COLD: 2}

kinds = st.sampled_from(list(KINDS.values()))
offsets = st.integers(-9 * DAY, 9 * DAY)
windows_of = st.lists(
    st.tuples(offsets, st.integers(MINUTE, 6 * HOUR)).map(lambda p: (NOW + p[0], NOW + p[0] + p[1])), max_size=4
)


def at(age_ms: int, *windows: tuple[int, int]) -> Freshness:
    """The freshness of a table of this age."""
    return refresh_decision(NOW - age_ms, TABLE, windows, NOW).freshness


@pytest.mark.requirement("R4.13")
def test_outside_a_window_a_table_is_good_for_a_week():
    """Fresh for 7 d, stale for an hour more, then too old (R4.13)."""
    assert at(0) is at(7 * DAY - 1) is Freshness.FRESH
    assert at(7 * DAY) is at(7 * DAY + HOUR - 1) is Freshness.STALE
    assert at(7 * DAY + HOUR) is Freshness.COLD


def test_inside_a_window_it_is_good_for_half_a_minute():
    """Fresh for 30 s, stale for four times that, then too old."""
    window = (NOW - HOUR, NOW + HOUR)
    assert at(0, window) is at(30 * SECOND - 1, window) is Freshness.FRESH
    assert at(30 * SECOND, window) is at(150 * SECOND - 1, window) is Freshness.STALE
    assert at(150 * SECOND, window) is Freshness.COLD


def test_a_week_of_life_ends_with_the_window():
    """A table of yesterday is stale when the window opens and too old two minutes later, though written with 7 d."""
    assert at(DAY, (NOW + 1, NOW + HOUR)) is Freshness.FRESH
    assert at(DAY, (NOW, NOW + HOUR)) is Freshness.STALE
    assert at(DAY, (NOW - 2 * MINUTE + 1, NOW + HOUR)) is Freshness.STALE
    assert at(DAY, (NOW - 2 * MINUTE, NOW + HOUR)) is Freshness.COLD


def test_what_expired_in_a_window_stays_expired_after_it():
    """The end of a window does not give a week to a page that was old inside it; one made in its last seconds has it."""
    over = (NOW - HOUR, NOW - MINUTE)
    assert at(MINUTE + 31 * SECOND, over) is Freshness.STALE
    assert at(MINUTE + 30 * SECOND, over) is Freshness.FRESH
    assert at(HOUR, over) is Freshness.COLD


def test_a_window_told_later_counts():
    """A match that is scheduled for now makes yesterday's table old at once: windows are those known at the read."""
    assert at(DAY) is Freshness.FRESH
    assert at(DAY, (NOW - 45 * MINUTE, NOW + HOUR)) is Freshness.COLD


def test_a_time_in_the_future_is_expired():
    """A clock moved back does not keep a page forever; the little that two clocks differ is no such thing."""
    for ahead in (CLOCK_SKEW_MS_MAX + 1, HOUR, 3_650 * DAY):
        assert at(-ahead) is Freshness.STALE
    assert at(-CLOCK_SKEW_MS_MAX) is Freshness.FRESH
    found = refresh_decision(NOW + DAY, RESULTS, [], NOW)
    assert (found.expires_ms, found.stale_until_ms) == (NOW, NOW + 90 * SECOND)


@given(kinds, st.integers(0, 10 * DAY), windows_of)
def test_fresh_never_longer_than_a_life(kind, age_ms, windows):
    """Fresh means younger than the TTL outside, and in a window younger than the life inside it."""
    found = refresh_decision(NOW - age_ms, kind, windows, NOW)
    is_active = is_match_window_active(windows, NOW)
    assert found.options == resolve_cache_options(kind, is_window_active=is_active)
    if found.freshness is Freshness.FRESH:
        assert age_ms < found.options.ttl_seconds * 1000


@given(kinds, offsets, windows_of, st.integers(0, 9 * DAY), st.integers(0, 9 * DAY))
def test_time_only_makes_older(kind, built, windows, first, later):
    """With the same windows no document becomes fresher by waiting, and its times do not move."""
    one, other = sorted((first, later))
    before = refresh_decision(NOW + built, kind, windows, NOW + built + one)
    after = refresh_decision(NOW + built, kind, windows, NOW + built + other)
    assert AGES[before.freshness] <= AGES[after.freshness]
    assert before[1:3] == after[1:3]


@given(kinds, st.integers(0, 10 * DAY), windows_of)
def test_the_times_are_those_of_the_decision(kind, age_ms, windows):
    """Fresh before it expires, stale until the end of that, then cold; never both and never neither."""
    found = refresh_decision(NOW - age_ms, kind, windows, NOW)
    assert found.expires_ms <= found.stale_until_ms
    expected = (
        Freshness.FRESH if found.expires_ms > NOW else Freshness.STALE if found.stale_until_ms > NOW else Freshness.COLD
    )
    assert found.freshness is expected


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_life_inside_is_no_longer_than_outside(kind):
    """The expiry rule requires this of the catalogue."""
    assert kind.ttl_in_window_seconds <= kind.ttl_outside_seconds
