"""A match, and how events merge into it.

Invariant: a later event in the log wins, and a repeat changes nothing. A fold returns the identical match if an event
changes nothing. A result is never undone by a score, only corrected by another result (R4.30).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from highwater.schemas.league import MatchChanged, MatchFinalized, MatchScheduled, MatchUpdated
from highwater.schemas.positions import Cause

# Goals of the home and the away team.
Goals: TypeAlias = tuple[int, int]


class Status(StrEnum):
    """The status of a match in the schedule."""

    SCHEDULED = "scheduled"
    POSTPONED = "postponed"
    CANCELLED = "cancelled"


class State(StrEnum):
    """The progress of a match, by its events; never by the clock."""

    SCHEDULED = "scheduled"
    LIVE = "live"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Match:
    """A match as the log describes it; times are milliseconds since 1970 UTC.

    `home_goals` and `away_goals` are the result after regular time once `result_by` is set, before that the last
    reported score, None before any. `extra_time` contains the goals before it, `penalties` only those of the shoot-out.
    """

    match_id: str
    season: str
    round: str
    kickoff_ms: int
    home: str
    away: str
    schedule_by: Cause
    time_unknown: bool = False
    status: Status = Status.SCHEDULED
    home_goals: int | None = None
    away_goals: int | None = None
    minute: int | None = None
    finalized_ms: int | None = None
    score_by: Cause | None = None
    result_by: Cause | None = None
    extra_time: Goals | None = None
    penalties: Goals | None = None

    @property
    def state(self) -> State:
        """Return its progress."""
        if self.result_by is not None:
            return State.FINAL
        return State.LIVE if self.score_by is not None else State.SCHEDULED

    @property
    def is_final(self) -> bool:
        """Return whether it has a result."""
        return self.result_by is not None

    @property
    def changed_by(self) -> Cause:
        """Return the newest event that changed it."""
        causes = (self.schedule_by, self.score_by, self.result_by)
        return max((cause for cause in causes if cause is not None), key=lambda cause: cause.order)


def fold_scheduled(match: Match | None, event: MatchScheduled, cause: Cause) -> Match:
    """Return the match after a `league.match-scheduled`; a match keeps its season and its score at any new date."""
    if match is not None and cause.order < match.schedule_by.order:
        return match
    told: dict[str, Any] = {
        "round": event["round"],
        "kickoff_ms": event["kickoff"],
        "home": event["home"],
        "away": event["away"],
        "time_unknown": bool(event["time_unknown"]),
        "status": Status(event["status"] or Status.SCHEDULED),
    }
    if match is None:
        return Match(match_id=event["match_id"], season=event["season"], schedule_by=cause, **told)
    if all(getattr(match, name) == value for name, value in told.items()):
        return match
    return replace(match, schedule_by=cause, **told)


def fold_updated(match: Match, event: MatchUpdated, cause: Cause) -> Match:
    """Return the match after a `league.match-updated`; one with a result is no longer in play."""
    if match.is_final or (match.score_by is not None and cause.order < match.score_by.order):
        return match
    told: dict[str, Any] = {
        "home_goals": event["home_goals"],
        "away_goals": event["away_goals"],
        "minute": event["minute"],
    }
    if match.score_by is not None and all(getattr(match, name) == value for name, value in told.items()):
        return match
    return replace(match, score_by=cause, **told)


def extra_time_of(event: MatchFinalized | MatchChanged) -> Goals | None:
    """Return the goals after extra time; None if there was none."""
    return _pair(event.get("home_goals_extra_time"), event.get("away_goals_extra_time"))


def penalties_of(event: MatchFinalized | MatchChanged) -> Goals | None:
    """Return the goals of the shoot-out; None if there was none."""
    return _pair(event.get("home_penalties"), event.get("away_penalties"))


def _pair(home: int | None, away: int | None) -> Goals | None:
    return None if home is None or away is None else (home, away)


def fold_finalized(match: Match, event: MatchFinalized, cause: Cause) -> Match:
    """Return the match after a `league.match-finalized`; the same result again is not a change, at any time."""
    if match.result_by is not None and cause.order < match.result_by.order:
        return match
    told: dict[str, Any] = {
        "home_goals": event["home_goals"],
        "away_goals": event["away_goals"],
        "extra_time": extra_time_of(event),
        "penalties": penalties_of(event),
    }
    if match.is_final and all(getattr(match, name) == value for name, value in told.items()):
        return match
    return replace(
        match,
        **told,
        minute=None,
        finalized_ms=event["finalized_at"],
        result_by=cause,
    )
