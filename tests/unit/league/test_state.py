"""Rows of matches: how changes merge, when a row is due, and what is published then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.league import MatchChanged
from highwater.streams.league.matches import State, Status
from highwater.streams.league.state import (
    DueReports,
    Row,
    apply_changed,
    decode_row,
    decode_season,
    due_ms,
    encode_row,
    encode_season,
    is_match_key,
    judge,
    match_key,
    season_key,
    with_end_reported,
)
from highwater.streams.league.windows import Prewarm, WindowOptions, live_ends_ms

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
KICKOFF = 1_790_000_000_000
OPENS = KICKOFF - 45 * MINUTE
OPTIONS = WindowOptions()


def changed(revision: int = 1, **more: Any) -> MatchChanged:
    """A match as the sink publishes it."""
    event: Any = {
        "match_id": "m",
        "season": "s",
        "changed": ["schedule"],
        "kickoff": KICKOFF,
        "status": "scheduled",
        "state": "scheduled",
        "home": "home",
        "away": "away",
        "former_teams": [],
        "home_goals": None,
        "away_goals": None,
        "finalized_at": None,
        "revision": revision,
    }
    return {**event, **more}


def row(**more: Any) -> Row:
    """The row after one change."""
    return apply_changed(None, changed(**more))


def final(finalized_at: int, **more: Any) -> Row:
    """The row of a match with its result."""
    return row(state="final", finalized_at=finalized_at, **more)


@st.composite
def histories(draw: Any) -> list[MatchChanged]:
    """Changes of one match, a revision each."""
    return [
        changed(
            revision,
            kickoff=KICKOFF + draw(st.integers(-DAY, DAY)),
            status=draw(st.sampled_from(["scheduled", "postponed", "cancelled"])),
            state=draw(st.sampled_from(["scheduled", "live", "final"])),
            finalized_at=draw(st.none() | st.integers(KICKOFF - DAY, KICKOFF + 9 * DAY)),
        )
        for revision in draw(st.lists(st.integers(1, 20), unique=True, min_size=1, max_size=6))
    ]


@given(histories(), st.data())
def test_any_order_and_any_repetition_give_one_row(events: list[MatchChanged], data: st.DataObject):
    """The highest revision counts, in any order and with any repetition."""
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=4))
    found = None
    for event in data.draw(st.permutations(repeated)):
        found = decode_row(encode_row(apply_changed(found, event)))
    assert found == apply_changed(None, max(events, key=lambda event: event["revision"]))


def test_an_older_revision_changes_nothing():
    """A change that comes late leaves the row as it is."""
    known = row(revision=7)
    assert apply_changed(known, changed(6, kickoff=1)) is known


def test_a_newer_revision_keeps_what_was_told():
    """The published end is remembered through changes, so that the same end is not published again."""
    known = replace(row(revision=1), over_told_ms=5)
    assert apply_changed(known, changed(2)).over_told_ms == 5


@pytest.mark.parametrize("wrong", [{"status": "moved"}, {"state": "over"}])
def test_a_state_that_is_none_is_refused(wrong: dict[str, str]):
    """An invalid event goes to the dead letters, not into a row."""
    with pytest.raises(InvalidEventError):
        apply_changed(None, changed(**wrong))


@pytest.mark.requirement("R4.17")
def test_a_live_page_ends_three_hours_after_the_match():
    """After the result; without one, after the duration; never for a match that is not played (R4.17)."""
    assert live_ends_ms(final(KICKOFF + 95 * MINUTE), OPTIONS) == KICKOFF + 95 * MINUTE + 3 * HOUR
    assert live_ends_ms(row(), OPTIONS) == KICKOFF + 5 * HOUR
    assert live_ends_ms(row(status="postponed"), OPTIONS) is None
    assert live_ends_ms(row(status="cancelled"), OPTIONS) is None
    assert live_ends_ms(final(KICKOFF + 95 * MINUTE, status="postponed"), OPTIONS) == KICKOFF + 95 * MINUTE + 3 * HOUR


def test_wrong_times_of_results_neither_keep_nor_end_a_page():
    """A result with the year 9999 counts a day after kickoff, one before kickoff counts from kickoff."""
    assert live_ends_ms(final(253_402_300_799_999), OPTIONS) == KICKOFF + DAY + 3 * HOUR
    assert live_ends_ms(final(0), OPTIONS) == KICKOFF + 3 * HOUR


def test_a_match_is_due_when_its_window_begins_and_when_it_is_long_over():
    """First the start of the window, then the end of the live page, then nothing."""
    one = row()
    assert due_ms(one, None, OPTIONS, OPENS - DAY) == OPENS
    assert due_ms(one, OPENS - DAY, OPTIONS, OPENS - DAY) == OPENS
    assert due_ms(one, OPENS, OPTIONS, OPENS) == KICKOFF + 5 * HOUR
    assert due_ms(with_end_reported(one, OPTIONS), OPENS, OPTIONS, KICKOFF + DAY) is None


def test_a_match_of_years_ago_is_never_due_again():
    """Once its end was published, an old match costs nothing; before that, only the publication."""
    old = final(KICKOFF + 2 * HOUR)
    now = KICKOFF + 3_650 * DAY
    assert due_ms(old, None, OPTIONS, now) == KICKOFF + 5 * HOUR
    assert due_ms(with_end_reported(old, OPTIONS), None, OPTIONS, now) is None


def test_another_date_is_due_again():
    """A moved match is prewarmed for its new date, though its season was for the old one; a new result ends it again."""
    moved = apply_changed(with_end_reported(row(), OPTIONS), changed(2, kickoff=KICKOFF + DAY))
    assert due_ms(moved, OPENS, OPTIONS, OPENS + HOUR) == OPENS + DAY
    corrected = apply_changed(
        with_end_reported(final(KICKOFF + HOUR), OPTIONS), changed(2, state="final", finalized_at=KICKOFF + DAY)
    )
    assert due_ms(corrected, OPENS, OPTIONS, KICKOFF + DAY) == KICKOFF + DAY + 3 * HOUR


def test_a_round_of_matches_is_one_prewarm():
    """Ten matches that begin together ask once for their season, and later ones ask again."""
    rows = [row(match_id=str(number), kickoff=KICKOFF + (number >= 6) * HOUR) for number in range(10)]
    assert judge(rows, {}, OPTIONS, OPENS - 1).prewarms == []
    assert judge(rows, {}, OPTIONS, OPENS) == DueReports([Prewarm("s", OPENS)], {})
    assert judge(rows, {"s": OPENS}, OPTIONS, OPENS + 1).prewarms == []
    assert judge(rows, {"s": OPENS}, OPTIONS, OPENS + HOUR).prewarms == [Prewarm("s", OPENS + HOUR)]


def test_a_worker_that_was_away_prewarms_what_is_still_hot():
    """A start missed by an hour is made up for while the window is open; one whose window is over is not."""
    assert judge([row()], {}, OPTIONS, OPENS + HOUR).prewarms == [Prewarm("s", OPENS)]
    assert judge([row()], {}, OPTIONS, KICKOFF + 150 * MINUTE).prewarms == []


def test_seasons_of_the_past_are_not_prewarmed():
    """Ten years of matches imported at once ask for no page; their live pages end with one request a season."""
    rows = [
        final(
            KICKOFF - year * 365 * DAY,
            season=str(year),
            match_id=f"{year}-{number}",
            kickoff=KICKOFF - year * 365 * DAY,
        )
        for year in range(1, 11)
        for number in range(380)
    ]
    due = judge(rows, {}, OPTIONS, KICKOFF)
    assert due.prewarms == []
    assert {season: len(over) for season, over in due.over.items()} == {str(year): 380 for year in range(1, 11)}
    assert judge([with_end_reported(one, OPTIONS) for one in rows], {}, OPTIONS, KICKOFF).over == {}


@given(
    histories(), st.integers(KICKOFF - 2 * DAY, KICKOFF + 12 * DAY), st.none() | st.integers(OPENS - DAY, OPENS + DAY)
)
def test_a_row_that_was_dealt_with_is_not_due_at_once(events: list[MatchChanged], now: int, prewarmed: int | None):
    """After everything due was published, the next due time lies ahead: a tick never loops."""
    one = apply_changed(None, events[-1])
    known = {} if prewarmed is None else {"s": prewarmed}
    due = judge([one], known, OPTIONS, now)
    after = with_end_reported(one, OPTIONS) if due.over else one
    next_ms = due_ms(after, dict(due.prewarms).get("s", prewarmed), OPTIONS, now)
    assert next_ms is None or next_ms > now
    assert not any(judge([after], known | dict(due.prewarms), OPTIONS, now))


@given(st.text(min_size=1), st.text(min_size=1))
def test_keys_of_matches_and_seasons_are_apart(season: str, match_id: str):
    """A season's own row is never taken for a match's; ids hold no NUL."""
    season, match_id = season.replace("\0", "x"), match_id.replace("\0", "x")
    assert is_match_key(match_key(season, match_id))
    assert not is_match_key(season_key(season))
    assert match_key(season, match_id).split(b"\0") == [season.encode(), match_id.encode()]


def test_rows_are_kept_whole():
    """Every field survives its stored form, and a season's too."""
    one = Row("s", "m", 3, 5, Status.POSTPONED, State.FINAL, "home", "away", 7, 9)
    assert decode_row(encode_row(one)) == one
    assert decode_row(None) is None
    assert decode_season(encode_season(5)) == 5
    assert decode_season(None) is None


@pytest.mark.parametrize("decode", [decode_row, decode_season])
def test_a_row_of_another_version_is_refused(decode: Any):
    """A row that cannot be understood stops the worker rather than being guessed at."""
    with pytest.raises(ValueError, match="version 99"):
        decode(b"[99,1]")
