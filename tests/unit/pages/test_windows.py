"""Windows in which pages are hot, and until when a page is fresh because of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.pages.kinds import CacheOptions
from highwater.streams.pages.windows import (
    expires_at_ms,
    first_active_ms,
    is_match_window_active,
    next_window_start,
    stale_until_ms,
)

windows_of = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 80)).map(lambda p: (p[0], p[0] + p[1])), max_size=6)


def test_the_first_hot_instant():
    """Now if it is hot, else the next start; the end of a window is outside it."""
    windows = [(10, 20), (30, 40)]
    assert [first_active_ms(windows, at) for at in (5, 10, 19, 20, 35, 40)] == [10, 10, 19, 30, 35, None]


@pytest.mark.requirement("R4.12")
def test_windows_are_half_open():
    """Hot from the very start, no longer at the end; the next start lies after now."""
    windows = [(10, 20), (30, 40)]
    assert [at for at in range(50) if is_match_window_active(windows, at)] == [*range(10, 20), *range(30, 40)]
    assert [next_window_start(windows, at) for at in (9, 10, 29, 30)] == [10, 30, 30, None]


lives = st.tuples(st.integers(1, 60), st.integers(0, 200), st.integers(0, 30), st.integers(0, 30)).map(
    lambda p: (CacheOptions(p[0], p[2], 10), CacheOptions(p[0] + p[1], p[3], 10))
)


@pytest.mark.requirement("R4.14")
@given(st.integers(0, 500), lives, windows_of)
def test_a_page_expires_when_its_age_reaches_the_life_of_the_moment(
    built: int, options: tuple[CacheOptions, CacheOptions], windows: list[tuple[int, int]]
):
    """Counted second by second: the first one whose TTL is no longer than the page's age (R4.14)."""
    inside, outside = options
    second = 1_000
    spans = [(start * second, end * second) for start, end in windows]
    expected = built
    while True:
        is_active = is_match_window_active(spans, expected * second)
        if expected - built >= (inside if is_active else outside).ttl_seconds:
            break
        expected += 1
    assert expires_at_ms(built * second, inside, outside, spans) == expected * second


def test_stale_lives_at_a_window():
    """Hot at its expiry: the life inside. Else the TTL outside, or the start of a window and the life inside if sooner."""
    inside, outside = CacheOptions(30, 120, 10), CacheOptions(900, 3_600, 10)
    assert stale_until_ms(0, inside, outside, [(-5_000, 5_000)]) == 120_000
    assert stale_until_ms(0, inside, outside, []) == 3_600_000
    assert stale_until_ms(0, inside, outside, [(60_000, 90_000)]) == 180_000
    assert stale_until_ms(0, inside, outside, [(3_599_000, 9_000_000)]) == 3_600_000


@given(st.integers(0, 500), lives, windows_of)
def test_a_window_shortens_what_is_left_of_a_stale_life(
    expires: int, options: tuple[CacheOptions, CacheOptions], windows: list[tuple[int, int]]
):
    """Never beyond the stale TTL outside unless hot at its expiry, and never beyond that inside once a window began."""
    inside, outside = options
    spans = [(start * 1000, end * 1000) for start, end in windows]
    until = stale_until_ms(expires * 1000, inside, outside, spans)
    assert until >= expires * 1000
    if is_match_window_active(spans, expires * 1000):
        assert until == (expires + inside.stale_while_revalidate_seconds) * 1000
        return
    assert until <= (expires + outside.stale_while_revalidate_seconds) * 1000
    start = next_window_start(spans, expires * 1000)
    if start is not None:
        assert until <= max(start, expires * 1000) + inside.stale_while_revalidate_seconds * 1000
