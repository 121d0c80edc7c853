"""Match windows: when the pages of a season are hot, and when they are prewarmed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.resources import KINDS
from highwater.streams.league.windows import (
    LOOK_BACK_MS,
    Prewarm,
    WindowOptions,
    kickoff_range,
    match_window,
    maybe_prewarm_public_league_caches,
    merge_windows,
    season_windows,
    window_options,
)
from highwater.streams.pages.kinds import resolve_cache_options
from highwater.streams.pages.windows import (
    expires_at_ms,
    first_active_ms,
    is_match_window_active,
)
from highwater.streams.settings import read_settings

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
OPTIONS = WindowOptions()
KICKOFF = 1_790_000_000_000
CAUSE = Cause(1, "league.match-scheduled/0/0")


def match(season: str = "s", kickoff_ms: int = KICKOFF, **more: Any) -> Match:
    """A match, not played yet."""
    return Match(
        match_id="m", season=season, round="1", kickoff_ms=kickoff_ms, home="a", away="b", schedule_by=CAUSE, **more
    )


def final(finalized_ms: int, **more: Any) -> Match:
    """A match with its result."""
    return match(home_goals=1, away_goals=0, finalized_ms=finalized_ms, result_by=CAUSE, **more)


def edges(one: Match, options: WindowOptions = OPTIONS) -> tuple[int, int] | None:
    """A window in minutes around kickoff."""
    found = match_window(one, options)
    return None if found is None else ((found[0] - KICKOFF) // MINUTE, (found[1] - KICKOFF) // MINUTE)


windows_of = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 80)).map(lambda p: (p[0], p[0] + p[1])), max_size=6)


@pytest.mark.requirement("R4.9")
def test_a_window_is_prewarm_match_and_grace():
    """45 minutes before kickoff to 30 after the 120 of a match (R4.9, R4.10)."""
    assert edges(match()) == (-45, 150)


def test_a_result_ends_it_after_the_grace():
    """A match finalized after 95 minutes is hot until minute 125; one of extra time for as long as it lasted."""
    assert edges(final(KICKOFF + 95 * MINUTE)) == (-45, 125)
    assert edges(final(KICKOFF + 170 * MINUTE)) == (-45, 200)


def test_a_match_in_play_is_hot_for_its_duration():
    """With a score and no result it has the same window as without a score, not an endless one."""
    live = match(home_goals=0, away_goals=0, minute=118, score_by=CAUSE)
    assert edges(live) == edges(match()) == (-45, 150)


def test_a_result_entered_days_later_makes_no_window_of_days():
    """A match counts as over after twice its duration, whenever its result came."""
    assert edges(final(KICKOFF + 240 * MINUTE)) == (-45, 270)
    assert edges(final(KICKOFF + 5 * DAY)) == (-45, 270)


def test_a_result_known_before_kickoff_ends_it():
    """An awarded match is never hot; one called off within the prewarm is hot for the grace after that."""
    assert edges(final(KICKOFF - 2 * DAY)) is None
    assert edges(final(KICKOFF - 75 * MINUTE)) is None
    assert edges(final(KICKOFF - 20 * MINUTE)) == (-45, 10)


@pytest.mark.parametrize("status", [Status.POSTPONED, Status.CANCELLED])
def test_a_match_that_is_not_played_has_none(status: Status):
    """Postponed and cancelled matches are not hot, even with a result."""
    assert match_window(match(status=status), OPTIONS) is None
    assert match_window(final(KICKOFF, status=status), OPTIONS) is None


@pytest.mark.requirement("R4.10", "R4.12")
def test_options_come_from_the_settings():
    """The four settings of R4.10 and their defaults; one that cannot be read keeps its default."""
    assert window_options(read_settings({})) == WindowOptions(7.0, 45.0, 30.0, 120.0)
    given_ = {
        "MATCH_WINDOW_LOOKAHEAD_DAYS": "3",
        "MATCH_WINDOW_PREWARM_MINUTES": "60",
        "MATCH_WINDOW_POST_GRACE_MINUTES": "10.5",
        "MATCH_WINDOW_DURATION_MINUTES": "soon",
    }
    options = window_options(read_settings(given_))
    assert options == WindowOptions(3.0, 60.0, 10.5, 120.0)
    assert match_window(match(), options) == (KICKOFF - 60 * MINUTE, KICKOFF + 130 * MINUTE + 30_000)


def test_windows_of_a_season_are_merged_and_sorted():
    """Overlapping and adjoining windows become one; seasons and windows are sorted, for any order of the matches."""
    matches = [
        match("t", KICKOFF),
        match("s", KICKOFF + DAY),
        match("s", KICKOFF + 60 * MINUTE),
        match("s", KICKOFF),
        match("s", KICKOFF + 255 * MINUTE),
    ]
    found = season_windows(matches, OPTIONS, KICKOFF)
    assert found == season_windows(reversed(matches), OPTIONS, KICKOFF)
    assert list(found) == ["s", "t"]
    assert found["s"] == [
        [KICKOFF - 45 * MINUTE, KICKOFF + (255 + 150) * MINUTE],
        [KICKOFF + DAY - 45 * MINUTE, KICKOFF + DAY + 150 * MINUTE],
    ]


@pytest.mark.requirement("R4.10")
def test_what_began_already_is_found():
    """The query looks back: a match an hour old is hot, though its kickoff lies in the past (R4.10)."""
    now = KICKOFF + HOUR
    assert is_match_window_active(season_windows([match()], OPTIONS, now)["s"], now)


def test_windows_end_at_the_look_ahead_and_look_back():
    """A window is listed from the look-ahead before it begins until every page made before it is too old to be served."""
    start, end = match_window(match(), OPTIONS) or (0, 0)
    assert season_windows([match()], OPTIONS, start - 7 * DAY) == {}
    assert season_windows([match()], OPTIONS, start - 7 * DAY + 1) == {"s": [[start, end]]}
    assert season_windows([match()], OPTIONS, end + LOOK_BACK_MS - 1) == {"s": [[start, end]]}
    assert season_windows([match()], OPTIONS, end + LOOK_BACK_MS) == {}


def test_the_look_back_covers_the_longest_life():
    """No kind is served for longer outside a window than windows are remembered, so nothing old becomes fresh again."""
    outside = [resolve_cache_options(kind, is_window_active=False) for kind in KINDS.values()]
    assert max(one.ttl_seconds + one.stale_while_revalidate_seconds for one in outside) * 1000 <= LOOK_BACK_MS


@given(st.integers(-20 * DAY, 20 * DAY), st.none() | st.integers(-30 * DAY, 30 * DAY))
def test_the_range_of_kickoffs_misses_no_window(kickoff: int, finalized: int | None):
    """A match outside the range that a store returns has no window in the list."""
    now = KICKOFF
    one = match(kickoff_ms=now + kickoff)
    if finalized is not None:
        one = replace(one, finalized_ms=now + finalized, result_by=CAUSE)
    start, until = kickoff_range(OPTIONS, now)
    if season_windows([one], OPTIONS, now):
        assert start <= one.kickoff_ms < until


@given(windows_of)
def test_merging_changes_no_instant(windows: list[tuple[int, int]]):
    """An instant is hot after merging exactly if it was before; merged windows do not touch."""
    merged = merge_windows(windows)
    edges_of = {at + step for window in windows for at in window for step in (-1, 0, 1)}
    for at in edges_of:
        assert is_match_window_active(merged, at) == is_match_window_active(windows, at)
        assert first_active_ms(merged, at) == first_active_ms(windows, at)
    assert all(one[1] < other[0] for one, other in pairwise(merged))


def test_a_window_within_another_does_not_shorten_it():
    """A match that ends before another one leaves the season hot until the last has ended."""
    assert merge_windows([(10, 50), (20, 30), (50, 60)]) == [[10, 60]]


def test_the_range_of_kickoffs_reaches_to_the_look_ahead():
    """A match whose window begins just within the look-ahead is requested, though its kickoff lies beyond it."""
    now = KICKOFF
    last = match(kickoff_ms=now + OPTIONS.lookahead_ms + OPTIONS.prewarm_ms - 1)
    assert season_windows([last], OPTIONS, now)
    assert kickoff_range(OPTIONS, now)[1] == last.kickoff_ms + 1


@pytest.mark.requirement("R4.14")
def test_a_week_ends_when_the_window_begins():
    """A table made three days before a match is old as soon as the window opens (R4.14)."""
    inside, outside = (resolve_cache_options(KINDS["league_table"], is_window_active=is_in) for is_in in (True, False))
    windows = season_windows([match()], OPTIONS, KICKOFF - 3 * DAY)["s"]
    start = windows[0][0]
    assert expires_at_ms(KICKOFF - 3 * DAY, inside, outside, windows) == start
    assert expires_at_ms(start - 10_000, inside, outside, windows) == start + 20_000
    assert expires_at_ms(start + 10_000, inside, outside, windows) == start + 40_000
    after = windows[0][1]
    assert expires_at_ms(after, inside, outside, windows) == after + 7 * DAY


def test_a_season_is_prewarmed_once_for_a_start():
    """Due when a window begins, not before, not twice for the same start, again for a later one, never when it is over."""
    windows = {"s": [(10, 20), (30, 40)], "t": [(15, 35)]}
    assert maybe_prewarm_public_league_caches(windows, {}, 9) == []
    assert maybe_prewarm_public_league_caches(windows, {}, 10) == [Prewarm("s", 10)]
    assert maybe_prewarm_public_league_caches(windows, {"s": 10}, 19) == [Prewarm("t", 15)]
    assert maybe_prewarm_public_league_caches(windows, {"s": 10, "t": 15}, 19) == []
    assert maybe_prewarm_public_league_caches(windows, {"s": 10, "t": 15}, 30) == [Prewarm("s", 30)]
    assert maybe_prewarm_public_league_caches(windows, {}, 40) == []


def test_many_matches_of_a_season_are_one_prewarm():
    """However many windows of it are open, a season is named once, with the start of the newest."""
    windows = {"s": [(10, 100), (20, 100), (20, 90), (200, 300)]}
    assert maybe_prewarm_public_league_caches(windows, {"s": 10}, 50) == [Prewarm("s", 20)]


@given(st.dictionaries(st.sampled_from("stuv"), windows_of, max_size=4), st.integers(0, 600))
def test_a_prewarm_is_not_asked_for_again(windows: dict[str, list[tuple[int, int]]], now: int):
    """A prewarmed season is not due again at the same moment, and only hot seasons are due."""
    due = maybe_prewarm_public_league_caches(windows, {}, now)
    assert maybe_prewarm_public_league_caches(windows, dict(due), now) == []
    assert all(is_match_window_active(windows[season], now) for season, _ in due)
