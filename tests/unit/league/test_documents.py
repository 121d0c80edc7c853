"""The documents of matches, clubs, predictions, the rating and advertisements."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.causes import everything, newest
from highwater.streams.league.causes import live as live_causes
from highwater.streams.league.documents import (
    COMMENTS_MAX,
    PAGE_USERS,
    Ad,
    Comment,
    Rated,
    Votes,
    ads,
    club_matches,
    leaderboard,
    match_comments,
    match_live,
    match_meta,
    predictions_active,
    predictions_causes,
)
from highwater.streams.league.matches import Match, Status
from tests.unit.league.facts import DAY_MS, KICKOFF_MS, final, live, scheduled, seasons, unhurried, with_goal

CAST = Cause(50, "league.vote-cast/0/1")
VOTES = Votes(3, 2, 1, CAST)


def test_what_does_not_move():
    """No score and no state of play; the result once there is one."""
    assert match_meta(scheduled("A", "B")) == match_meta(live("A", "B", 3, 0))
    assert not {"home_goals", "minute", "result"} & set(match_meta(live("A", "B", 3, 0)))
    found = match_meta(final("A", "B", 2, 1))
    assert (found["state"], found["result"]) == ("final", {"home_goals": 2, "away_goals": 1})


def test_what_moves():
    """State, score, minute and votes; the minute goes when it is final."""
    votes = {"home": 3, "draw": 2, "away": 1}
    plain = {"match_id": "A-B", "state": "scheduled", "home_goals": None, "away_goals": None, "minute": None}
    assert {**plain, "votes": {"home": 0, "draw": 0, "away": 0}} == match_live(scheduled("A", "B"), Votes())
    playing = {"state": "live", "home_goals": 1, "away_goals": 0, "minute": 30, "votes": votes}
    assert {**plain, **playing} == match_live(live("A", "B", 1, 0), VOTES)
    ended = {"state": "final", "home_goals": 2, "away_goals": 0, "votes": votes}
    assert {**plain, **ended} == match_live(final("A", "B", 2, 0), VOTES)


def test_the_event_behind_what_moves():
    """Score, result or vote, whichever is newest; a new date is not, except where nothing moved yet."""
    moved_date = Cause(99, "league.match-scheduled/0/7")
    assert newest(live_causes(live("A", "B", 1, 0, schedule_by=moved_date), None)) == "league.match-updated/0/1"
    assert newest(live_causes(final("A", "B", 1, 0, schedule_by=moved_date), CAST)) == CAST.position
    assert newest(live_causes(scheduled("A", "B", schedule_by=moved_date), None)) == moved_date.position
    assert newest(everything([live("A", "B", 1, 0)])) == "league.match-updated/0/1"


def comment(offset: int, arrived_ms: int = 1, posted_ms: int = 0) -> Comment:
    """A comment with its place."""
    return Comment("u", str(offset), posted_ms, Cause(arrived_ms, f"league.comment-posted/3/{offset}"))


def test_the_latest_comments():
    """They are ordered by the log, newest first, with any claimed times; in one batch 10 is later than 9; the number is
    limited.
    """
    found = match_comments("m", [comment(9), comment(10), comment(8, posted_ms=10**12), comment(1, arrived_ms=2)])
    assert [one["text"] for one in found["comments"]] == ["1", "10", "9", "8"]
    assert found["comments"][-1] == {"user_id": "u", "text": "8", "posted_at": "2001-09-09T01:46:40Z"}
    many = match_comments("m", [comment(offset) for offset in range(COMMENTS_MAX + 30)])
    assert [str(offset) for offset in range(COMMENTS_MAX + 29, 29, -1)] == [one["text"] for one in many["comments"]]


def test_a_club():
    """All its matches, the latest kickoff first, with the score of the one in play."""
    matches = [final("A", "B", 1, 0, season="old", kickoff_ms=KICKOFF_MS - DAY_MS), live("C", "A", 0, 1)]
    found = club_matches("A", matches)
    assert (
        found["club"],
        [(m["match_id"], m["state"], m["away_goals"], m.get("minute", "none")) for m in found["matches"]],
    ) == ("A", [("C-A", "live", 1, 30), ("A-B", "final", 0, "none")])


@pytest.mark.requirement("R4.19")
def test_what_can_be_predicted():
    """Kickoffs from now to the end of the last day, both included; no result, not cancelled; votes, no score."""
    now_ms = KICKOFF_MS
    upcoming: dict[Match, Votes] = {
        scheduled("at", "now"): VOTES,
        live("told", "early", 1, 0): Votes(),
        scheduled("just", "past", kickoff_ms=now_ms - 1): Votes(),
        scheduled("last", "moment", kickoff_ms=now_ms + 6 * DAY_MS): Votes(),
        scheduled("too", "late", kickoff_ms=now_ms + 6 * DAY_MS + 1): Votes(),
        final("has", "result", 3, 0): Votes(),
        scheduled("not", "played", status=Status.CANCELLED): Votes(),
    }
    found = predictions_active(6, upcoming, now_ms)
    assert (found["days"], [m["match_id"] for m in found["matches"]]) == (6, ["at-now", "told-early", "last-moment"])
    assert found["matches"][0]["votes"] == {"home": 3, "draw": 2, "away": 1}
    assert (found["matches"][1]["home_goals"], found["matches"][1]["state"]) == (None, "scheduled")
    assert newest(predictions_causes(upcoming)) == CAST.position


def test_one_that_got_its_result_is_behind_its_absence():
    """The event that took a match out of the predictions is the one behind them."""
    ended = final("A", "B", 1, 0, result_by=Cause(60, "league.match-finalized/0/9"))
    assert newest(predictions_causes({scheduled("C", "D"): VOTES, ended: Votes()})) == "league.match-finalized/0/9"


def rated(*merits: tuple[int, int]) -> list[Rated]:
    """Users by points and exact results, in order."""
    return [Rated(f"u{number}", points, exact, points, points) for number, (points, exact) in enumerate(merits)]


def test_ranks():
    """Equal users share a rank and the next is as if they had not; exact results part those of equal points."""
    found = leaderboard(1, rated((9, 2), (9, 2), (9, 1), (4, 0), (4, 0), (1, 0)), 0)
    assert [user["rank"] for user in found["users"]] == [1, 1, 3, 4, 4, 6]
    assert found["users"][2] == {"rank": 3, "user_id": "u2", "points": 9, "exact": 1, "correct": 9, "judged": 9}
    assert (found["page"], found["next_cursor"]) == (1, None)
    full = rated(*[(1, 0)] * (PAGE_USERS + 1))
    assert (leaderboard(2, full[1:], 7)["next_cursor"], leaderboard(2, full, 7)["next_cursor"]) == (None, "3")
    assert len(leaderboard(2, full, 7)["users"]) == PAGE_USERS
    assert leaderboard(1, [], 0) == {"page": 1, "users": [], "next_cursor": None}


@unhurried
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=3 * PAGE_USERS))
def test_ranks_over_pages(merits: list[tuple[int, int]]):
    """However users are spread over pages, a rank is one more than the users who are better; no user is lost."""
    ordered = rated(*sorted(merits, reverse=True))
    shown: list[dict[str, Any]] = []
    for page in itertools.count(1):
        start = (page - 1) * PAGE_USERS
        held = ordered[start : start + PAGE_USERS + 1]
        better = sum((r.points, r.exact) > (held[0].points, held[0].exact) for r in ordered) if held else 0
        found = leaderboard(page, held, better)
        shown += found["users"]
        if found["next_cursor"] is None:
            break
        assert found["next_cursor"] == str(page + 1)
    assert [r.user_id for r in ordered] == [user["user_id"] for user in shown]
    assert [1 + sum((o.points, o.exact) > (r.points, r.exact) for o in ordered) for r in ordered] == [
        user["rank"] for user in shown
    ]


def test_advertisements():
    """By id, as they were put, without those taken away; JSON that nests too deep to be written again harms none."""
    deep = "[" * 500 + "]" * 500
    held = [Ad("b", '{"n": 1.10}', CAST), Ad("a", deep, CAST), Ad("c", None, CAST)]
    assert (
        f'{{"ads":[{{"ad_id":"a","payload":{deep}}},{{"ad_id":"b","payload":{{"n": 1.10}}}}]}}'.encode()
        == orjson.dumps(ads(held))
    )


@unhurried
@given(seasons(), st.randoms())
def test_the_order_of_facts_does_not_matter(matches: list[Match], chance: Any):
    """The same facts in another order are the same bytes."""
    shuffled = matches.copy()
    chance.shuffle(shuffled)
    upcoming = dict.fromkeys(matches, VOTES)
    again = dict.fromkeys(shuffled, VOTES)
    assert orjson.dumps(club_matches("A", matches)) == orjson.dumps(club_matches("A", shuffled))
    assert orjson.dumps(predictions_active(6, upcoming, KICKOFF_MS)) == orjson.dumps(
        predictions_active(6, again, KICKOFF_MS)
    )
    assert newest(everything(matches)) == newest(everything(shuffled))


@unhurried
@given(seasons())
def test_a_goal_in_play_is_no_news_to_predictions(matches: list[Match]):
    """The page of predictions shows no score."""
    before = predictions_active(6, dict.fromkeys(matches, VOTES), KICKOFF_MS)
    assert before == predictions_active(6, {with_goal(match): VOTES for match in matches}, KICKOFF_MS)
