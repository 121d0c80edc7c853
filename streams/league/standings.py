"""The table of a season.

Invariant: it is a function of the season's matches, in any order, and its rules: three points for a win, one each for a
draw, from matches with a result in the rounds that count (`rules.py`). Every goal is for one team and against another,
so goal differences sum to zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.schemas.positions import Cause
from highwater.streams.league.causes import settled
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.rules import HEAD_TO_HEAD, Rules

WIN_POINTS, DRAW_POINTS = 3, 1
NO_RULES = Rules()


@dataclass(slots=True)
class Record:
    """The counted results of a team's matches."""

    won: int = 0
    drawn: int = 0
    lost: int = 0
    goals_for: int = 0
    goals_against: int = 0
    deducted: int = 0

    @property
    def played(self) -> int:
        """Return the number of matches with a result."""
        return self.won + self.drawn + self.lost

    @property
    def goal_difference(self) -> int:
        """Return goals for minus goals against."""
        return self.goals_for - self.goals_against

    @property
    def points(self) -> int:
        """Return the points: three per win, one per draw, less those deducted."""
        return WIN_POINTS * self.won + DRAW_POINTS * self.drawn - self.deducted

    def add(self, goals_for: int, goals_against: int) -> None:
        """Count one more match."""
        self.goals_for += goals_for
        self.goals_against += goals_against
        if goals_for > goals_against:
            self.won += 1
        elif goals_for == goals_against:
            self.drawn += 1
        else:
            self.lost += 1

    def as_json(self) -> dict[str, int]:
        """Return the counts, in the order of the contract."""
        return {
            "played": self.played,
            "won": self.won,
            "drawn": self.drawn,
            "lost": self.lost,
            "goals_for": self.goals_for,
            "goals_against": self.goals_against,
            "goal_difference": self.goal_difference,
            "points": self.points,
        }


def result_of(match: Match) -> tuple[int, int] | None:
    """Return home and away goals of a match with a result, also if the schedule cancels it later."""
    if not match.is_final or match.home_goals is None or match.away_goals is None:
        return None
    return match.home_goals, match.away_goals


def is_counted(match: Match) -> bool:
    """Return whether a match is part of its season's table: it will be played, or was."""
    return match.is_final or match.status is not Status.CANCELLED


def counted_matches(matches: Iterable[Match], rules: Rules) -> list[Match]:
    """Return the matches that will be or were played and count for the table by the rules of the season."""
    played = [match for match in matches if is_counted(match)]
    rounds, withdrawn = rules.rounds(match.round for match in played), rules.withdrawn_teams
    return [match for match in played if match.round in rounds and withdrawn.isdisjoint((match.home, match.away))]


def records(matches: Iterable[Match]) -> dict[str, Record]:
    """Return the record of every team of the matches, also of one that has not played yet."""
    found: dict[str, Record] = {}
    for match in matches:
        home, away = found.setdefault(match.home, Record()), found.setdefault(match.away, Record())
        result = result_of(match)
        if result is not None:
            home.add(*result)
            away.add(result[1], result[0])
    return found


def table(season: str, matches: Sequence[Match], rules: Rules = NO_RULES) -> dict[str, Any]:
    """Return the document: teams by points, then by the tie-breaks of the rules, then name; each has its own position."""
    counted = counted_matches(matches, rules)
    rows = [
        {"position": position, "team": team, **record.as_json(), **_deductions(rules, team)}
        for position, (team, record) in enumerate(_ranked(counted, rules), start=1)
    ]
    shown: dict[str, Any] = {"season": season, "table": rows}
    return shown if rules.caused_by is None else shown | {"rules": rules.as_json()}


def table_causes(matches: Sequence[Match], rules: Rules = NO_RULES) -> Iterator[Cause | None]:
    """Yield the events behind it: dates, results, and the rules of the season."""
    yield rules.caused_by
    yield from settled(matches)


def _deductions(rules: Rules, team: str) -> dict[str, Any]:
    found = [{"points": one["points"], "reason": one["reason"]} for one in rules.deducted(team)]
    return {"deductions": found} if found else {}


def _ranked(counted: Sequence[Match], rules: Rules) -> list[tuple[str, Record]]:
    """Order teams: each block of the rules ranks those that the blocks before leave level.

    Of teams that a head-to-head leaves level, the matches among them are compared again, as long as they get fewer.
    """
    found = records(counted)
    for team, record in found.items():
        record.deducted = sum(one["points"] for one in rules.deducted(team))
    ranked: list[str] = []
    waiting = [(sorted(found), rules.blocks)]
    while waiting:
        teams, blocks = waiting.pop()
        if len(teams) < 2 or not blocks:
            ranked += teams
            continue
        level: dict[tuple[int, ...], list[str]] = {}
        for team, merit in _merits(teams, blocks[0], found, counted).items():
            level.setdefault(merit, []).append(team)
        is_repeated = len(level) > 1 and blocks[0][0].startswith(HEAD_TO_HEAD)
        waiting += [(level[merit], blocks if is_repeated else blocks[1:]) for merit in sorted(level)]
    return [(team, found[team]) for team in ranked]


def _merits(
    teams: Sequence[str], block: Sequence[str], found: Mapping[str, Record], counted: Iterable[Match]
) -> dict[str, tuple[int, ...]]:
    """Return the figures of each team that a block compares, more is better."""
    if block[0].startswith(HEAD_TO_HEAD):
        among = set(teams)
        direct = records(match for match in counted if among.issuperset((match.home, match.away)))
        found = {team: direct.get(team, Record()) for team in teams}
    figures = [name.removeprefix(HEAD_TO_HEAD) for name in block]
    return {team: tuple(getattr(found[team], figure) for figure in figures) for team in teams}
