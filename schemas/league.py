"""Typed records of the league events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class AdChanged(TypedDict):
    """An advertisement was added, changed or removed."""

    ad_id: str
    deleted: bool
    payload: str
    ts: int


class CommentPosted(TypedDict):
    """A user commented on a match."""

    match_id: str
    user_id: str
    text: str
    ts: int


class MatchChanged(TypedDict):
    """A stored match changed; the event has its new state."""

    match_id: str
    season: str
    changed: list[str]
    kickoff: int
    status: str
    state: str
    home: str
    away: str
    former_teams: list[str]
    home_goals: int | None
    away_goals: int | None
    finalized_at: int | None
    revision: int
    round: str | None
    home_goals_extra_time: int | None
    away_goals_extra_time: int | None
    home_penalties: int | None
    away_penalties: int | None


class MatchFinalized(TypedDict):
    """The final result of a match, or a correction of it."""

    match_id: str
    season: str
    home_goals: int
    away_goals: int
    finalized_at: int
    home_goals_extra_time: int | None
    away_goals_extra_time: int | None
    home_penalties: int | None
    away_penalties: int | None


class MatchScheduled(TypedDict):
    """A match was scheduled or rescheduled."""

    match_id: str
    season: str
    round: str
    kickoff: int
    home: str
    away: str
    time_unknown: bool
    status: str | None


class MatchUpdated(TypedDict):
    """The score of a match in play."""

    match_id: str
    season: str
    home_goals: int
    away_goals: int
    minute: int | None


class PredictionMade(TypedDict):
    """A user predicted the result of a match; the last prediction counts."""

    match_id: str
    user_id: str
    home_goals: int
    away_goals: int
    ts: int


class RefreshRequested(TypedDict):
    """A change may have made documents outdated; those that were requested before are to be rebuilt."""

    scope: str
    keys: list[str]
    dropped: list[str]
    reason: str
    planned_at: int


class Deduction(TypedDict):
    """Part of a record."""

    team: str
    points: int
    reason: str


class Withdrawal(TypedDict):
    """Part of a record."""

    team: str
    reason: str


class RulesChanged(TypedDict):
    """The rules of a season were declared; they replace the former ones."""

    season: str
    deductions: list[Deduction]
    tie_breaks: list[str]
    withdrawn: list[Withdrawal]
    rounds_counted: list[str]
    rounds_not_counted: list[str]


class VoteCast(TypedDict):
    """A user voted on the outcome of a match; the last vote counts."""

    match_id: str
    user_id: str
    choice: str
    ts: int


MATCH_SCHEDULED: Final = TopicName[MatchScheduled]("league.match-scheduled")
MATCH_UPDATED: Final = TopicName[MatchUpdated]("league.match-updated")
MATCH_FINALIZED: Final = TopicName[MatchFinalized]("league.match-finalized")
VOTE_CAST: Final = TopicName[VoteCast]("league.vote-cast")
PREDICTION_MADE: Final = TopicName[PredictionMade]("league.prediction-made")
COMMENT_POSTED: Final = TopicName[CommentPosted]("league.comment-posted")
AD_CHANGED: Final = TopicName[AdChanged]("league.ad-changed")
RULES_CHANGED: Final = TopicName[RulesChanged]("league.rules-changed")
MATCH_CHANGED: Final = TopicName[MatchChanged]("league.match-changed")
REFRESH_REQUESTED: Final = TopicName[RefreshRequested]("league.refresh-requested")
