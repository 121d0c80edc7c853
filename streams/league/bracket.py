"""The knock-out rounds of a season, recognised by their names (`stages.py`).

Invariant: a tie is all matches of two teams in one stage, over one or more legs; it has a winner only when no leg is
open. Its goals are those after extra time, where there was one, and a shoot-out decides a tie with equal goals. Where
no result has a shoot-out, the team that plays in the next stage has won it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from highwater.streams.league.match_objects import by_kickoff, settled
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.stages import THIRD_PLACE, Stage, names_first_leg, stage_of
from highwater.streams.league.standings import result_of


def bracket(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document: stages from the first to the final, ties in order of their first kickoff."""
    stages: dict[Stage, list[Match]] = {}
    for match in by_kickoff(match for match in matches if match.is_final or match.status is not Status.CANCELLED):
        stage = stage_of(match.round)
        if stage is not None and stage.is_knock_out:
            stages.setdefault(stage, []).append(match)
    rounds = []
    for stage in sorted(stages, reverse=True):
        going_on = _teams(held for later, held in stages.items() if later < stage and later != THIRD_PLACE)
        rounds.append({"name": stage.name, "ties": [_tie(legs, going_on) for legs in _ties(stages[stage])]})
    return {"season": season, "rounds": rounds}


def _ties(matches: Iterable[Match]) -> list[list[Match]]:
    """Return the legs of each pair of teams."""
    found: dict[frozenset[str], list[Match]] = {}
    for match in matches:
        found.setdefault(frozenset((match.home, match.away)), []).append(match)
    return list(found.values())


def _teams(stages: Iterable[Sequence[Match]]) -> set[str]:
    return {team for held in stages for match in held for team in (match.home, match.away)}


def _tie(legs: Sequence[Match], going_on: set[str]) -> dict[str, Any]:
    """Return a tie as it is shown, from the side of the team that is at home first; goals are null before the first result."""
    home, away = legs[0].home, legs[0].away
    goals = {home: 0, away: 0}
    results = [(leg, result_of(leg)) for leg in legs]
    for leg, result in results:
        if result is not None:
            home_goals, away_goals = leg.extra_time or result
            goals[leg.home] += home_goals
            goals[leg.away] += away_goals
    is_open = any(result is None for _, result in results) or (len(legs) == 1 and names_first_leg(legs[0].round))
    has_begun = any(result is not None for _, result in results)
    return {
        "home": home,
        "away": away,
        "home_goals": goals[home] if has_begun else None,
        "away_goals": goals[away] if has_begun else None,
        "winner": None if is_open else _winner(legs, goals, going_on),
        "matches": [settled(leg) for leg in legs],
    }


def _winner(legs: Sequence[Match], goals: dict[str, int], going_on: set[str]) -> str | None:
    home, away = goals
    if goals[home] != goals[away]:
        return home if goals[home] > goals[away] else away
    for leg in legs:
        if leg.penalties is not None:
            return leg.home if leg.penalties[0] > leg.penalties[1] else leg.away
    played_on = [team for team in (home, away) if team in going_on]
    return played_on[0] if len(played_on) == 1 else None
