"""The schedule: its order, and that a goal in play does not change it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.causes import newest, settled
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.schedule import schedule
from tests.unit.league.facts import (
    DAY_MS,
    HOUR_MS,
    KICKOFF_MS,
    SEASON,
    final,
    live,
    scheduled,
    seasons,
    unhurried,
    with_goal,
)


def ids(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Rounds and their matches."""
    return [(one["round"], [match["match_id"] for match in one["matches"]]) for one in found["rounds"]]


def test_rounds_by_first_kickoff_matches_by_kickoff_and_home_team():
    """A round stands where its first match does, not where its name or its postponed match would put it."""
    later = KICKOFF_MS + DAY_MS
    found = schedule(
        SEASON,
        [
            scheduled("C", "D", round="Matchday 10", kickoff_ms=later + HOUR_MS),
            scheduled("B", "A", round="Matchday 10", kickoff_ms=later),
            scheduled("A", "C", round="Matchday 10", kickoff_ms=later),
            scheduled("A", "B", round="Matchday 2", kickoff_ms=KICKOFF_MS),
            scheduled("E", "F", round="Matchday 2", kickoff_ms=later + 9 * DAY_MS),
        ],
    )
    assert ids(found) == [("Matchday 2", ["A-B", "E-F"]), ("Matchday 10", ["A-C", "B-A", "C-D"])]


def test_what_a_match_shows():
    """Times are ISO in UTC; a match in play is shown as scheduled, one with a result with its end; all have all keys."""
    to_come, playing, ended = (
        schedule(SEASON, [match])["rounds"][0]["matches"][0]
        for match in (
            scheduled("A", "B", kickoff_ms=KICKOFF_MS + 5, time_unknown=True, status=Status.POSTPONED),
            live("A", "B", 1, 0),
            final("A", "B", 2, 1),
        )
    )
    plain = {
        "match_id": "A-B", "season": SEASON, "round": "Matchday 1", "kickoff": "2018-08-25T12:30:00Z",
        "time_unknown": False, "status": "scheduled", "state": "scheduled", "home": "A", "away": "B",
        "home_goals": None, "away_goals": None,
    }  # fmt: skip
    assert plain == playing
    odd = {"kickoff": "2018-08-25T12:30:00.005Z", "time_unknown": True, "status": "postponed"}
    assert {**plain, **odd} == to_come
    end = {"state": "final", "home_goals": 2, "away_goals": 1, "finalized_at": "2018-08-25T14:30:00Z"}
    assert {**plain, **end} == ended


@unhurried
@given(seasons())
def test_every_match_is_in_it_once(matches: list[Match]):
    """A match with any status is listed exactly once."""
    assert sorted(m.match_id for m in matches) == sorted(i for _, held in ids(schedule(SEASON, matches)) for i in held)


@unhurried
@given(seasons(), st.randoms())
def test_the_order_of_matches_does_not_matter(matches: list[Match], chance: Any):
    """The same matches in another order are the same document."""
    shuffled = matches.copy()
    chance.shuffle(shuffled)
    assert schedule(SEASON, matches) == schedule(SEASON, shuffled)


@unhurried
@given(seasons())
def test_a_goal_in_play_changes_nothing(matches: list[Match]):
    """Neither the document nor the event behind it."""
    after = [with_goal(match) for match in matches]
    assert schedule(SEASON, matches) == schedule(SEASON, after)
    assert newest(settled(matches)) == newest(settled(after))


def test_the_newest_event_is_behind_it():
    """The newest by the broker's time, and of one batch the one of the higher offset, as a number; no event, no position."""
    by_time = [final("A", "B", 1, 0, result_by=Cause(7, "r/0/1")), scheduled("C", "D", schedule_by=Cause(6, "s/0/9"))]
    assert newest(settled(by_time)) == "r/0/1"
    batch = [scheduled("A", "B", schedule_by=Cause(6, f"s/0/{offset}")) for offset in (9, 10, 8)]
    assert newest(settled(batch)) == "s/0/10"
    assert newest([None]) == ""
