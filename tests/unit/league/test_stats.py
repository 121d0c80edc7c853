"""Aggregates and matches in play."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.league.matches import Match, Status
from highwater.streams.league.stats import TOP_MATCHES, is_in_play, matches_live, stats, stats_live
from tests.unit.league.facts import (
    DAY_MS,
    HOUR_MS,
    KICKOFF_MS,
    SEASON,
    final,
    live,
    real_matches,
    real_season,
    scheduled,
    seasons,
    unhurried,
    with_goal,
)

LENGTH_MS = 2 * HOUR_MS


def test_a_real_season():
    """Sums and shares are those that counting the file gives; the longest run is the one that history knows."""
    found = stats("2018-19", real_season())
    scores = [tuple(entry["score"]["ft"]) for entry in real_matches()]
    goals, home_wins = sum(map(sum, scores)), sum(home > away for home, away in scores)
    assert (len(scores), goals, round(goals / len(scores), 4)) == (380, found["goals"], found["goals_per_match"])
    assert (home_wins, round(home_wins / 380, 4)) == (found["home_wins"], found["home_share"])
    assert found["home_wins"] + found["draws"] + found["away_wins"] == found["played"] == found["scheduled"] == 380
    assert sum(score.count(0) for score in scores) == found["clean_sheets"]
    assert [abs(m["home_goals"] - m["away_goals"]) for m in found["biggest_wins"]] == sorted(
        (abs(home - away) for home, away in scores), reverse=True
    )[:TOP_MATCHES]
    assert found["longest_winning_run"] == {"team": "Manchester City", "matches": 14}
    city = next(team for team in found["teams"] if team["team"] == "Manchester City")
    assert tuple(city["home"][name] for name in ("played", "won", "drawn", "lost")) == (19, 18, 0, 1)
    assert tuple(city["away"][name] for name in ("played", "won", "drawn", "lost")) == (19, 14, 2, 3)


def test_before_the_first_result():
    """Nothing is divided by nothing; teams are listed, there are no runs and no top matches."""
    found = stats(SEASON, [scheduled("A", "B"), live("C", "D", 5, 0), scheduled("E", "F", status=Status.CANCELLED)])
    assert tuple(found[n] for n in ("goals", "goals_per_match", "home_share", "scheduled")) == (0, 0.0, 0.0, 2)
    assert tuple(found[n] for n in ("longest_winning_run", "longest_unbeaten_run", "biggest_wins", "most_goals")) == (
        None,
        None,
        [],
        [],
    )
    assert list("ABCD") == [team["team"] for team in found["teams"]]


def test_top_matches_and_runs():
    """A draw does not count as a win; of equal values the earlier match leads; runs follow kickoffs and end with another
    outcome.
    """
    matches = [
        final("A", "B", 1, 0, kickoff_ms=KICKOFF_MS),
        final("A", "C", 4, 4, kickoff_ms=KICKOFF_MS + DAY_MS),
        final("D", "E", 2, 1, kickoff_ms=KICKOFF_MS + DAY_MS),
        final("E", "D", 0, 3, kickoff_ms=KICKOFF_MS + 2 * DAY_MS),
        final("B", "A", 0, 1, kickoff_ms=KICKOFF_MS + 2 * DAY_MS),
        final("C", "A", 1, 2, kickoff_ms=KICKOFF_MS + 3 * DAY_MS),
        final("C", "B", 2, 0, kickoff_ms=KICKOFF_MS + 4 * DAY_MS),
    ]
    found = stats(SEASON, matches[::-1])
    assert [match["match_id"] for match in found["biggest_wins"]] == ["E-D", "C-B", "D-E", "C-A", "A-B"]
    assert [match["match_id"] for match in found["most_goals"]] == ["A-C", "E-D", "D-E", "C-A", "C-B"]
    assert found["longest_winning_run"] == {"team": "A", "matches": 2}
    assert found["longest_unbeaten_run"] == {"team": "A", "matches": 4}
    assert {team["team"]: team["clean_sheets"] for team in found["teams"]} == {"A": 2, "B": 0, "C": 1, "D": 1, "E": 0}


@unhurried
@given(seasons(), st.randoms())
def test_laws(matches: list[Match], chance: Any):
    """Neither order nor a goal in play changes aggregates; home and away records sum up to the season."""
    found = stats(SEASON, matches)
    shuffled = [with_goal(match) for match in matches]
    chance.shuffle(shuffled)
    assert stats(SEASON, shuffled) == found
    assert sum(team["home"]["goals_for"] + team["away"]["goals_for"] for team in found["teams"]) == found["goals"]
    assert sum(team["home"]["won"] for team in found["teams"]) == found["home_wins"]


def test_what_is_in_play():
    """A match is live by event or by the clock; not after its duration, not with a result, not if it is not played."""
    begun = scheduled("A", "B")
    cases = {
        "a moment before": (begun, KICKOFF_MS - 1, False),
        "at kickoff": (begun, KICKOFF_MS, True),
        "at its last moment": (begun, KICKOFF_MS + LENGTH_MS - 1, True),
        "over by the clock": (begun, KICKOFF_MS + LENGTH_MS, False),
        "told live before its time": (live("A", "B", 0, 0), KICKOFF_MS - HOUR_MS, True),
        "told live, and it lasts": (live("A", "B", 0, 0), KICKOFF_MS + 2 * LENGTH_MS - 1, True),
        "told live long ago": (live("A", "B", 0, 0), KICKOFF_MS + 2 * LENGTH_MS, False),
        "final": (final("A", "B", 1, 0), KICKOFF_MS + 1, False),
        "postponed": (scheduled("A", "B", status=Status.POSTPONED), KICKOFF_MS + 1, False),
        "abandoned": (live("A", "B", 1, 0, status=Status.POSTPONED), KICKOFF_MS + 1, False),
        "cancelled": (scheduled("A", "B", status=Status.CANCELLED), KICKOFF_MS + 1, False),
    }
    found = {name: is_in_play(match, now_ms, LENGTH_MS) for name, (match, now_ms, _) in cases.items()}
    assert {name: expected for name, (_, _, expected) in cases.items()} == found


def test_matches_in_play_are_shown_with_score_and_minute():
    """In order of kickoff; one that only the clock has begun has no score and no minute yet."""
    matches = [
        live("C", "D", 2, 1, minute=61),
        scheduled("A", "B"),
        scheduled("E", "F", kickoff_ms=KICKOFF_MS + DAY_MS),
    ]
    found = stats_live(SEASON, matches, KICKOFF_MS, LENGTH_MS)
    shown = [(m["match_id"], m["state"], m["home_goals"], m["away_goals"], m["minute"]) for m in found["matches"]]
    assert shown == [("A-B", "scheduled", None, None, None), ("C-D", "live", 2, 1, 61)]
    assert found["season"] == SEASON
    assert {"matches": found["matches"]} == matches_live(matches[::-1], KICKOFF_MS, LENGTH_MS)
