"""The points of a prediction, a user's rating and achievements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.causes import newest
from highwater.streams.league.matches import Match
from highwater.streams.league.ratings import (
    Judgement,
    Prediction,
    Rating,
    Stake,
    Vote,
    achievements,
    judge,
    outcome,
    rate,
    stake_causes,
    user_predictions,
)
from tests.unit.league.facts import DAY_MS, KICKOFF_MS, final, live, scheduled, unhurried

EARLY, LATE = KICKOFF_MS - 1, KICKOFF_MS
EXACT, RIGHT, WRONG = Judgement(3, True, True), Judgement(1, False, True), Judgement(0, False, False)


def vote(choice: str, said_ms: int = EARLY, offset: int = 1) -> Vote:
    """A vote."""
    return Vote(choice, said_ms, Cause(offset, f"league.vote-cast/0/{offset}"))


def predicts(home: int, away: int, said_ms: int = EARLY, offset: int = 1) -> Prediction:
    """A prediction."""
    return Prediction(home, away, said_ms, Cause(offset, f"league.prediction-made/0/{offset}"))


RESULT = final("A", "B", 2, 1)
CASES: dict[str, tuple[Stake, Judgement | None]] = {
    "exact": (Stake(RESULT, None, predicts(2, 1)), EXACT),
    "the right winner": (Stake(RESULT, None, predicts(1, 0)), RIGHT),
    "the wrong winner": (Stake(RESULT, None, predicts(1, 2)), WRONG),
    "a draw that was none": (Stake(RESULT, None, predicts(1, 1)), WRONG),
    "another draw": (Stake(final("A", "B", 0, 0), None, predicts(3, 3)), RIGHT),
    "a right vote": (Stake(RESULT, vote("home")), RIGHT),
    "a wrong vote": (Stake(RESULT, vote("draw")), WRONG),
    "a vote for the draw": (Stake(final("A", "B", 0, 0), vote("draw")), RIGHT),
    "a vote for the guests": (Stake(final("A", "B", 0, 1), vote("away")), RIGHT),
    "a prediction against its vote": (Stake(RESULT, vote("home"), predicts(0, 1)), WRONG),
    "a right prediction with a wrong vote": (Stake(RESULT, vote("away"), predicts(1, 0)), RIGHT),
    "a prediction at kickoff": (Stake(RESULT, None, predicts(2, 1, LATE)), None),
    "a vote at kickoff": (Stake(RESULT, vote("home", LATE)), None),
    "a late prediction beside a vote in time": (Stake(RESULT, vote("home"), predicts(2, 1, LATE)), RIGHT),
    "a late vote beside a prediction in time": (Stake(RESULT, vote("away", LATE), predicts(2, 1)), EXACT),
    "nothing said": (Stake(RESULT), None),
    "not played": (Stake(scheduled("A", "B"), vote("home"), predicts(2, 1)), None),
    "in play": (Stake(live("A", "B", 2, 1), vote("home"), predicts(2, 1)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_stake_is_worth(name: str):
    """Three points for the exact result, one for the outcome, otherwise none, and only for predictions before kickoff."""
    stake, expected = CASES[name]
    assert expected == judge(stake)


goals = st.integers(0, 4)
times = st.sampled_from([EARLY, LATE])
matches = st.one_of(
    st.builds(lambda home, away: final("A", "B", home, away), goals, goals),
    st.builds(lambda home, away: live("A", "B", home, away), goals, goals),
    st.just(scheduled("A", "B")),
)
stakes = st.builds(
    Stake,
    matches,
    st.none() | st.builds(vote, st.sampled_from(["home", "draw", "away"]), times),
    st.none() | st.builds(predicts, goals, goals, times),
)


@unhurried
@given(st.lists(stakes, max_size=12), st.randoms())
def test_a_rating_is_a_sum(held: list[Stake], chance: Any):
    """For any stakes in any order: exact ones are right ones are judged ones, and points follow from the counts."""
    found = rate(held)
    assert 0 <= found.exact <= found.correct <= found.judged <= len(held)
    assert found.points == found.correct + 2 * found.exact
    assert found.judged == sum(judge(stake) is not None for stake in held)
    shuffled = held.copy()
    chance.shuffle(shuffled)
    assert rate(shuffled) == found
    one_by_one = [rate([stake]) for stake in held]
    assert found == Rating(*(sum(getattr(r, n) for r in one_by_one) for n in ("points", "exact", "correct", "judged")))


@unhurried
@given(goals, goals)
def test_outcomes_mirror(home: int, away: int):
    """Seen from the other side a home win is an away win, and a draw a draw."""
    mirror = {"home": "away", "away": "home", "draw": "draw"}
    assert mirror[outcome(home, away)] == outcome(away, home)


def test_what_a_user_predicted():
    """The latest kickoff comes first; each has whether it counts, and its outcome once it is final; scores in play are absent."""
    held = [
        Stake(final("A", "B", 2, 1), vote("home"), predicts(2, 1)),
        Stake(live("C", "D", 1, 0, kickoff_ms=KICKOFF_MS + DAY_MS), vote("away")),
        Stake(final("E", "F", 0, 0, kickoff_ms=KICKOFF_MS - DAY_MS), None, predicts(0, 0, LATE)),
    ]
    found = user_predictions("u", held)
    assert found["user_id"] == "u"
    names = ("match_id", "vote", "prediction", "outcome", "points", "is_exact", "is_correct", "home_goals")
    assert [tuple(one[name] for name in names) for one in found["predictions"]] == [
        ("C-D", "away", None, None, None, None, None, None),
        ("A-B", "home", {"home_goals": 2, "away_goals": 1}, "home", 3, True, True, 2),
        ("E-F", None, {"home_goals": 0, "away_goals": 0}, "draw", None, None, None, 0),
    ]
    in_time = [(one["vote_in_time"], one["prediction_in_time"]) for one in found["predictions"]]
    assert in_time == [(True, None), (True, True), (None, False)]
    assert user_predictions("u", held[::-1]) == found
    assert user_predictions("v", []) == {"user_id": "v", "predictions": []}


def test_the_event_behind_what_a_user_predicted():
    """A vote, a prediction, a date or a result; never a score in play."""
    match: Match = live("A", "B", 1, 0, score_by=Cause(99, "score/0/1"))
    assert (
        newest(stake_causes([Stake(match, vote("home", offset=5), predicts(1, 0, offset=4))])) == "league.vote-cast/0/5"
    )
    assert newest(stake_causes([Stake(match, None, predicts(1, 0, offset=7))])) == "league.prediction-made/0/7"
    decided = final("A", "B", 1, 0, result_by=Cause(50, "result/0/1"))
    assert newest(stake_causes([Stake(decided, vote("home"))])) == "result/0/1"


def test_achievements():
    """They are counted from predictions and outcomes, and reached exactly at the needed number."""
    held = [Stake(final("A", "B", 1, 0, match_id=f"m{n}"), vote("home", LATE if n == 9 else EARLY)) for n in range(10)]
    held.append(Stake(final("C", "D", 2, 2), None, predicts(2, 2)))
    found = {
        one["name"]: (one["reached"], one["count"], one["needed"]) for one in achievements("u", held)["achievements"]
    }
    assert found == {
        "first vote": (True, 10, 1),
        "10 votes": (True, 10, 10),
        "100 votes": (False, 10, 100),
        "first prediction": (True, 1, 1),
        "10 predictions": (False, 1, 10),
        "first correct outcome": (True, 10, 1),
        "10 correct outcomes": (True, 10, 10),
        "100 correct outcomes": (False, 10, 100),
        "first exact result": (True, 1, 1),
        "10 exact results": (False, 1, 10),
    }
    assert {False} == {one["reached"] for one in achievements("nobody", [])["achievements"]}
