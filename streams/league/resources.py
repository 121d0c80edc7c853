"""The catalogue of league documents: key, TTL, access, and source topics (R4.13 to R4.26)."""

from __future__ import annotations

from typing import Any

from highwater.schemas.feeds import USER_ERASED
from highwater.schemas.league import REFRESH_REQUESTED, RULES_CHANGED
from highwater.streams.pages.kinds import DAY_SECONDS, WEEK_SECONDS, Catalogue, Kind, Resource
from highwater.streams.pages.rules import PageRules

# The default range of days of predictions (R4.19).
PREDICTION_DAYS = 6

SCHEDULE_TOPICS = frozenset({"league.match-scheduled"})
MATCH_TOPICS = SCHEDULE_TOPICS | {"league.match-updated", "league.match-finalized"}
# Users' votes and comments are erased with them, so an erasure feeds every page that shows or counts these.
ERASED_TOPICS = frozenset({USER_ERASED})
VOTE_TOPICS = ERASED_TOPICS | {"league.vote-cast", "league.prediction-made"}
# Before the first comment the match is the cause.
COMMENT_TOPICS = ERASED_TOPICS | SCHEDULE_TOPICS | {"league.comment-posted"}


def _kind(
    name: str, template: str, inside: int, outside: int, topics: frozenset[str] = MATCH_TOPICS, **more: Any
) -> Kind:
    """Return a kind with its TTLs inside and outside a match window, in seconds; most are fed by matches."""
    return Kind(
        name, template, inside, outside, topics, **more, of=_NAMED_BY.get(template.partition("{id}")[0], "page")
    )


# What the id of a page names, by the beginning of its key.
_NAMED_BY = {
    **{f"league:{page}:": "season" for page in ("table", "schedule", "results", "stats", "stats-live", "bracket")},
    "md:": "match", "public:club:": "club", "predictions:user:": "user", "achievements:": "user",
    "predictions:active:": "range of days", "lb:": "page of the rating",
}  # fmt: skip


_KINDS = (
    # Form 1: only rounds of the league count, where a season has some.
    _kind(
        "league_table", "league:table:{id}", 30, WEEK_SECONDS, MATCH_TOPICS | {RULES_CHANGED},
        is_impersonal=True, form=1, about="the standings of a season",
    ),
    _kind("league_schedule", "league:schedule:{id}", 20, WEEK_SECONDS, is_impersonal=True, about="all matches of a season"),
    _kind("league_results", "league:results:{id}", 15, 15 * 60, is_impersonal=True, about="results of a season"),
    _kind("league_stats", "league:stats:{id}", 45, 3_600, is_impersonal=True, about="aggregates of a season"),
    _kind(
        "league_stats_live", "league:stats-live:{id}", 5, 60,
        is_live=True, is_impersonal=True, about="matches in play of a season",
    ),
    # Form 1: more names of rounds are known.
    _kind(
        "league_bracket", "league:bracket:{id}", 3_600, DAY_SECONDS,
        is_impersonal=True, form=1, about="knock-out rounds of a season",
    ),
    _kind("match_meta", "md:{id}:meta", 600, 3_600, is_impersonal=True, about="what does not move during a match"),
    _kind(
        "match_live", "md:{id}:live", 4, 60, topics=MATCH_TOPICS | VOTE_TOPICS,
        is_live=True, is_absence_shown=True, about="score and votes",
    ),
    _kind(
        "match_comments", "md:{id}:comments", 14_400, 14_400, COMMENT_TOPICS,
        stale_in_window_seconds=14_400, stale_outside_seconds=14_400, about="the latest 120 comments",
    ),
    _kind(
        "predictions_active", "predictions:active:{id}d", 300, 300, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_family=True, about="matches of the next days, with votes",
    ),
    _kind(
        "predictions_user", "predictions:user:{id}", 300, 300, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_private=True, about="what a user predicted",
    ),
    _kind("predictions_legacy", "predictions:legacy", 300, 300, VOTE_TOPICS, about="reserved; nothing writes it"),
    _kind(
        "leaderboard", "lb:{id}", 60, 60, MATCH_TOPICS | VOTE_TOPICS,
        stale_in_window_seconds=120, stale_outside_seconds=120, is_family=True, about="a page of the rating",
    ),
    _kind("achievements", "achievements:{id}", 1_800, 1_800, MATCH_TOPICS | VOTE_TOPICS, is_private=True,
         about="what a user has achieved"),
    _kind("admin_stats", "admin:stats", 3_600, 7_200, MATCH_TOPICS | VOTE_TOPICS, is_private=True,
         about="counts for administrators"),
    _kind("ads", "ads:all", 600, 600, frozenset({"league.ad-changed"}), about="all advertisements"),
    _kind(
        "matches_live", "public:matches:live", 4, 60, MATCH_TOPICS,
        stale_in_window_seconds=12, is_live=True, is_impersonal=True, about="matches in play, of all seasons",
    ),
    _kind("club_matches", "public:club:{id}:matches", 60, 1_200, is_impersonal=True, about="a club's matches over all seasons"),
    _kind(
        "match_window", "cache:match-window:v1", 30, 30,
        stale_in_window_seconds=60, stale_outside_seconds=60, about="when which season is in its match window",
    ),
)  # fmt: skip

CATALOGUE = Catalogue(_KINDS)
KINDS = CATALOGUE.kinds
resource, resource_of = CATALOGUE.page, CATALOGUE.page_of
# The pages that a prewarm builds (R4.32).
SEASON_PAGES = ("league_table", "league_schedule", "league_results", "league_stats")


def season_of(page: Resource) -> str | None:
    """Return the season of a page; kinds of one season begin with `league_`, all others belong to no single season."""
    return page.id if page.kind.name.startswith("league_") else None


# The rules for the engine of pages.
LEAGUE_RULES = PageRules(
    catalogue=CATALOGUE,
    window=resource("match_window"),
    scope_of=season_of,
    refresh_topic=REFRESH_REQUESTED,
    prewarmed=SEASON_PAGES,
    unmade=frozenset({"predictions_legacy"}),
)
