"""The catalogue of league documents: key, how long each is good, who may see it, which topics feed it (R4.6, R4.13 to R4.26).

A document is what one key names: bytes with a version, an entity tag and the event behind it. Lives are in seconds, inside and
outside the match window; a stale life of None follows the rule of R4.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
# Stale lives that the source leaves open (R4.13): four lives inside a window, a tenth of a life and at most an hour outside.
STALE_LIVES_IN_WINDOW = 4
STALE_SHARE_OUTSIDE, STALE_SECONDS_OUTSIDE_MAX = 0.1, 3_600
LOCK_SECONDS = 10
# The range of days of predictions that is shown where no other is asked for (R4.19).
PREDICTION_DAYS = 6

SCHEDULE_TOPICS = frozenset({"league.match-scheduled"})
MATCH_TOPICS = SCHEDULE_TOPICS | {"league.match-updated", "league.match-finalized"}
VOTE_TOPICS = frozenset({"league.vote-cast", "league.prediction-made"})


class CacheOptions(NamedTuple):
    """How long a document is good, how long it is served while a newer one is made, and how long making it may take."""

    ttl_seconds: int
    stale_while_revalidate_seconds: int
    lock_timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of document. `template` is the key with `{id}` for what it is about; without it there is one document."""

    name: str
    template: str
    ttl_in_window_seconds: int
    ttl_outside_seconds: int
    topics: frozenset[str] = MATCH_TOPICS
    stale_in_window_seconds: int | None = None
    stale_outside_seconds: int | None = None
    is_private: bool = False
    is_live: bool = False
    is_family: bool = False  # its documents come from the same facts: what makes one old makes all of them old
    about: str = ""
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = re.escape(self.template).replace(re.escape("{id}"), "(?P<id>.+)")
        object.__setattr__(self, "pattern", re.compile(pattern, re.DOTALL))

    @property
    def has_id(self) -> bool:
        """Whether there are several documents of this kind."""
        return "{id}" in self.template


_KINDS = (
    Kind("league_table", "league:table:{id}", 30, WEEK_SECONDS, about="the standings of a season"),
    Kind("league_schedule", "league:schedule:{id}", 20, WEEK_SECONDS, about="all matches of a season"),
    Kind("league_results", "league:results:{id}", 15, 15 * 60, about="results of a season"),
    Kind("league_stats", "league:stats:{id}", 45, 3_600, about="aggregates of a season"),
    Kind("league_stats_live", "league:stats-live:{id}", 5, 60, is_live=True, about="matches in play of a season"),
    Kind("league_bracket", "league:bracket:{id}", 3_600, DAY_SECONDS, about="knock-out rounds of a season"),
    Kind("match_meta", "md:{id}:meta", 600, 3_600, about="what does not move during a match"),
    Kind("match_live", "md:{id}:live", 4, 60, topics=MATCH_TOPICS | VOTE_TOPICS, is_live=True, about="score and votes"),
    Kind(
        "match_comments", "md:{id}:comments", 14_400, 14_400, frozenset({"league.comment-posted"}),
        stale_in_window_seconds=14_400, stale_outside_seconds=14_400, about="the latest 120 comments",
    ),
    Kind(
        "predictions_active", "predictions:active:{id}d", 300, 300, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_family=True, about="matches of the next days, with votes",
    ),
    Kind(
        "predictions_user", "predictions:user:{id}", 300, 300, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_private=True, about="what a user predicted",
    ),
    Kind("predictions_legacy", "predictions:legacy", 300, 300, VOTE_TOPICS, about="kept for migrations; no endpoint"),
    Kind(
        "leaderboard", "lb:{id}", 60, 60, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_family=True, about="a page of the rating",
    ),
    Kind("achievements", "achievements:{id}", 1_800, 1_800, MATCH_TOPICS | VOTE_TOPICS, is_private=True,
         about="what a user has achieved"),
    Kind("admin_stats", "admin:stats", 3_600, 7_200, MATCH_TOPICS | VOTE_TOPICS, is_private=True,
         about="counts for administrators"),
    Kind("ads", "ads:all", 600, 600, frozenset({"league.ad-changed"}), about="all advertisements"),
    Kind(
        "matches_live", "public:matches:live", 4, 60, MATCH_TOPICS,
        stale_in_window_seconds=12, is_live=True, about="matches in play, of all seasons",
    ),
    Kind("club_matches", "public:club:{id}:matches", 60, 1_200, about="a club's matches over all seasons"),
    Kind(
        "match_window", "cache:match-window:v1", 30, 30,
        stale_in_window_seconds=60, stale_outside_seconds=60, about="when which season is in its match window",
    ),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
# The pages that a prewarm makes (R4.32).
SEASON_PAGES = ("league_table", "league_schedule", "league_results", "league_stats")


class Resource(NamedTuple):
    """One document: its kind and what it is about (empty where there is only one)."""

    kind: Kind
    id: str = ""

    @property
    def key(self) -> str:
        """The key under which it is stored, versioned and cached."""
        return self.kind.template.replace("{id}", self.id)


def resource(kind: str, about: str = "") -> Resource:
    """The document of a kind about something."""
    return Resource(KINDS[kind], about)


def resource_of(key: str) -> Resource | None:
    """The document that a key names; None when it names none. No two templates of the catalogue match one key."""
    for kind in _KINDS:
        match = kind.pattern.fullmatch(key)
        if match is not None:
            return Resource(kind, match["id"] if kind.has_id else "")
    return None


def resolve_cache_options(kind: Kind, *, is_window_active: bool) -> CacheOptions:
    """How long a document of this kind is good now (R4.12 to R4.14)."""
    if is_window_active:
        ttl = kind.ttl_in_window_seconds
        stale = kind.stale_in_window_seconds
        return CacheOptions(ttl, STALE_LIVES_IN_WINDOW * ttl if stale is None else stale, LOCK_SECONDS)
    ttl = kind.ttl_outside_seconds
    stale = kind.stale_outside_seconds
    if stale is None:
        stale = min(int(ttl * STALE_SHARE_OUTSIDE), STALE_SECONDS_OUTSIDE_MAX)
    return CacheOptions(ttl, stale, LOCK_SECONDS)
