"""A match after its events: the last event counts, a repeat is ignored, and only a result replaces a result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.league import MATCH_FINALIZED, MATCH_SCHEDULED, MATCH_UPDATED
from highwater.schemas.positions import Cause
from highwater.streams.league.folding import PARTS, Folded, Step, fold_match, former_teams
from highwater.streams.league.matches import Match, State, Status
from highwater.streams.league.votes import Settled, Word, settle_words

SEASON = "2018-19_en.1"


def cause(arrived_ms: int, offset: int | None = None) -> Cause:
    """An event at a time; events of one time differ by their offset."""
    return Cause(arrived_ms, f"t/0/{arrived_ms if offset is None else offset}")


def scheduled(at: int, offset: int | None = None, **changes: Any) -> Step:
    """A match has a date."""
    value = {
        "match_id": "m", "season": SEASON, "round": "Matchday 1", "kickoff": 1_000, "home": "A", "away": "B",
        "time_unknown": False, "status": None,
    }  # fmt: skip
    return Step(MATCH_SCHEDULED, {**value, **changes}, cause(at, offset))


def updated(at: int, home: int, away: int, minute: int | None = None, season: str = SEASON) -> Step:
    """A score in play."""
    value = {"match_id": "m", "season": season, "home_goals": home, "away_goals": away, "minute": minute}
    return Step(MATCH_UPDATED, value, cause(at))


def finalized(at: int, home: int, away: int, season: str = SEASON, **more: int) -> Step:
    """A result."""
    value = {"match_id": "m", "season": season, "home_goals": home, "away_goals": away, "finalized_at": at, **more}
    return Step(MATCH_FINALIZED, value, cause(at))


def known(*steps: Step) -> Match:
    """The match after a first schedule and some events."""
    match = fold_match(None, [scheduled(0), *steps]).match
    assert match is not None
    return match


def score(match: Match | None) -> tuple[int | None, int | None, State]:
    """The shown score."""
    assert match is not None
    return match.home_goals, match.away_goals, match.state


def test_a_match_goes_from_its_schedule_to_its_result():
    """Scheduled without a score, live with one, final with its result; each part remembers its own event."""
    assert score(known()) == (None, None, State.SCHEDULED)
    live = known(updated(5, 1, 0, 30))
    assert (score(live), live.minute) == ((1, 0, State.LIVE), 30)
    final = known(updated(5, 1, 0, 30), finalized(9, 2, 1))
    assert (score(final), final.minute, final.finalized_ms) == ((2, 1, State.FINAL), None, 9)
    assert (final.schedule_by, final.score_by, final.result_by) == (cause(0), cause(5), cause(9))
    assert final.changed_by == cause(9)


def test_extra_time_and_penalties_are_parts_of_the_result():
    """A result that differs in them alone is another one; the goals after regular time stay."""
    more = {"home_goals_extra_time": 3, "away_goals_extra_time": 3, "home_penalties": 4, "away_penalties": 2}
    match = known(finalized(9, 2, 2), finalized(10, 2, 2, **more))
    assert score(match) == (2, 2, State.FINAL)
    assert (match.extra_time, match.penalties, match.result_by) == ((3, 3), (4, 2), cause(10))
    assert fold_match(match, [finalized(11, 2, 2, **more)]).match is match
    assert known(finalized(9, 2, 2, **more), finalized(10, 2, 2)).penalties is None


def test_parts_are_told_in_one_order_with_the_last_event():
    """All events of a batch are one change: what changed in a fixed order, and the last event that changed anything."""
    folded = fold_match(None, [finalized(9, 2, 1), updated(5, 1, 0), scheduled(1), updated(12, 9, 9)])
    assert (folded.changed, folded.cause) == (("schedule", "score", "result"), cause(9))


def test_the_later_of_two_events_of_one_time_counts():
    """Events sent together have one broker's time; offset 10 is later than 9, in a batch and over batches."""
    nine, ten = scheduled(5, 9, kickoff=9), scheduled(5, 10, kickoff=10)
    at_once = fold_match(known(), [ten, nine]).match
    assert at_once is not None
    assert at_once.kickoff_ms == 10
    assert fold_match(at_once, [nine]).changed == ()
    one_by_one = fold_match(fold_match(known(), [nine]).match, [ten])
    assert (one_by_one.changed, one_by_one.match) == (("schedule",), at_once)


@pytest.mark.requirement("R4.30")
def test_a_result_is_not_undone_by_a_score():
    """A score that comes after the result, or belongs before it and comes late, changes nothing (R4.30)."""
    final = known(finalized(9, 2, 1))
    for late in (updated(5, 0, 0), updated(20, 7, 7)):
        assert fold_match(final, [late]) == Folded(final)


def test_a_result_is_corrected_by_a_later_result_only():
    """The same result again, at any time, and an older one change nothing; a later different one does."""
    final = known(finalized(9, 2, 1))
    assert fold_match(final, [finalized(20, 2, 1)]) == Folded(final)
    assert fold_match(final, [finalized(5, 0, 0)]) == Folded(final)
    corrected = fold_match(final, [finalized(20, 3, 1)])
    assert (score(corrected.match), corrected.changed) == ((3, 1, State.FINAL), ("result",))


def test_a_result_that_says_the_same_as_a_score_is_a_result():
    """A final score equal to the last score in play still makes the match final."""
    assert score(known(updated(5, 2, 1), finalized(9, 2, 1))) == (2, 1, State.FINAL)


@pytest.mark.parametrize("status", [Status.POSTPONED, Status.CANCELLED])
def test_a_match_may_be_put_off_and_keeps_its_score(status: Status):
    """Status and date change with a schedule, score and result stay."""
    after = fold_match(known(updated(5, 1, 1)), [scheduled(8, status=status, kickoff=77)]).match
    assert after is not None
    assert (after.status, after.kickoff_ms, score(after)) == (status, 77, (1, 1, State.LIVE))


def test_a_match_keeps_its_season():
    """An event that names another season is refused alone, and the events around it count."""
    wrong = [scheduled(3, season="x", kickoff=5), updated(4, 5, 5, season="x"), finalized(6, 6, 6, season="x")]
    folded = fold_match(known(), [*wrong, updated(5, 1, 0)])
    assert (list(folded.refused), score(folded.match), folded.changed) == (wrong, (1, 0, State.LIVE), ("score",))


def test_a_match_that_is_not_known_has_no_result():
    """A score without a schedule is the caller's fault, and said so."""
    with pytest.raises(ValueError, match="never scheduled"):
        fold_match(None, [updated(1, 0, 0)])


@pytest.mark.parametrize(
    ("home", "away", "former"), [("A", "B", []), ("B", "A", []), ("A", "C", ["B"]), ("C", "D", ["A", "B"])]
)
def test_teams_that_are_no_longer_named(home: str, away: str, former: list[str]):
    """A team that the schedule no longer names is published, so that its page loses the match; swapped sides do not count."""
    before = known()
    after = fold_match(before, [scheduled(3, home=home, away=away)]).match
    assert after is not None
    assert (former_teams(before, after), former_teams(None, after)) == (former, [])


GOALS = st.integers(0, 2)
EVENTS = st.one_of(
    st.builds(lambda k, s: (MATCH_SCHEDULED, {"kickoff": k, "status": s}), GOALS, st.sampled_from([None, "postponed"])),
    st.builds(lambda h, a: (MATCH_UPDATED, {"home_goals": h, "away_goals": a, "minute": None}), GOALS, GOALS),
    st.builds(lambda h, a: (MATCH_FINALIZED, {"home_goals": h, "away_goals": a, "finalized_at": h}), GOALS, GOALS),
)
LOGS = st.lists(EVENTS, max_size=12)


def log_of(events: list[tuple[str, dict[str, Any]]]) -> list[Step]:
    """Steps in the order of the log, a schedule first; several have one time."""
    first = scheduled(0, 0)
    base = {"match_id": "m", "season": SEASON}
    return [
        first,
        *(
            Step(topic, {**first.value, **value} if topic == MATCH_SCHEDULED else {**base, **value}, cause(n // 3, n))
            for n, (topic, value) in enumerate(events, 1)
        ),
    ]


@given(LOGS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_cutting_the_log_into_batches_changes_nothing(events: list[tuple[str, dict[str, Any]]], random: Any, size: int):
    """However a log is cut, and however a batch is shuffled, the match comes out as from all of it at once."""
    steps = log_of(events)
    whole = fold_match(None, random.sample(steps, len(steps))).match
    cut: Match | None = None
    for start in range(0, len(steps), size):
        batch = steps[start : start + size]
        cut = fold_match(cut, random.sample(batch, len(batch)) if cut else batch).match
    assert whole == cut


@given(LOGS)
def test_reading_the_log_again_changes_nothing(events: list[tuple[str, dict[str, Any]]]):
    """Reading any part of the log again is not a change: nothing is written or published."""
    steps = log_of(events)
    match = fold_match(None, steps).match
    for step in steps:
        again = fold_match(match, [step])
        assert (again.changed, again.match) == ((), match), step


@given(LOGS)
def test_the_last_word_counts(events: list[tuple[str, dict[str, Any]]]):
    """The last schedule and the last result count, and the last score in play before the result."""
    steps = log_of(events)
    match = fold_match(None, steps).match
    assert match is not None
    assert match.kickoff_ms == [s.value["kickoff"] for s in steps if s.topic == MATCH_SCHEDULED][-1]
    results = [s.value for s in steps if s.topic == MATCH_FINALIZED]
    scores = [s.value for s in steps if s.topic == MATCH_UPDATED]
    expected = (results or scores or [{"home_goals": None, "away_goals": None}])[-1]
    assert (match.home_goals, match.away_goals) == (expected["home_goals"], expected["away_goals"])
    assert match.is_final == bool(results)


@given(LOGS)
def test_a_change_is_a_change(events: list[tuple[str, dict[str, Any]]]):
    """One event changes its own part or nothing, and the match differs exactly if a change is published."""
    match: Match | None = None
    for step in log_of(events):
        folded = fold_match(match, [step])
        assert folded.changed in ((), (PARTS[step.topic],))
        assert (folded.match != match) == bool(folded.changed) == (folded.cause is not None)
        match = folded.match


def vote(user: str, choice: str, at: int, offset: int, said_ms: int = 0) -> Word:
    """A vote on one match."""
    return Word("m", user, (choice,), said_ms, cause(at, offset))


def test_a_repeated_vote_is_remembered_and_not_told():
    """Saying the same again is stored, so that an older vote cannot undo it, and keeps when it was first said."""
    held = {("m", "u"): vote("u", "home", 1, 1, said_ms=10)}
    settled = settle_words(held, [vote("u", "home", 5, 5, said_ms=99)])
    assert settled == Settled((vote("u", "home", 5, 5, said_ms=10),), ())
    assert settle_words({("m", "u"): settled.stored[0]}, [vote("u", "away", 3, 3)]) == Settled()


def test_a_vote_there_and_back_is_not_told():
    """Two changes within a window that end at the original choice publish nothing."""
    held = {("m", "u"): vote("u", "home", 1, 1)}
    settled = settle_words(held, [vote("u", "away", 2, 2), vote("u", "home", 3, 3)])
    assert ([word.cause.arrived_ms for word in settled.stored], settled.changed) == ([3], ())


VOTES = st.lists(st.tuples(st.sampled_from("uvw"), st.sampled_from(["home", "draw", "away"])), max_size=15)


@given(VOTES, st.randoms(use_true_random=False), st.integers(1, 6))
def test_the_last_vote_of_each_counts(votes: list[tuple[str, str]], random: Any, size: int):
    """In any order and batches of votes, the last in the log counts; reading them again changes nothing."""
    log = [vote(user, choice, n // 4, n) for n, (user, choice) in enumerate(votes)]
    held: dict[tuple[str, str], Word] = {}
    shuffled = random.sample(log, len(log))
    for start in range(0, len(log), size):
        settled = settle_words(held, shuffled[start : start + size])
        assert set(settled.changed) <= set(settled.stored)
        held |= {word.vote_key: word for word in settled.stored}
    assert {user: (choice,) for user, choice in votes} == {user: word.said for (_, user), word in held.items()}
    assert settle_words(held, log) == Settled()
