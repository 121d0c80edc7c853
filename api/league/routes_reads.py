"""Reads of leagues: every page is a document that `api/pages/documents.py` serves; this module only maps paths to
pages.

Invariant: a user's data is read only by that user, or by a key that is not bound to a user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response

from highwater.api.core import conditional
from highwater.api.core.access import Access, OwnedBy, Scope, access, declared
from highwater.api.core.answers import DocumentPending, answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import CACHE_PUBLIC, Version
from highwater.api.core.errors import NotFoundError, UnprocessableError
from highwater.api.core.guard import Called, GuardedRoute, User, require_declared
from highwater.api.core.openapi import NOT_MODIFIED, problems
from highwater.api.core.paging import LIMIT_DEFAULT, Cursor, Limit, page_of, text_after
from highwater.api.core.services import Wired
from highwater.api.league import answers
from highwater.api.league.match_pages import MatchSource
from highwater.api.league.services import LeagueServices, WiredLeague
from highwater.api.pages.documents import serve, serve_source
from highwater.api.pages.services import WiredPages
from highwater.api.pages.shortcut import Page
from highwater.api.pages.sources import DocumentSource, Source
from highwater.connectors.league import read_model as league_api
from highwater.streams.checks import check_id, check_name
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.league.documents import PAGE_USERS
from highwater.streams.league.resources import PREDICTION_DAYS, SCHEDULE_TOPICS, resource
from highwater.streams.league.validation import NAME_BYTES_MAX

router = APIRouter(tags=["leagues"], route_class=GuardedRoute)

DAYS_MAX = 30
# Pages of the rating that can be requested: each requested one is cached.
PAGES_MAX = 20_000

Season = Annotated[str, Path(description="id of a season")]
MatchId = Annotated[str, Path(description="id of a match")]
Endpoint = Callable[..., Awaitable[Response]]
Maker = Callable[[LeagueServices, str], Source]
Responses: TypeAlias = dict[int | str, dict[str, Any]]

# What nobody owns may be public, except counts for administrators; a user's data may not.
_READ = Access(Role.VIEWER, Scope.LEAGUE, limit=RateLimit.NONE, cost=0, may_be_public=True)
# Live pages get so frequent requests that each address has a limit (R4.36).
_LIVE = replace(_READ, limit=RateLimit.ADDRESS, cost=1)

# A page that was not read for long is built while its reader waits, or slightly later.
_PENDING = answer(
    DocumentPending,
    status=HTTPStatus.ACCEPTED,
    description="The page is being generated; retry after `Retry-After` seconds.",
)
# Paths that answer with one document, or with a match, in matching order, with what each shows.
_SHOWN: list[tuple[str, Maker, str, Access]] = []


def shown_pages(league: LeagueServices) -> list[Page]:
    """Return those paths over the documents of an application: the pages that the shortcut knows."""
    return [Page(path, partial(maker, league), about, declaration) for path, maker, about, declaration in _SHOWN]


def _route(path: str, summary: str, responses: Responses) -> Callable[[Endpoint], Endpoint]:
    """Declare a read; `core/heads.py` answers HEAD."""

    def register(endpoint: Endpoint) -> Endpoint:
        router.add_api_route(path, endpoint, methods=["GET"], summary=summary, responses=responses, response_model=None)
        return endpoint

    return register


def _document(*types: type) -> Responses:
    """Return the responses of a page."""
    return answer(*types, names=("Age", "X-Stale")) | _PENDING


def _page(
    path: str, kind: str, summary: str, responses: Responses, *, about: str = ""
) -> Callable[[Endpoint], Endpoint]:
    """Declare a path of one document."""
    return _shown(
        path, lambda league, of: DocumentSource(league.documents, resource(kind, of)), summary, responses, about=about
    )


def _shown(
    path: str, maker: Maker, summary: str, responses: Responses, *, about: str = ""
) -> Callable[[Endpoint], Endpoint]:
    def register(endpoint: Endpoint) -> Endpoint:
        _SHOWN.append((path, maker, about, require_declared(endpoint, path)))
        return _route(path, f"{summary}; supports ETags", responses | NOT_MODIFIED)(endpoint)

    return register


def _season_page(name: str, kind: str, summary: str, shown: type) -> None:
    async def get_season_page(request: Request, season: Season, pages: WiredPages) -> Response:
        check_name("season", season, NAME_BYTES_MAX)
        return await serve(request, pages, resource(kind, season))

    get_season_page.__name__ = f"get_{kind}"
    get_season_page.__doc__ = f"{resource(kind).kind.about.capitalize()}."
    _page(f"/api/league/{{season:id}}/{name}", kind, summary, _document(shown))(
        declared(_LIVE if resource(kind).kind.is_live else _READ)(get_season_page)
    )


# Before the seasons, or `admin` would be parsed as one.
@_page(
    "/api/league/admin/stats", "admin_stats", "Get counts for administrators (admin)", _document(answers.LeagueCounts)
)
@access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.NONE, cost=0)
async def get_admin_stats(request: Request, pages: WiredPages) -> Response:
    """How many seasons, matches, votes, predictions and rated users there are."""
    return await serve(request, pages, resource("admin_stats"))


for _name, _kind, _summary, _type in (
    ("table", "league_table", "Get the table of a season", answers.LeagueTable),
    ("schedule", "league_schedule", "Get the schedule of a season", answers.LeagueSchedule),
    ("results", "league_results", "Get the results of a season", answers.LeagueResults),
    ("stats", "league_stats", "Get the statistics of a season", answers.LeagueStats),
    ("stats/live", "league_stats_live", "Get the live matches of a season", answers.LeagueStatsLive),
    ("bracket", "league_bracket", "Get the knock-out rounds of a season", answers.LeagueBracket),
):
    _season_page(_name, _kind, _summary, _type)


@_route("/api/league", "List seasons; supports ETags", answer(answers.Seasons) | NOT_MODIFIED)
@declared(replace(_READ, limit=RateLimit.CALLER, cost=1))
async def get_seasons(
    request: Request, services: Wired, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Response:
    """Lists every season that has had a match, ordered by id."""
    await services.fresh(request, SCHEDULE_TOPICS)
    found = await league_api.seasons(services.database.require(), text_after(cursor), limit + 1)
    page, next_cursor = page_of(found.page, limit, lambda season: (season,))
    document = {"seasons": [{"season": season} for season in page], "next_cursor": next_cursor}
    # Seasons are only ever added, so their number is a version of the list; the ETag depends only on the bytes.
    version = Version("seasons", found.known, found.caused_by)
    return conditional.answer_version(
        request, "seasons", document, version, services.clock(), cache_control=CACHE_PUBLIC
    )


def _match(league: LeagueServices, match_id: str) -> Source:
    return MatchSource(league.matches, match_id)


# Before the matches, or `live` would be parsed as one.
@_page("/api/matches/live", "matches_live", "Matches in play", _document(answers.MatchesLive))
@declared(_LIVE)
async def get_live_matches(request: Request, pages: WiredPages) -> Response:
    """Lists live matches of every season. Rate-limited by IP address."""
    return await serve(request, pages, resource("matches_live"))


@_shown("/api/matches/{match:id}", _match, "A match", _document(answers.MatchPage))
@declared(_LIVE)
async def get_match(request: Request, match: MatchId, pages: WiredPages, league: WiredLeague) -> Response:
    """`meta` is fixed; `live` has score and votes until three hours after the match. Rate-limited by IP address."""
    check_id("match", match)
    return await serve_source(request, pages, _match(league, match))


@_page("/api/matches/{match:id}/comments", "match_comments", "Comments on a match", _document(answers.MatchComments))
@declared(_READ)
async def get_comments(request: Request, match: MatchId, pages: WiredPages) -> Response:
    """The latest 120 comments, newest first."""
    check_id("match", match)
    return await serve(request, pages, resource("match_comments", match))


@_page("/api/clubs/{club:id}/matches", "club_matches", "A club's matches", _document(answers.ClubMatches))
@declared(_READ)
async def get_club_matches(
    request: Request, club: Annotated[str, Path(description="name of a club")], pages: WiredPages
) -> Response:
    """The club's matches in every season, newest first."""
    check_name("club", club, NAME_BYTES_MAX)
    return await serve(request, pages, resource("club_matches", club))


@_page(
    "/api/leaderboard",
    "leaderboard",
    "A page of the rating",
    _document(answers.Leaderboard) | problems(NotFoundError),
    about="1",
)
@declared(_READ)
async def get_leaderboard(
    request: Request,
    pages: WiredPages,
    page: Annotated[int | None, Query(ge=1, le=PAGES_MAX, description="number of the page, from 1")] = None,
    cursor: Annotated[
        int | None, Query(ge=1, le=PAGES_MAX, description="instead of `page`: `next_cursor` of the previous page")
    ] = None,
    _limit: Annotated[
        int, Query(alias="limit", ge=PAGE_USERS, description="a page always holds 50 users")
    ] = PAGE_USERS,
) -> Response:
    """Users ordered by points, 50 per page."""
    if page is not None and cursor is not None and page != cursor:
        raise UnprocessableError("page and cursor name different pages", field="cursor")
    return await serve(request, pages, resource("leaderboard", str(page or cursor or 1)))


@_page(
    "/api/predictions",
    "predictions_active",
    "Matches to predict, or a user's predictions",
    _document(answers.MatchesToPredict, answers.PredictionsOfUser),
    about=str(PREDICTION_DAYS),
)
@access(Role.VIEWER, Scope.LEAGUE, OwnedBy.USER, limit=RateLimit.NONE, cost=0)
async def get_predictions(
    request: Request,
    called: Called,
    pages: WiredPages,
    days: Annotated[int, Query(ge=1, le=DAYS_MAX, description="how many days ahead")] = PREDICTION_DAYS,
    user: Annotated[str | None, Query(description="return this user's private predictions")] = None,
) -> Response:
    """Matches of the next days with their votes. With `user`: that user's predictions and their outcomes."""
    if user is None:
        called.note_checked()
        return await serve(request, pages, resource("predictions_active", str(days)))
    called.user(user, field="user")
    return await serve(request, pages, resource("predictions_user", user))


@_route(
    "/api/users/{user:id}/achievements",
    "Get a user's achievements; supports ETags",
    _document(answers.Achievements) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.LEAGUE, OwnedBy.USER, limit=RateLimit.NONE, cost=0)
async def get_achievements(request: Request, user: User, pages: WiredPages) -> Response:
    """The user's achievements, and the progress towards the others."""
    return await serve(request, pages, resource("achievements", user))


@_page("/api/ads", "ads", "All advertisements", _document(answers.Advertisements))
@declared(_READ)
async def get_ads(request: Request, pages: WiredPages) -> Response:
    """All advertisements ordered by id, each with its content."""
    return await serve(request, pages, resource("ads"))
