"""Results: exactly the final matches, newest first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.causes import newest
from highwater.streams.league.matches import Match
from highwater.streams.league.results import results, results_causes
from tests.unit.league.facts import HOUR_MS, KICKOFF_MS, SEASON, final, live, scheduled, seasons, unhurried, with_goal


def test_only_results_the_newest_first():
    """Future matches and those in play are left out; matches of one kickoff are ordered by home team."""
    found = results(
        SEASON,
        [
            scheduled("A", "B"),
            live("C", "D", 1, 0),
            final("F", "E", 0, 0),
            final("E", "F", 2, 1),
            final("G", "H", 3, 1, kickoff_ms=KICKOFF_MS + HOUR_MS),
        ],
    )
    assert [(match["home"], match["home_goals"], match["away_goals"]) for match in found["results"]] == [
        ("G", 3, 1),
        ("E", 2, 1),
        ("F", 0, 0),
    ]
    assert found["season"] == SEASON


@unhurried
@given(seasons(), st.randoms())
def test_laws(matches: list[Match], chance: Any):
    """As many as are final; neither the order of matches nor a goal in play changes them or the event behind them."""
    found = results(SEASON, matches)
    assert sorted(m.match_id for m in matches if m.is_final) == sorted(m["match_id"] for m in found["results"])
    shuffled = [with_goal(match) for match in matches]
    chance.shuffle(shuffled)
    assert results(SEASON, shuffled) == found
    assert newest(results_causes(shuffled)) == newest(results_causes(matches))


def test_a_match_to_come_is_not_behind_it():
    """A date that was published after the last result is not the event behind the results."""
    matches = [final("A", "B", 1, 0), scheduled("C", "D", schedule_by=Cause(99, "later/0/1"))]
    assert newest(results_causes(matches)) == "league.match-finalized/0/1"
    assert newest(results_causes(matches[1:])) == ""
