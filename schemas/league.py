"""Typed records of the league events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class AdChanged(TypedDict):
    """An advertisement was put or taken away (R4.24)."""

    ad_id: str
    deleted: bool
    payload: str
    ts: int


class CommentPosted(TypedDict):
    """A comment on a match (R4.18)."""

    match_id: str
    user_id: str
    text: str
    ts: int


class MatchChanged(TypedDict):
    """A match as stored, after something of it changed."""

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


class MatchFinalized(TypedDict):
    """The result of a match, or a correction of it (R4.30)."""

    match_id: str
    season: str
    home_goals: int
    away_goals: int
    finalized_at: int


class MatchScheduled(TypedDict):
    """A match has a date, or another one (R4.9)."""

    match_id: str
    season: str
    round: str
    kickoff: int
    home: str
    away: str
    time_unknown: bool
    status: str | None


class MatchUpdated(TypedDict):
    """The score of a match in play (R4.17)."""

    match_id: str
    season: str
    home_goals: int
    away_goals: int
    minute: int | None


class PredictionMade(TypedDict):
    """The result that a user predicts; the last one counts (R4.33)."""

    match_id: str
    user_id: str
    home_goals: int
    away_goals: int
    ts: int


class RefreshRequested(TypedDict):
    """Documents may have changed: make those anew that somebody has asked for before."""

    scope: str
    keys: list[str]
    dropped: list[str]
    reason: str
    planned_at: int


class VoteCast(TypedDict):
    """What a user thinks will come of a match; the last one counts (R4.33)."""

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
MATCH_CHANGED: Final = TopicName[MatchChanged]("league.match-changed")
REFRESH_REQUESTED: Final = TopicName[RefreshRequested]("league.refresh-requested")
