"""Which documents a change of a match names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.league import MatchChanged
from highwater.streams.league.affected import affected_keys
from highwater.streams.league.resources import resource_of
from highwater.streams.league.state import Row, apply_changed

# The list of R4.30, beside the pages whose content follows from the same facts.
OF_A_RESULT = {
    "league:table:s",
    "league:schedule:s",
    "league:results:s",
    "league:stats:s",
    "league:stats-live:s",
    "league:bracket:s",
    "md:m:meta",
    "md:m:live",
    "public:matches:live",
    "public:club:home:matches",
    "public:club:away:matches",
    "predictions:active:6d",
    "lb:1",
    "admin:stats",
    "cache:match-window:v1",
}
OF_RESULTS_ONLY = {f"league:{page}:s" for page in ("table", "schedule", "results", "stats", "bracket")}


def changed(*what: str, **more: Any) -> MatchChanged:
    """A change of one match."""
    event: Any = {
        "match_id": "m",
        "season": "s",
        "changed": list(what),
        "kickoff": 1_000,
        "status": "scheduled",
        "state": "live",
        "home": "home",
        "away": "away",
        "former_teams": [],
        "home_goals": 1,
        "away_goals": 0,
        "finalized_at": None,
        "revision": 1,
    }
    return {**event, **more}


def row(**more: Any) -> Row:
    """The earlier state."""
    return apply_changed(None, changed("schedule", **more))


@pytest.mark.requirement("R4.4", "R4.30")
@pytest.mark.parametrize("what", [["result"], ["schedule"], ["score", "result"], ["schedule", "score"], [], ["other"]])
def test_a_result_or_a_date_names_them_all(what: list[str]):
    """Each of R4.30's documents, once; an unknown change counts as one of everything."""
    keys = affected_keys(None, changed(*what))
    assert set(keys) == OF_A_RESULT
    assert len(keys) == len(set(keys))


def test_a_goal_names_live_pages_only():
    """A goal in play names nothing that counts results: what changes is live pages, the clubs' matches and predictions."""
    assert set(affected_keys(row(), changed("score"))) == {
        "league:stats-live:s",
        "md:m:meta",
        "md:m:live",
        "public:matches:live",
        "public:club:home:matches",
        "public:club:away:matches",
        "predictions:active:6d",
    }


def test_the_first_score_counts_a_match_as_begun():
    """The first score names the counts for administrators too; still no page of results."""
    keys = set(affected_keys(row(state="scheduled"), changed("score")))
    assert "admin:stats" in keys
    assert not keys & OF_RESULTS_ONLY
    assert affected_keys(None, changed("score")) == affected_keys(row(state="scheduled"), changed("score"))


def test_former_teams_are_named():
    """A club that left the fixture loses the match from its page, whether the event says so or only the row does."""
    keys = affected_keys(row(home="before"), changed("schedule", former_teams=["former"]))
    clubs = {key for key in keys if key.startswith("public:club:")}
    assert clubs == {f"public:club:{name}:matches" for name in ("home", "away", "former", "before")}


def test_what_people_watch_comes_first():
    """The page of the match in play is rebuilt first."""
    assert affected_keys(None, changed("result"))[:2] == ["md:m:live", "public:matches:live"]


@given(
    st.lists(st.sampled_from(["schedule", "score", "result"]), unique=True), st.text(min_size=1), st.text(min_size=1)
)
def test_every_key_names_a_document(what: list[str], season: str, match_id: str):
    """For any name of a season or a match, each key is one of the catalogue."""
    keys = affected_keys(None, changed(*what, season=season, match_id=match_id))
    assert all(resource_of(key) is not None for key in keys)
