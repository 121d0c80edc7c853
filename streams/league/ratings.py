"""The rating of predictions (R4.22) and users' achievements (R4.23).

Invariant: only votes and predictions before kickoff count. Three points for the exact result, else one for the right
outcome; if both a vote and a prediction count, the prediction is judged. Points are a function of predictions and
results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from highwater.schemas.positions import Cause
from highwater.streams.league.match_objects import settled
from highwater.streams.league.matches import Match
from highwater.streams.league.standings import result_of

EXACT_POINTS, OUTCOME_POINTS = 3, 1


class Vote(NamedTuple):
    """The outcome a user votes for: home, draw or away."""

    choice: str
    said_ms: int
    caused_by: Cause


class Prediction(NamedTuple):
    """The result a user predicts."""

    home_goals: int
    away_goals: int
    said_ms: int
    caused_by: Cause


class Judgement(NamedTuple):
    """The points of a user for a match; an exact result is also a right outcome."""

    points: int
    is_exact: bool
    is_correct: bool


@dataclass(frozen=True, slots=True)
class Stake:
    """The vote and prediction of one user for one match."""

    match: Match
    vote: Vote | None = None
    prediction: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Rating:
    """A user's score over all votes and predictions. `correct` counts correct outcomes, including the `exact` results."""

    points: int = 0
    exact: int = 0
    correct: int = 0
    judged: int = 0


def outcome(home_goals: int, away_goals: int) -> str:
    """Return who won: home, draw or away."""
    if home_goals == away_goals:
        return "draw"
    return "home" if home_goals > away_goals else "away"


def judge(stake: Stake) -> Judgement | None:
    """Judge a vote and prediction; None while the match has no result, or without one in time."""
    result = result_of(stake.match)
    vote, prediction = _in_time(stake)
    if result is None or (vote is None and prediction is None):
        return None
    if prediction is not None and (prediction.home_goals, prediction.away_goals) == result:
        return Judgement(EXACT_POINTS, is_exact=True, is_correct=True)
    said = outcome(prediction.home_goals, prediction.away_goals) if prediction is not None else vote and vote.choice
    is_correct = said == outcome(*result)
    return Judgement(OUTCOME_POINTS if is_correct else 0, is_exact=False, is_correct=is_correct)


def _in_time(stake: Stake) -> tuple[Vote | None, Prediction | None]:
    kickoff_ms = stake.match.kickoff_ms
    vote = stake.vote if stake.vote is not None and stake.vote.said_ms < kickoff_ms else None
    prediction = stake.prediction if stake.prediction is not None and stake.prediction.said_ms < kickoff_ms else None
    return vote, prediction


def rate(stakes: Iterable[Stake]) -> Rating:
    """Return a user's rating from all votes and predictions."""
    judged = [found for found in map(judge, stakes) if found is not None]
    return Rating(
        points=sum(found.points for found in judged),
        exact=sum(found.is_exact for found in judged),
        correct=sum(found.is_correct for found in judged),
        judged=len(judged),
    )


def user_predictions(user_id: str, stakes: Sequence[Stake]) -> dict[str, Any]:
    """Return the document: a user's predictions, latest kickoff first, whether they were in time, and their outcomes."""
    ordered = sorted(stakes, key=lambda stake: (-stake.match.kickoff_ms, stake.match.home, stake.match.match_id))
    return {"user_id": user_id, "predictions": [_shown(stake) for stake in ordered]}


def _shown(stake: Stake) -> dict[str, Any]:
    judgement, prediction = judge(stake), stake.prediction
    result = result_of(stake.match)
    vote_in_time, prediction_in_time = _in_time(stake)
    return {
        **settled(stake.match),
        "vote": stake.vote.choice if stake.vote is not None else None,
        "vote_in_time": vote_in_time is not None if stake.vote is not None else None,
        "prediction": {"home_goals": prediction.home_goals, "away_goals": prediction.away_goals}
        if prediction
        else None,
        "prediction_in_time": prediction_in_time is not None if prediction is not None else None,
        "outcome": outcome(*result) if result is not None else None,
        "points": judgement.points if judgement is not None else None,
        "is_exact": judgement.is_exact if judgement is not None else None,
        "is_correct": judgement.is_correct if judgement is not None else None,
    }


def stake_causes(stakes: Iterable[Stake]) -> Iterable[Cause | None]:
    """Yield the events behind a user's predictions and their outcomes; never a score in play."""
    for stake in stakes:
        yield stake.match.schedule_by
        yield stake.match.result_by
        yield stake.vote.caused_by if stake.vote is not None else None
        yield stake.prediction.caused_by if stake.prediction is not None else None


def achievements(user_id: str, stakes: Sequence[Stake]) -> dict[str, Any]:
    """Return the document: a user's achievements, and the progress to the others. Votes and predictions count at any time."""
    rating = rate(stakes)
    votes = sum(stake.vote is not None for stake in stakes)
    predictions = sum(stake.prediction is not None for stake in stakes)
    counted = (
        ("first vote", votes, 1),
        ("10 votes", votes, 10),
        ("100 votes", votes, 100),
        ("first prediction", predictions, 1),
        ("10 predictions", predictions, 10),
        ("first correct outcome", rating.correct, 1),
        ("10 correct outcomes", rating.correct, 10),
        ("100 correct outcomes", rating.correct, 100),
        ("first exact result", rating.exact, 1),
        ("10 exact results", rating.exact, 10),
    )
    return {
        "user_id": user_id,
        "achievements": [
            {"name": name, "reached": count >= needed, "count": count, "needed": needed}
            for name, count, needed in counted
        ],
    }
