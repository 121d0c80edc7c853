"""Knock-out rounds: names, ties over one leg or two, winners."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.league.bracket import bracket
from highwater.streams.league.matches import Match, Status
from tests.unit.league.facts import (
    DAY_MS,
    KICKOFF_MS,
    SEASON,
    final,
    live,
    real_season,
    scheduled,
    seasons,
    unhurried,
    with_goal,
)


@unhurried
@given(st.text())
def test_any_name_is_taken(name: str):
    """No name of a round makes it fail."""
    assert bracket(SEASON, [scheduled("A", "B", round=name)])["season"] == SEASON


def test_a_plain_league_has_none():
    """A real season of a league has no knock-out round."""
    assert bracket("2018-19", real_season()) == {"season": "2018-19", "rounds": []}


def ties(found: dict[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """Per round (home, away, home goals, away goals, winner)."""
    names = ("home", "away", "home_goals", "away_goals", "winner")
    return {one["name"]: [tuple(tie[name] for name in names) for tie in one["ties"]] for one in found["rounds"]}


def leg(number: int, match: Match) -> dict[str, Any]:
    """The rules that make a match the second, third ... of its tie."""
    return {"kickoff_ms": match.kickoff_ms + number * DAY_MS, "match_id": f"{match.match_id}-{number}"}


def test_from_the_first_round_to_the_final():
    """Rounds in order of the competition, not of the calendar or the alphabet; ties by first kickoff."""
    found = bracket(
        SEASON,
        [
            scheduled("A", "C", round="Final", kickoff_ms=0),
            scheduled("B", "D", round="Third place"),
            final("A", "B", 2, 1, round="Semi-finals", kickoff_ms=KICKOFF_MS + DAY_MS),
            final("D", "C", 0, 1, round="Semi-finals"),
            scheduled("X", "Y", round="Round of 32"),
            scheduled("Q", "R", round="Play-offs"),
            scheduled("V", "W", round="Matchday 3"),
        ],
    )
    assert [one["name"] for one in found["rounds"]] == ["play-off", "round of 32", "semi-final", "third place", "final"]
    assert ties(found)["semi-final"] == [("D", "C", 0, 1, "C"), ("A", "B", 2, 1, "A")]
    assert ties(found)["final"] == [("A", "C", None, None, None)]


def test_two_legs_are_one_tie():
    """Goals are summed from the side of the first home team; there is a winner once both legs are final."""
    first = final("A", "B", 1, 2, round="Semi-finals, 1st leg")
    second = {"round": "Semi-finals, 2nd leg", **leg(7, first)}
    assert ties(bracket(SEASON, [first])) == {"semi-final": [("A", "B", 1, 2, None)]}
    assert ties(bracket(SEASON, [first, scheduled("B", "A", **second)])) == {"semi-final": [("A", "B", 1, 2, None)]}
    assert ties(bracket(SEASON, [first, live("B", "A", 0, 5, **second)])) == {"semi-final": [("A", "B", 1, 2, None)]}
    assert ties(bracket(SEASON, [final("B", "A", 1, 4, **second), first])) == {"semi-final": [("A", "B", 5, 3, "A")]}
    (tie,) = bracket(SEASON, [final("B", "A", 1, 4, **second), first])["rounds"][0]["ties"]
    assert [match["match_id"] for match in tie["matches"]] == ["A-B", "A-B-7"]


def test_extra_time_and_penalties_decide_a_tie():
    """Goals are those after extra time, over all legs; a shoot-out decides equal goals, also for the team that is not at home."""
    found = bracket(
        SEASON,
        [
            final("A", "B", 2, 2, round="Final", extra_time=(3, 3), penalties=(4, 2)),
            final("C", "D", 0, 0, round="Match for third place", extra_time=(0, 1)),
            first := final("A", "C", 1, 0, round="Semi-finals, 1st leg"),
            final("C", "A", 1, 0, round="Semi-finals, 2nd leg", extra_time=(2, 1), penalties=(3, 5), **leg(7, first)),
            final("D", "B", 1, 1, round="Quarter-final", penalties=(0, 1)),
        ],
    )
    assert ties(found) == {
        "quarter-final": [("D", "B", 1, 1, "B")],
        "semi-final": [("A", "C", 2, 2, "A")],
        "third place": [("C", "D", 0, 1, "D")],
        "final": [("A", "B", 3, 3, "A")],
    }
    (played,) = found["rounds"][-1]["ties"][0]["matches"]
    assert (played["home_goals"], played["extra_time"], played["penalties"]) == (
        2,
        {"home_goals": 3, "away_goals": 3},
        {"home_goals": 4, "away_goals": 2},
    )


def test_a_level_tie_was_won_by_who_plays_on():
    """A result without a shoot-out; the next round decides, the match for third place does not."""
    level = final("A", "B", 1, 1, round="Semi-final")
    to_come = [scheduled("A", "C", round="Final"), scheduled("D", "B", round="Third place")]
    assert ties(bracket(SEASON, [level]))["semi-final"] == [("A", "B", 1, 1, None)]
    assert ties(bracket(SEASON, [level, to_come[1]]))["semi-final"] == [("A", "B", 1, 1, None)]
    assert ties(bracket(SEASON, [level, *to_come]))["semi-final"] == [("A", "B", 1, 1, "A")]


def test_what_is_played_in_groups_has_no_ties():
    """A second phase and qualifying rounds are no knock-out rounds; a numbered play-off is one."""
    rounds = ["Championship Round - 3", "Relegation Round", "Qualifying, 1st Round", "Play-offs 1"]
    assert ties(bracket(SEASON, [final("A", "B", 2, 0, round=name) for name in rounds])) == {
        "play-off": [("A", "B", 2, 0, "A")]
    }


def test_a_replay_decides_its_tie():
    """It is a further match of the same tie."""
    first = final("A", "B", 1, 1, round="Final")
    replay = final("A", "B", 2, 0, round="Final Replay", **leg(3, first))
    assert ties(bracket(SEASON, [first, replay])) == {"final": [("A", "B", 3, 1, "A")]}


def test_a_cancelled_match_is_not_in_it():
    """A match that is not played is not a tie."""
    assert bracket(SEASON, [scheduled("A", "B", round="Final", status=Status.CANCELLED)])["rounds"] == []


@unhurried
@given(seasons(), st.randoms())
def test_laws(matches: list[Match], chance: Any):
    """Neither order nor a goal in play changes it; a winner is one of the two and has not fewer goals."""
    found = bracket(SEASON, matches)
    shuffled = [with_goal(match) for match in matches]
    chance.shuffle(shuffled)
    assert bracket(SEASON, shuffled) == found
    for held in ties(found).values():
        for home, away, home_goals, away_goals, winner in held:
            assert winner in (None, home, away)
            assert winner is None or (home_goals >= away_goals if winner == home else away_goals >= home_goals)
