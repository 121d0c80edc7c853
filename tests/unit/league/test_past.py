"""A season as of an earlier change: later changes are left out, and with every change it equals the present season."""

from __future__ import annotations

from highwater.schemas.league import MatchChanged
from highwater.schemas.positions import Cause
from highwater.streams.league.bracket import bracket
from highwater.streams.league.matches import Match
from highwater.streams.league.past import Change, matches_after, names_rounds
from highwater.streams.league.standings import table
from tests.unit.league.facts import SEASON, final, live, scheduled


def change(offset: int, match: Match) -> Change:
    """The event that says how a match is stored."""
    told: MatchChanged = {
        "match_id": match.match_id,
        "season": match.season,
        "changed": ["result"],
        "kickoff": match.kickoff_ms,
        "status": match.status.value,
        "state": match.state.value,
        "home": match.home,
        "away": match.away,
        "former_teams": [],
        "home_goals": match.home_goals,
        "away_goals": match.away_goals,
        "finalized_at": match.finalized_ms,
        "revision": offset,
        "round": match.round,
        "home_goals_extra_time": None if match.extra_time is None else match.extra_time[0],
        "away_goals_extra_time": None if match.extra_time is None else match.extra_time[1],
        "home_penalties": None if match.penalties is None else match.penalties[0],
        "away_penalties": None if match.penalties is None else match.penalties[1],
    }
    return Change(told, Cause(offset, f"league.match-changed/0/{offset}"))


def test_the_last_change_of_a_match_counts_until_then() -> None:
    """A result that was corrected later has its original value; a score in play is not a result."""
    steps = [
        scheduled("A", "B"),
        live("A", "B", 1, 0),
        final("A", "B", 1, 0),
        scheduled("C", "D"),
        final("A", "B", 1, 2),
    ]
    changes = [change(offset, match) for offset, match in enumerate(steps)]
    points = [
        {row["team"]: row["points"] for row in table(SEASON, matches_after(changes[: step + 1]))["table"]}
        for step in range(len(changes))
    ]
    assert points == [
        {"A": 0, "B": 0},
        {"A": 0, "B": 0},
        {"A": 3, "B": 0},
        {"A": 3, "B": 0, "C": 0, "D": 0},
        {"A": 0, "B": 3, "C": 0, "D": 0},
    ]


def test_after_every_change_the_table_is_that_of_the_season() -> None:
    """This holds for any order of the matches in the log."""
    pairs = [(a, b) for a in "ABCDE" for b in "ABCDE" if a != b]
    matches = [final(a, b, number * 7 % 5, number * 3 % 4) for number, (a, b) in enumerate(pairs)]
    steps = [scheduled(a, b) for a, b in pairs] + sorted(matches, key=lambda match: match.match_id[::-1])
    changes = [change(offset, match) for offset, match in enumerate(steps)]
    assert table(SEASON, matches_after(changes)) == table(SEASON, matches)


def test_rounds_are_those_of_the_changes() -> None:
    """So the bracket of then is made as the one that is served; a change of a former version has no round, and that is known."""
    semi = final("A", "B", 1, 1, round="Semi-final", extra_time=(2, 2), penalties=(4, 5))
    last = scheduled("A", "C", round="Final")
    changes = [change(offset, match) for offset, match in enumerate([semi, last])]
    assert names_rounds(changes)
    assert bracket(SEASON, matches_after(changes)) == bracket(SEASON, [semi, last])
    assert [one["name"] for one in bracket(SEASON, matches_after(changes[:1]))["rounds"]] == ["semi-final"]
    former = Change({**changes[1].match, "round": None}, changes[1].by)
    assert not names_rounds([changes[0], former])
    assert names_rounds([changes[0], former, changes[1]])
