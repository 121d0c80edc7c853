"""The table of a season.

Invariant: it is a function of the season's matches alone, in any order: three points for a win, one each for a draw,
from matches with a result in the rounds that count (`stages.py`). Every goal is for one team and against another, so
goal differences sum to zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.streams.league.matches import Match, Status
from highwater.streams.league.stages import counted_rounds

WIN_POINTS, DRAW_POINTS = 3, 1


@dataclass(slots=True)
class Record:
    """The counted results of a team's matches."""

    won: int = 0
    drawn: int = 0
    lost: int = 0
    goals_for: int = 0
    goals_against: int = 0

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
        """Return the points: three per win, one per draw."""
        return WIN_POINTS * self.won + DRAW_POINTS * self.drawn

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


def in_counted_rounds(matches: Iterable[Match]) -> list[Match]:
    """Return the matches that will be or were played, of the rounds that count for the table."""
    played = [match for match in matches if is_counted(match)]
    counted = counted_rounds(match.round for match in played)
    return [match for match in played if match.round in counted]


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


def table(season: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return the document: teams by points, goal difference, goals for, then name; each has its own position."""
    ranked = sorted(
        records(in_counted_rounds(matches)).items(),
        key=lambda item: (-item[1].points, -item[1].goal_difference, -item[1].goals_for, item[0]),
    )
    rows = [
        {"position": position, "team": team, **record.as_json()}
        for position, (team, record) in enumerate(ranked, start=1)
    ]
    return {"season": season, "table": rows}
