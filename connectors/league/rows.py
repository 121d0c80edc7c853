"""Rows of matches, votes and predictions as values: the one place that knows how a match is stored.

Invariant: reading returns exactly what was folded from events, to the millisecond and to the event behind each part.
"""

from __future__ import annotations

from typing import cast

import orjson

from highwater.connectors.postgres.pool import Row
from highwater.schemas.league import RulesChanged
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_ms
from highwater.streams.league.documents import Votes
from highwater.streams.league.matches import Goals, Match, Status
from highwater.streams.league.ratings import Prediction, Stake, Vote
from highwater.streams.league.rules import Rules, rules_of

# Every column of `league_matches`, in the order of its migration.
MATCH_COLUMNS = (
    "match_id",
    "season",
    "round",
    "kickoff",
    "time_unknown",
    "status",
    "home",
    "away",
    "home_goals",
    "away_goals",
    "minute",
    "finalized_at",
    "schedule_ms",
    "schedule_position",
    "score_ms",
    "score_position",
    "result_ms",
    "result_position",
    "home_goals_extra_time",
    "away_goals_extra_time",
    "home_penalties",
    "away_penalties",
)


def match_of(row: Row) -> Match:
    """Return the match in a row that has at least `MATCH_COLUMNS`."""
    finalized_at = row["finalized_at"]
    return Match(
        match_id=row["match_id"],
        season=row["season"],
        round=row["round"],
        kickoff_ms=to_ms(row["kickoff"]),
        home=row["home"],
        away=row["away"],
        schedule_by=Cause(row["schedule_ms"], row["schedule_position"]),
        time_unknown=row["time_unknown"],
        status=Status(row["status"]),
        home_goals=row["home_goals"],
        away_goals=row["away_goals"],
        minute=row["minute"],
        finalized_ms=None if finalized_at is None else to_ms(finalized_at),
        score_by=_cause(row["score_ms"], row["score_position"]),
        result_by=_cause(row["result_ms"], row["result_position"]),
        extra_time=_goals(row["home_goals_extra_time"], row["away_goals_extra_time"]),
        penalties=_goals(row["home_penalties"], row["away_penalties"]),
    )


def _goals(home: int | None, away: int | None) -> Goals | None:
    return None if home is None or away is None else (home, away)


def rules_of_row(row: Row) -> Rules:
    """Return the rules beside a match: `rules`, `rules_ms`, `rules_position`, null before any."""
    if row["rules"] is None:
        return Rules()
    event = cast("RulesChanged", {"season": row["season"], **orjson.loads(row["rules"])})
    return rules_of(event, Cause(row["rules_ms"], row["rules_position"]))


def _cause(arrived_ms: int | None, position: str | None) -> Cause | None:
    return None if arrived_ms is None else Cause(arrived_ms, position or "")


def votes_of(row: Row) -> Votes:
    """Return the votes beside a match: `votes_home`, `votes_draw`, `votes_away`, `votes_ms`, `votes_position`, null
    before any.
    """
    if row["votes_ms"] is None:
        return Votes()
    return Votes(row["votes_home"], row["votes_draw"], row["votes_away"], Cause(row["votes_ms"], row["votes_position"]))


def stake_of(row: Row) -> Stake:
    """Return a user's vote and prediction of a match: its columns, those of `league_votes` and, with `predicted_`, of
    `league_predictions`.
    """
    vote = prediction = None
    if row["choice"] is not None:
        vote = Vote(row["choice"], to_ms(row["cast_at"]), Cause(row["cast_ms"], row["vote_position"]))
    if row["predicted_home_goals"] is not None:
        prediction = Prediction(
            row["predicted_home_goals"],
            row["predicted_away_goals"],
            to_ms(row["made_at"]),
            Cause(row["made_ms"], row["prediction_position"]),
        )
    return Stake(match_of(row), vote, prediction)
