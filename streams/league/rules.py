"""The declared rules of a season: which rounds count, points deducted, the order of level teams, withdrawn teams.

Invariant: rules are a value of their last event alone; without one, they are those of `Rules()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from highwater.schemas.league import Deduction, RulesChanged, Withdrawal
from highwater.schemas.positions import Cause
from highwater.streams.league.stages import counted_rounds

HEAD_TO_HEAD = "head_to_head_"
# What decides between teams with equal points; the rest of each name is a figure of `standings.Record`. Those of a
# head-to-head are of the matches of these teams alone.
TIE_BREAKS = (
    *("goal_difference", "goals_for", "won"),
    *(f"{HEAD_TO_HEAD}{figure}" for figure in ("points", "goal_difference", "goals_for")),
)
TIE_BREAKS_DEFAULT = ("goal_difference", "goals_for")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a season; `caused_by` is their event, None without one."""

    deductions: Sequence[Deduction] = ()
    tie_breaks: Sequence[str] = TIE_BREAKS_DEFAULT
    withdrawn: Sequence[Withdrawal] = ()
    rounds_counted: frozenset[str] = field(default_factory=frozenset)
    rounds_not_counted: frozenset[str] = field(default_factory=frozenset)
    caused_by: Cause | None = None

    @property
    def withdrawn_teams(self) -> frozenset[str]:
        """Return the teams whose matches do not count."""
        return frozenset(withdrawal["team"] for withdrawal in self.withdrawn)

    @property
    def blocks(self) -> list[tuple[str, ...]]:
        """Return what ranks teams, the most important first; tie-breaks of a head-to-head that follow each other are one."""
        runs = groupby(self.tie_breaks, key=lambda name: name.startswith(HEAD_TO_HEAD))
        parts = [
            part for is_direct, names in runs for part in ([tuple(names)] if is_direct else [(name,) for name in names])
        ]
        return [("points",), *parts]

    def rounds(self, names: Iterable[str]) -> set[str]:
        """Return the rounds of a season that count for its table."""
        found = set(names)
        return (counted_rounds(found) | (found & self.rounds_counted)) - self.rounds_not_counted

    def deducted(self, team: str) -> list[Deduction]:
        """Return the deductions of a team."""
        return [deduction for deduction in self.deductions if deduction["team"] == team]

    def as_json(self) -> dict[str, Any]:
        """Return the rules as a page shows them."""
        return {
            "deductions": list(self.deductions),
            "tie_breaks": list(self.tie_breaks),
            "withdrawn": list(self.withdrawn),
            "rounds_counted": sorted(self.rounds_counted),
            "rounds_not_counted": sorted(self.rounds_not_counted),
        }


def rules_of(event: RulesChanged, cause: Cause) -> Rules:
    """Return the rules that an event declares."""
    return Rules(
        tuple(event["deductions"]),
        tuple(event["tie_breaks"]) or TIE_BREAKS_DEFAULT,
        tuple(event["withdrawn"]),
        frozenset(event["rounds_counted"]),
        frozenset(event["rounds_not_counted"]),
        cause,
    )
