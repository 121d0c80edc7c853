"""The catalogue of documents against the requirements, number by number (R4.13 to R4.25)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.league.erasure import documents_of_user
from highwater.connectors.league.sink_votes import documents_of_votes
from highwater.schemas.topics import TOPICS
from highwater.streams.league.resources import KINDS, SEASON_PAGES, resource, resource_of
from highwater.streams.pages.kinds import Resource, resolve_cache_options

SECOND, MINUTE, HOUR, DAY = 1, 60, 3_600, 86_400

# Kind -> key of an example, life in window and outside; stale life in window and outside where the requirement gives one.
LIVES = {
    "league_table": ("league:table:s", 30 * SECOND, 7 * DAY),  # R4.13
    "league_schedule": ("league:schedule:s", 20 * SECOND, 7 * DAY),  # R4.13
    "league_results": ("league:results:s", 15 * SECOND, 15 * MINUTE),  # R4.13
    "league_stats": ("league:stats:s", 45 * SECOND, 1 * HOUR),  # R4.13
    "match_comments": ("md:m:comments", 4 * HOUR, 4 * HOUR, 4 * HOUR, 4 * HOUR),  # R4.18
    "predictions_active": ("predictions:active:6d", 300 * SECOND, 300 * SECOND, 120 * SECOND, 120 * SECOND),  # R4.19
    "predictions_user": ("predictions:user:u", 300 * SECOND, 300 * SECOND, 120 * SECOND, 120 * SECOND),  # R4.20
    "predictions_legacy": ("predictions:legacy", 5 * MINUTE, 5 * MINUTE),  # R4.21
    "leaderboard": ("lb:1", 60 * SECOND, 60 * SECOND, 120 * SECOND, 120 * SECOND),  # R4.22
    "achievements": ("achievements:u", 30 * MINUTE, 30 * MINUTE),  # R4.23
    "ads": ("ads:all", 600 * SECOND, 600 * SECOND),  # R4.24
    "club_matches": ("public:club:c:matches", 60 * SECOND, 1_200 * SECOND),  # R4.25
    "match_window": ("cache:match-window:v1", 30 * SECOND, 30 * SECOND),  # R4.11
}
# Kind -> key of an example and the range that the life in window must lie in.
RANGES = {
    "league_table": ("league:table:s", 10, 30),  # R4.15
    "league_schedule": ("league:schedule:s", 15, 30),  # R4.15
    "league_stats": ("league:stats:s", 30, 60),  # R4.15
    "league_stats_live": ("league:stats-live:s", 3, 30),  # R4.15
    "league_results": ("league:results:s", 10, 20),  # R4.15
    "league_bracket": ("league:bracket:s", 1 * HOUR, 24 * HOUR),  # R4.15
    "match_meta": ("md:m:meta", 10 * MINUTE, 10 * MINUTE),  # R4.16
    "match_live": ("md:m:live", 3, 5),  # R4.17
    "matches_live": ("public:matches:live", 3, 5),  # R4.25
    "admin_stats": ("admin:stats", 1 * HOUR, 2 * HOUR),  # R4.23
}
ids = st.text(st.characters(min_codepoint=0x20, exclude_categories=("Cc", "Cs")), min_size=1, max_size=12).filter(
    str.strip
)


def lives(kind: str, *, is_window_active: bool) -> tuple[int, int]:
    """Life and stale life."""
    options = resolve_cache_options(KINDS[kind], is_window_active=is_window_active)
    return options.ttl_seconds, options.stale_while_revalidate_seconds


def test_an_id_is_called_by_its_name():
    """An error about a missing resource has a word for each kind with ids."""
    words = {kind.of for kind in KINDS.values() if kind.has_id}
    assert words == {"season", "match", "club", "user", "range of days", "page of the rating"}


@pytest.mark.requirement("R4.11", "R4.13", "R4.18", "R4.19", "R4.21", "R4.22", "R4.23", "R4.24")
@pytest.mark.parametrize("kind", LIVES)
def test_lives_are_as_required(kind: str):
    """Lives in and out of a window, and stale lives where they are given, are those of the requirement."""
    key, inside, outside, *stale = LIVES[kind]
    found = [lives(kind, is_window_active=is_active) for is_active in (True, False)]
    assert [ttl for ttl, _ in found] == [inside, outside]
    if stale:
        assert [stale_life for _, stale_life in found] == stale
    named = resource_of(key)
    assert named is not None
    assert named.kind.name == kind


@pytest.mark.requirement("R4.15", "R4.16", "R4.25")
@pytest.mark.parametrize("kind", RANGES)
def test_lives_lie_in_their_ranges(kind: str):
    """The TTL in a window lies in the range that is allowed, and none is shorter outside."""
    key, low, high = RANGES[kind]
    inside, _ = lives(kind, is_window_active=True)
    outside, _ = lives(kind, is_window_active=False)
    assert low <= inside <= high
    assert outside >= inside
    named = resource_of(key)
    assert named is not None
    assert named.kind.name == kind


@pytest.mark.requirement("R4.15", "R4.16", "R4.23")
def test_some_ranges_bind_outside_too():
    """A bracket lives 1 to 24 h, admin stats 1 to 2 h, wherever; the page of live matches is stale for 10 to 15 s."""
    assert HOUR <= lives("league_bracket", is_window_active=False)[0] <= 24 * HOUR
    assert HOUR <= lives("admin_stats", is_window_active=False)[0] <= 2 * HOUR
    assert 10 <= lives("matches_live", is_window_active=True)[1] <= 15
    assert lives("match_meta", is_window_active=False)[0] > 10 * MINUTE


def test_every_kind_is_covered():
    """No kind of the catalogue goes without a number from the requirements."""
    assert set(LIVES) | set(RANGES) == set(KINDS)


@pytest.mark.requirement("R4.12", "R4.13")
@pytest.mark.parametrize("kind", ["league_table", "league_schedule", "league_results", "league_stats"])
def test_stale_lives_that_are_left_open(kind: str):
    """Four lives in a window; outside a tenth of the life, an hour at most (R4.13)."""
    inside, stale_inside = lives(kind, is_window_active=True)
    outside, stale_outside = lives(kind, is_window_active=False)
    assert stale_inside == 4 * inside
    assert stale_outside == min(outside // 10, HOUR)


@pytest.mark.requirement("R4.13")
@pytest.mark.parametrize("kind", KINDS)
def test_making_may_take_ten_seconds(kind: str):
    """The lock of a document lasts 10 s in and out of a window (R4.13)."""
    for is_active in (True, False):
        assert resolve_cache_options(KINDS[kind], is_window_active=is_active).lock_timeout_seconds == 10


@pytest.mark.requirement("R4.6")
@pytest.mark.parametrize("kind", KINDS)
@given(about=ids)
def test_every_key_names_its_document(kind: str, about: str):
    """The key of a document resolves to the same document, for every kind."""
    one = resource(kind, about) if KINDS[kind].has_id else resource(kind)
    assert resource_of(one.key) == one


@given(ids, st.sampled_from(sorted(KINDS)), ids, st.sampled_from(sorted(KINDS)))
def test_two_documents_have_two_keys(one: str, kind: str, other: str, other_kind: str):
    """Different documents never share a key."""
    first = resource(kind, one if KINDS[kind].has_id else "")
    second = resource(other_kind, other if KINDS[other_kind].has_id else "")
    assert (first.key == second.key) == (first == second)


@pytest.mark.parametrize(
    "key", ["", "league:table:", "league:tables:s", "feed:u", "md:m", "md::live", "lb", "ads:all:1"]
)
def test_other_keys_name_nothing(key: str):
    """A key that no template gives names no document."""
    assert resource_of(key) is None


@pytest.mark.requirement("R4.32")
def test_a_prewarm_makes_the_four_pages():
    """Table, schedule, results and stats of a season (R4.32)."""
    assert SEASON_PAGES == ("league_table", "league_schedule", "league_results", "league_stats")


def test_documents_are_fed_by_topics_of_outsiders():
    """`X-Min-Position` may name only topics that clients publish to."""
    for kind in KINDS.values():
        assert all(TOPICS[name].outsider for name in kind.topics)


@pytest.mark.parametrize(
    "found",
    [*documents_of_user("u"), *documents_of_votes("m"), resource("match_comments", "m"), resource("leaderboard", "1")],
)
def test_an_erasure_is_a_token_of_the_documents_that_it_changes(found: Resource):
    """The caller of an erasure may request what is shown since."""
    assert "feeds.user-erased" in found.kind.topics
