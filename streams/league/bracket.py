"""The knock-out rounds of a season, recognised by their names.

Invariant: a tie is all matches of two teams in one stage, over one or more legs; it has a winner only when no leg is
open. A tie with equal goals was decided by something that the results do not contain (extra time, penalties): the team
that plays in the next stage has won it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from highwater.streams.league.match_objects import by_kickoff, settled
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.standings import result_of


class Stage(NamedTuple):
    """A stage of a knock-out competition; `teams` are those still in it, so the last stages have the fewest."""

    teams: int
    name: str


FINAL, THIRD_PLACE, SEMI_FINAL, QUARTER_FINAL = (
    Stage(2, "final"),
    Stage(3, "third place"),
    Stage(4, "semi-final"),
    Stage(8, "quarter-final"),
)
# More than any round of a draw has; a play-off comes before all of them.
TEAMS_MAX = 1024
PLAY_OFF = Stage(2 * TEAMS_MAX, "play-off")

_LEG = re.compile(r"\b(?:(1st|first|2nd|second|return) leg|leg ([12]))\b")
_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015_|,.:;()\[\]]+")
_BEFORE = r"(?:(?:knockout|knock out) (?:round|phase|stage) )?(?:play ?offs? )?(?:the )?"
_NAMED: tuple[tuple[re.Pattern[str], Stage], ...] = (
    (re.compile(rf"{_BEFORE}(?:grand )?(?:finals?|finale)"), FINAL),
    (re.compile(rf"{_BEFORE}(?:match for )?(?:the )?(?:3rd|third) place(?: match| play ?off| final)?"), THIRD_PLACE),
    (re.compile(rf"{_BEFORE}(?:semi ?finals?|halbfinale)"), SEMI_FINAL),
    (re.compile(rf"{_BEFORE}(?:quarter ?finals?|viertelfinale)"), QUARTER_FINAL),
    (re.compile(rf"{_BEFORE}(?:eighth ?finals?|achtelfinale)"), Stage(16, "round of 16")),
    (re.compile(r"(?:[\w ]+ )?play ?offs?(?: round| stage)?"), PLAY_OFF),
)
# `Round of 16`, `Last 32`, `Top 8`: the number of teams; `1/8`, `1/8 finals`, `16th finals`: the number of ties. A
# number alone after `Round` counts the rounds of a league.
_BY_TEAMS = re.compile(rf"{_BEFORE}(?:round of|last|top|best) (?:of )?(?:the )?(?:last )?(\d{{1,4}})")
_BY_TIES = re.compile(rf"{_BEFORE}(?:1/(\d{{1,3}})|(\d{{1,3}})th)(?: ?finals?| ?finale)?")
_BY_COUNT = {stage.teams: stage for stage in (FINAL, SEMI_FINAL, QUARTER_FINAL)}


def stage_of(name: str) -> Stage | None:
    """Return the stage that a round's name means, for any leg; None: it is not a knock-out round."""
    plain = _SEPARATORS.sub(" ", _LEG.sub(" ", _spaced(name))).strip()
    for pattern, stage in _NAMED:
        if pattern.fullmatch(plain):
            return stage
    by_teams, by_ties = _BY_TEAMS.fullmatch(plain), _BY_TIES.fullmatch(plain)
    if by_teams is not None:
        return _of_count(int(by_teams[1]))
    if by_ties is not None:
        return _of_count(2 * int(by_ties[1] or by_ties[2]))
    return None


def _spaced(name: str) -> str:
    return _SEPARATORS.sub(" ", name.casefold())


def _of_count(teams: int) -> Stage | None:
    if not 2 <= teams <= TEAMS_MAX or teams & (teams - 1):
        return None
    return _BY_COUNT.get(teams, Stage(teams, f"round of {teams}"))


def _names_first_leg(name: str) -> bool:
    found = _LEG.search(_spaced(name))
    return found is not None and (found[1] in ("1st", "first") or found[2] == "1")


def bracket(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document: stages from the first to the final, ties in order of their first kickoff."""
    stages: dict[Stage, list[Match]] = {}
    for match in by_kickoff(match for match in matches if match.is_final or match.status is not Status.CANCELLED):
        stage = stage_of(match.round)
        if stage is not None:
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
            goals[leg.home] += result[0]
            goals[leg.away] += result[1]
    is_open = any(result is None for _, result in results) or (len(legs) == 1 and _names_first_leg(legs[0].round))
    has_begun = any(result is not None for _, result in results)
    return {
        "home": home,
        "away": away,
        "home_goals": goals[home] if has_begun else None,
        "away_goals": goals[away] if has_begun else None,
        "winner": None if is_open else _winner(home, away, goals, going_on),
        "matches": [settled(leg) for leg in legs],
    }


def _winner(home: str, away: str, goals: dict[str, int], going_on: set[str]) -> str | None:
    if goals[home] != goals[away]:
        return home if goals[home] > goals[away] else away
    played_on = [team for team in (home, away) if team in going_on]
    return played_on[0] if len(played_on) == 1 else None
