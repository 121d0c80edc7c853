"""Temperatures of chunks, and how much a namespace is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.chunks import QueriesServed
from highwater.schemas.errors import InvalidEventError
from highwater.streams.chunks.passports import load_passports
from highwater.streams.chunks.states import Temperature
from highwater.streams.chunks.temperature import (
    DAY_MS,
    HOUR_MS,
    IndexSize,
    NamespaceSearches,
    count,
    decode_row,
    encode_row,
    is_hot,
    is_sweep_due,
    is_to_be_rebuilt,
    queries_per_day,
    rate,
    rated_event,
    temperature,
)

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
MIDNIGHT = NOON + 12 * HOUR_MS
PASSPORT = load_passports().default


def served(queries: int, at_ms: int = NOON, **more: Any) -> QueriesServed:
    """Searches of ten seconds."""
    return {"ns": "docs", "queries": queries, "since": at_ms - 10_000, "at": at_ms, **more}  # type: ignore[typeddict-item]


def asked(*events: QueriesServed, now_ms: int = NOON) -> NamespaceSearches:
    """The row after events, at the offsets 0, 1, 2 and so on, written and read again between each two."""
    row: NamespaceSearches | None = None
    for offset, event in enumerate(events):
        row = decode_row(encode_row(count(row, event, (3, offset), now_ms)))
    assert row is not None
    return row


def evenly(a_day: int, days: int, until_ms: int) -> NamespaceSearches:
    """A namespace with this many searches, one batch each hour, during a number of days until a time."""
    hours = [until_ms - back * HOUR_MS for back in range(24 * days)]
    return asked(*(served(a_day // 24, at_ms) for at_ms in reversed(hours)))


@pytest.mark.requirement("R3.21", "R3.22", "R3.23")
@pytest.mark.parametrize(
    ("age_days", "hot", "expected"),
    [
        (-3, True, Temperature.HOT),
        (0, True, Temperature.HOT),
        (14, True, Temperature.HOT),
        (14.0001, True, Temperature.WARM),
        (0, False, Temperature.WARM),
        (365, True, Temperature.WARM),
        (365, False, Temperature.WARM),
        (365.0001, True, Temperature.COLD),
        (365.0001, False, Temperature.COLD),
    ],
)
def test_the_temperature_of_a_chunk(age_days: float, hot: bool, expected: Temperature):
    """R3.21 to R3.23, at the days themselves: one of exactly the TTL is not cold yet (R3.18)."""
    assert temperature(age_days, PASSPORT, hot) is expected


def test_what_is_too_old_is_cold_before_it_is_hot():
    """Where a namespace keeps things for less than it calls recent."""
    assert temperature(2, replace(PASSPORT, ttl_days=1), is_hot=True) is Temperature.COLD


@pytest.mark.requirement("R3.21")
def test_a_hundred_a_day_are_hot():
    """Exactly one hundred are enough."""
    assert [is_hot(per_day, PASSPORT) for per_day in (0, 99.999, 100, 1e9)] == [False, False, True, True]
    assert is_hot(0, replace(PASSPORT, hot_queries_per_day=0))


@pytest.mark.parametrize("hour", range(0, 24, 5))
def test_even_asking_is_rated_evenly(hour: int):
    """At every hour of the day: nothing falls at midnight because a day is young."""
    now_ms = MIDNIGHT + hour * HOUR_MS
    assert queries_per_day(evenly(240, 9, now_ms - HOUR_MS // 2), now_ms) == pytest.approx(240, rel=0.01)


def test_searches_count_for_seven_days():
    """Older searches do not count; the oldest day counts in proportion to its remaining part."""
    row = asked(served(700, MIDNIGHT))
    days = [(0, 100), (6.999, 100), (7, 100), (7.5, 50), (8, 0), (9, 0)]
    assert [queries_per_day(row, MIDNIGHT + int(after * DAY_MS)) for after, _ in days] == pytest.approx(
        [rate for _, rate in days]
    )


def test_being_rated_takes_no_searches_away():
    """Whether it is rated every hour or never, a namespace is asked as much."""
    row = unrated = evenly(240, 9, MIDNIGHT)
    for hour in range(24 * 9):
        now_ms = MIDNIGHT + hour * HOUR_MS
        row = rate(row, PASSPORT, now_ms).row
        assert queries_per_day(row, now_ms) == queries_per_day(unrated, now_ms)


def test_searches_of_a_clock_that_is_ahead_wait_for_their_day():
    """They are not lost, and do not count before it."""
    row = asked(served(700, MIDNIGHT + 1))
    assert queries_per_day(row, NOON) == 0
    assert queries_per_day(row, MIDNIGHT) == 100


EVENTS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 5 * DAY_MS)).map(lambda one: served(one[0], NOON + one[1])),
    min_size=1,
    max_size=12,
)


@given(EVENTS, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6))
def test_a_search_counts_once(events: list[QueriesServed], stretches: list[tuple[int, int]]):
    """A worker that goes back in the log and continues from there, however often, counts none of them again."""
    row: NamespaceSearches | None = None
    reached = 0
    for back, length in [*stretches, (0, len(events))]:
        first = max(0, reached - back)
        for offset in range(first, min(first + length, len(events))):
            row = count(row, events[offset], (3, offset), NOON)
            reached = max(reached, offset + 1)
    assert row is not None
    assert sum(queries for _, queries in row.days) == sum(event["queries"] for event in events)


def test_a_row_keeps_no_more_than_its_days():
    """The newest ones, so that it does not grow with the age of the installation."""
    row = asked(*(served(1, NOON + day * DAY_MS) for day in range(40)))
    assert [day for day, _ in row.days] == [NOON // DAY_MS + day for day in range(31, 40)]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"ns": "a|b"}, "separator"),
        ({"ns": ""}, "empty_id"),
        ({"queries": -1}, "bad_number"),
        ({"queries": 10**13}, "bad_number"),
        ({"at": 10**18}, "time_out_of_range"),
    ],
)
def test_what_no_searches_can_be_is_refused(wrong: dict[str, Any], reason: str):
    """With a reason a program can rely on."""
    with pytest.raises(InvalidEventError) as refused:
        count(None, {**served(1), **wrong}, (0, 0), NOON)  # type: ignore[typeddict-item]
    assert refused.value.reason == reason


def test_a_namespace_becomes_hot_and_cools_down():
    """Both changes are reported; the hours between them only on another day."""
    row, told = asked(served(700), now_ms=NOON), []
    for hour in range(1, 24 * 9):
        now_ms = NOON + hour * HOUR_MS
        row, is_told = rate(row, PASSPORT, now_ms)
        if is_told:
            told.append((now_ms, row.is_hot, row.queries_per_day))
    assert told[0] == (NOON + HOUR_MS, True, 100)
    cooled = [one for one in told if not one[1]]
    # The day of the searches begins to leave seven days after it began.
    assert cooled[0][0] == MIDNIGHT - DAY_MS + 7 * DAY_MS + HOUR_MS
    assert told[-1][1:] == (False, 0)
    days = [now_ms // DAY_MS for now_ms, _, _ in told]
    assert len(told) <= len(set(days)) + 1


def test_a_rate_that_stays_is_told_once():
    """Day after day."""
    row, tellings = replace(asked(served(7)), looked_ms=NOON), 0
    for day in range(1, 5):
        row, is_told = rate(row, PASSPORT, NOON + day * DAY_MS)
        tellings += is_told
    assert tellings == 1


def test_a_quiet_namespace_is_forgotten():
    """It is forgotten after the report that it has no searches, and not before."""
    row = rate(asked(served(700)), PASSPORT, NOON).row
    gone = rate(row, PASSPORT, NOON + 9 * DAY_MS)
    assert (gone.is_told, gone.is_over, gone.row.is_hot) == (True, True, False)
    assert not rate(row, PASSPORT, NOON + HOUR_MS).is_over
    assert not rate(row, replace(PASSPORT, hot_queries_per_day=0), NOON + 9 * DAY_MS).is_over


def test_a_passport_that_changed_is_obeyed():
    """At the next hour, without a search."""
    row = rate(asked(served(70)), PASSPORT, NOON).row
    assert not row.is_hot
    rating = rate(row, replace(PASSPORT, hot_queries_per_day=10), NOON + HOUR_MS)
    assert rated_event(rating.row, NOON) == {"ns": "docs", "is_hot": True, "queries_per_day": 10, "decided_at": NOON}
    assert rating.is_told


def test_an_hour_is_due_once():
    """A namespace is rated once an hour, and a sweep is requested at the first tick of each hour."""
    row = asked(served(1), now_ms=NOON + 1)
    assert row.due_ms == NOON + HOUR_MS
    assert rate(row, PASSPORT, NOON + HOUR_MS).row.due_ms == NOON + 2 * HOUR_MS
    ticks = [(0, NOON), (NOON, NOON + 1), (NOON - 1, NOON), (NOON, NOON + HOUR_MS - 1), (NOON, NOON + HOUR_MS)]
    assert [is_sweep_due(last, now) for last, now in ticks] == [True, False, True, False, True]


def test_a_row_of_a_newer_release_stops_the_worker():
    """Rather than be misread."""
    with pytest.raises(ValueError, match="version 2"):
        decode_row(b"[2]")


@pytest.mark.parametrize(
    ("vectors", "taken", "is_hot", "is_made_anew"),
    [
        (100, 1_000, True, False),
        (100, 1_240, True, False),
        (100, 1_260, True, True),
        (100, 1_260, False, False),
        (100, 2_010, False, True),
        (79, 1_000, True, True),
        (0, 1_000, False, True),
        (200, 2_000, True, False),
        (100, 0, True, False),
    ],
)
def test_an_index_of_holes_is_made_anew(vectors: int, taken: int, is_hot: bool, is_made_anew: bool):
    """R3.21: a fifth of holes in a hot namespace, a half in another; what grows with its vectors has none."""
    assert is_to_be_rebuilt(IndexSize(100, 1_000), IndexSize(vectors, taken), is_hot=is_hot) is is_made_anew
