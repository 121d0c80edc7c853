"""A match as documents show it. Times are ISO 8601 in UTC; keys are in the order of the contract.

Invariant: settled facts (dates and results) are shown by `settled`, which a goal in play never changes; others by
`moving`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from highwater.schemas.envelope import iso_from_ms
from highwater.streams.league.matches import Match, State

MatchObject = dict[str, Any]


def moving(match: Match) -> MatchObject:
    """Return the match as it is now: with the last reported score, and the minute while it is in play."""
    shown = _about(match, match.state)
    shown["home_goals"], shown["away_goals"] = match.home_goals, match.away_goals
    if match.state is State.LIVE:
        shown["minute"] = match.minute
    return _with_end(match, shown)


def settled(match: Match) -> MatchObject:
    """Return the match without a score in play: it is scheduled until it has its result."""
    shown = _about(match, State.FINAL if match.is_final else State.SCHEDULED)
    shown["home_goals"] = match.home_goals if match.is_final else None
    shown["away_goals"] = match.away_goals if match.is_final else None
    return _with_end(match, shown)


def meta(match: Match) -> MatchObject:
    """Return the fixed part, and the result once there is one."""
    shown = _about(match, State.FINAL if match.is_final else State.SCHEDULED)
    if match.is_final:
        shown["result"] = {"home_goals": match.home_goals, "away_goals": match.away_goals}
    return _with_end(match, shown)


def by_kickoff(matches: Iterable[Match]) -> list[Match]:
    """Return matches in order of kickoff, then home team; the id makes the order unique."""
    return sorted(matches, key=lambda match: (match.kickoff_ms, match.home, match.match_id))


def newest_first(matches: Iterable[Match]) -> list[Match]:
    """Return matches with the latest kickoff first, ties as in `by_kickoff`."""
    return sorted(matches, key=lambda match: (-match.kickoff_ms, match.home, match.match_id))


def _about(match: Match, state: State) -> MatchObject:
    return {
        "match_id": match.match_id,
        "season": match.season,
        "round": match.round,
        "kickoff": iso_from_ms(match.kickoff_ms),
        "time_unknown": match.time_unknown,
        "status": match.status.value,
        "state": state.value,
        "home": match.home,
        "away": match.away,
    }


def _with_end(match: Match, shown: MatchObject) -> MatchObject:
    for name, goals in (("extra_time", match.extra_time), ("penalties", match.penalties)):
        if goals is not None:
            shown[name] = {"home_goals": goals[0], "away_goals": goals[1]}
    if match.finalized_ms is not None:
        shown["finalized_at"] = iso_from_ms(match.finalized_ms)
    return shown
