"""What the name of a round means: a round of the league, a knock-out stage, or a stage before or after the league.

Invariant: a stage is recognised by the name alone. A name that means no stage is a round of the league, so an unknown
name counts for the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple


class Stage(NamedTuple):
    """A stage of a competition; `teams` are those still in it, so the last stages have the fewest.

    A stage that is not `is_knock_out` has no ties: it is played by groups, or has several rounds under one name.
    """

    teams: int
    name: str
    is_knock_out: bool = True


FINAL, THIRD_PLACE, SEMI_FINAL, QUARTER_FINAL = (
    Stage(2, "final"),
    Stage(3, "third place"),
    Stage(4, "semi-final"),
    Stage(8, "quarter-final"),
)
# More than any round of a draw has; a play-off comes before all of them.
TEAMS_MAX = 1024
PLAY_OFF = Stage(2 * TEAMS_MAX, "play-off")
# The second part of a divided season, in groups; its matches are played by the rules of a league.
SECOND_PHASE = Stage(4 * TEAMS_MAX, "second phase", is_knock_out=False)
QUALIFYING = Stage(8 * TEAMS_MAX, "qualifying", is_knock_out=False)

_LEG = re.compile(r"\b(?:(1st|first|2nd|second|return) leg|leg ([12])|replays?)\b")
_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015_|,.:;()\[\]]+")
# What may stand before the name of a stage: `Knockout phase`, `Finals`, `Apertura Playoffs`.
_BEFORE = r"(?:(?:knockout|knock out) (?:(?:round|phase|stage) )?|finals? |championship )?(?:(?:[\w ]+ )?play ?offs? )?(?:the )?"
# What may stand after it: `Matchday 2`, `Round 1`, `3`, `II`.
_NUMBER = r"(?: (?:matchday |match |round |day |game |group )?(?:\d{1,2}|[ivx]{1,4}))?"
# Competitions beside the championship, whose finals are not those of the season.
_BESIDE = (
    r"(?:relegation|abstieg|promotion|aufstieg|survival|europe|ecl|uecl|uel|europa league|(?:europa )?conference league|"
    r"play ?outs?)"
)
_GROUPED = r"(?:round|group|pool|phase|stage|matchday)"
_NAMED: tuple[tuple[re.Pattern[str], Stage], ...] = (
    (re.compile(rf"(?:{_BESIDE}|championship|title) (?:[\w ]+ )?{_GROUPED}{_NUMBER}"), SECOND_PHASE),
    (re.compile(rf"(?:meister|abstiegs|qualifikations)(?:runde|gruppe){_NUMBER}"), SECOND_PHASE),
    (re.compile(r"play ?offs? (?:\d|[ivx]{1,4}) matchday \d{1,2}"), SECOND_PHASE),
    (re.compile(rf"{_BESIDE} .*"), PLAY_OFF),
    (re.compile(rf"{_BEFORE}(?:grand )?(?:finals?|finale)"), FINAL),
    (re.compile(rf"{_BEFORE}(?:match for )?(?:the )?(?:3rd|third|3) (?:place|platz)(?: match| play ?off| final)?"), THIRD_PLACE),
    (re.compile(rf"{_BEFORE}(?:semi ?finals?|halbfinale)"), SEMI_FINAL),
    (re.compile(rf"{_BEFORE}(?:quarter ?finals?|viertelfinale)"), QUARTER_FINAL),
    (re.compile(rf"{_BEFORE}(?:eighth ?finals?|achtelfinale)"), Stage(16, "round of 16")),
    (re.compile(rf"{_BEFORE}(?:elimination|preliminary|qualifying) finals?"), PLAY_OFF),
    (re.compile(r"(?:.* )?play ?(?:offs?|ins?|outs?)(?: .*)?"), PLAY_OFF),
    (re.compile(r"(?:.* )?(?:qualifying|preliminary)(?: .*)?"), QUALIFYING),
)  # fmt: skip
# `Round of 16`, `Last 32`, `Top 8`: the number of teams; `1/8`, `1/8 finals`, `16th finals`: the number of ties. A
# number alone after `Round` counts the rounds of a league.
_BY_TEAMS = re.compile(rf"{_BEFORE}(?:round of|last|top|best) (?:of )?(?:the )?(?:last )?(\d{{1,4}})")
_BY_TIES = re.compile(rf"{_BEFORE}(?:1/(\d{{1,3}})|(\d{{1,3}})th)(?: ?finals?| ?finale)?")
_BY_COUNT = {stage.teams: stage for stage in (FINAL, SEMI_FINAL, QUARTER_FINAL)}


# A season names a few dozen rounds, each in many matches.
@functools.lru_cache(maxsize=1_024)
def stage_of(name: str) -> Stage | None:
    """Return the stage that a round's name means, for any leg or replay; None: it is a round of the league."""
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


def names_first_leg(name: str) -> bool:
    """Return whether a round's name is that of a first leg."""
    found = _LEG.search(_spaced(name))
    return found is not None and (found[1] in ("1st", "first") or found[2] == "1")


def counted_rounds(names: Iterable[str]) -> set[str]:
    """Return the rounds that count for the table: those of the league; all, if none of them is a round of the league."""
    found = set(names)
    return {name for name in found if stage_of(name) is None} or found


def _spaced(name: str) -> str:
    return _SEPARATORS.sub(" ", name.casefold())


def _of_count(teams: int) -> Stage | None:
    if not 2 <= teams <= TEAMS_MAX or teams & (teams - 1):
        return None
    return _BY_COUNT.get(teams, Stage(teams, f"round of {teams}"))
