"""Aggregates of a season, and its matches in play.

Invariant: aggregates count exactly the matches with a result, in an order that depends only on the matches, so that a
goal in play changes only the document of matches in play.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from highwater.streams.league.match_objects import by_kickoff, moving, settled
from highwater.streams.league.matches import Match, State, Status
from highwater.streams.league.standings import Record, is_counted, result_of
from highwater.streams.league.windows import DURATIONS_MAX

# Enough for a page; the rest is in the results.
TOP_MATCHES = 5


def stats(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document. Shares are of the matches played, rounded to four digits; 0 before the first."""
    final = [match for match in by_kickoff(matches) if result_of(match) is not None]
    outcomes = Record()
    for match in final:
        outcomes.add(*_goals(match))
    played, goals = outcomes.played, outcomes.goals_for + outcomes.goals_against
    return {
        "season": season,
        "scheduled": sum(is_counted(match) for match in matches),
        "played": played,
        "goals": goals,
        "goals_per_match": _share(goals, played),
        "home_goals": outcomes.goals_for,
        "away_goals": outcomes.goals_against,
        "home_wins": outcomes.won,
        "draws": outcomes.drawn,
        "away_wins": outcomes.lost,
        "home_share": _share(outcomes.won, played),
        "draw_share": _share(outcomes.drawn, played),
        "away_share": _share(outcomes.lost, played),
        "clean_sheets": sum((home == 0) + (away == 0) for home, away in map(_goals, final)),
        "biggest_wins": _top(final, lambda home, away: (abs(home - away), home + away)),
        "most_goals": _top(final, lambda home, away: (home + away, abs(home - away))),
        **_runs(final),
        "teams": _teams(matches, final),
    }


def is_in_play(match: Match, now_ms: int, duration_ms: int) -> bool:
    """Return whether a match is reported live, or begun by the clock and not yet over by it; never one with a result or
    one that is not played.

    A live match without further events is dropped after the longest duration of its window.
    """
    if match.is_final or match.status is not Status.SCHEDULED:
        return False
    if match.state is State.LIVE:
        return now_ms < match.kickoff_ms + DURATIONS_MAX * duration_ms
    return match.kickoff_ms <= now_ms < match.kickoff_ms + duration_ms


def in_play(matches: Iterable[Match], now_ms: int, duration_ms: int) -> list[dict[str, Any]]:
    """Return the matches in play as they are shown, in order of kickoff."""
    playing = by_kickoff(match for match in matches if is_in_play(match, now_ms, duration_ms))
    return [{**moving(match), "minute": match.minute} for match in playing]


def stats_live(season: str, matches: Sequence[Match], now_ms: int, duration_ms: int) -> dict[str, Any]:
    """Return the document of a season's matches in play."""
    return {"season": season, "matches": in_play(matches, now_ms, duration_ms)}


def matches_live(matches: Sequence[Match], now_ms: int, duration_ms: int) -> dict[str, Any]:
    """Return the document of the matches in play of all seasons."""
    return {"matches": in_play(matches, now_ms, duration_ms)}


def _goals(match: Match) -> tuple[int, int]:
    result = result_of(match)
    assert result is not None
    return result


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _top(final: Sequence[Match], measure: Callable[[int, int], tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the matches with the greatest measure above 0; ties by kickoff (`final` is in that order)."""
    found = [match for match in final if measure(*_goals(match))[0] > 0]
    return [
        settled(match) for match in sorted(found, key=lambda match: measure(*_goals(match)), reverse=True)[:TOP_MATCHES]
    ]


def _outcomes(final: Sequence[Match]) -> dict[str, list[tuple[int, int]]]:
    """Return what each team scored and conceded, match by match in order of kickoff."""
    found: dict[str, list[tuple[int, int]]] = {}
    for match in final:
        home, away = _goals(match)
        found.setdefault(match.home, []).append((home, away))
        found.setdefault(match.away, []).append((away, home))
    return found


def _longest(played: Sequence[tuple[int, int]], is_part: Callable[[int, int], bool]) -> int:
    """Return the length of the longest run of matches with a property."""
    return max((len(list(run)) for good, run in groupby(played, key=lambda goals: is_part(*goals)) if good), default=0)


def _runs(final: Sequence[Match]) -> dict[str, Any]:
    """Return the longest runs of the season; ties by team name, null before there is one."""
    played = _outcomes(final)
    found: dict[str, Any] = {}
    for name, is_part in (
        ("longest_winning_run", lambda scored, conceded: scored > conceded),
        ("longest_unbeaten_run", lambda scored, conceded: scored >= conceded),
    ):
        runs = sorted((-_longest(goals, is_part), team) for team, goals in played.items())
        found[name] = {"team": runs[0][1], "matches": -runs[0][0]} if runs and runs[0][0] < 0 else None
    return found


def _teams(matches: Sequence[Match], final: Sequence[Match]) -> list[dict[str, Any]]:
    """Return each team at home and away, by name."""
    home: dict[str, Record] = {}
    away: dict[str, Record] = {}
    for match in filter(is_counted, matches):
        for team in (match.home, match.away):
            home.setdefault(team, Record())
            away.setdefault(team, Record())
    for match in final:
        goals = _goals(match)
        home[match.home].add(*goals)
        away[match.away].add(goals[1], goals[0])
    played = _outcomes(final)
    return [
        {
            "team": team,
            "home": home[team].as_json(),
            "away": away[team].as_json(),
            "clean_sheets": sum(conceded == 0 for _, conceded in played.get(team, ())),
        }
        for team in sorted(home)
    ]
