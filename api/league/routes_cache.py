"""Operations on the cache of league pages for operators and schedulers: prewarm it, and judge its size.

Invariant: nothing is built here. A request becomes an event, and the materializer builds documents (R4.32).
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from highwater.api.core.access import Access, Scope, access, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.errors import UnauthorizedError
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Wired
from highwater.api.league.answers import CacheVerdict
from highwater.api.league.services import WiredLeague
from highwater.connectors.postgres.pool import transaction
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.league.resources import LEAGUE_RULES

router = APIRouter(tags=["cache"], route_class=GuardedRoute)

PREWARM = "cache.prewarm-requested"
TOKEN_FIELD = "x-prewarm-token"  # noqa: S105 - the name of a field, no secret
_REFUSED = "x-prewarm-token is missing or wrong, or CACHE_PREWARM_TOKEN is not set"


class Prewarmed(BaseModel):
    """Seasons and pages to be prewarmed, and the positions of the events that request it."""

    seasons: list[str]
    keys: list[str]
    positions: list[str]


def _check_token(request: Request, expected: str | None) -> None:
    """Compare tokens as bytes in constant time; header fields are bytes that were decoded as latin-1.

    Raises:
        UnauthorizedError: the token is wrong, or none is set.
    """
    sent = request.headers.get(TOKEN_FIELD, "").encode("latin-1")
    if expected is None or not hmac.compare_digest(sent, expected.encode()):
        raise UnauthorizedError(_REFUSED, headers={"WWW-Authenticate": 'Token realm="prewarm"'})


@router.post(
    "/api/cache/prewarm",
    status_code=HTTPStatus.ACCEPTED,
    summary="Prewarm the pages of seasons that play soon",
    responses=problems(UnauthorizedError),
)
@declared(Access(None, token=TOKEN_FIELD, limit=RateLimit.ADDRESS, cost=1))
async def post_prewarm(
    request: Request,
    services: Wired,
    league: WiredLeague,
    x_prewarm_token: Annotated[str | None, Header(description="`CACHE_PREWARM_TOKEN`")] = None,  # noqa: ARG001
) -> Prewarmed:
    """For an external scheduler, before matches. Authorized by the token. Unchanged pages keep their version."""
    _check_token(request, services.settings.prewarm_token)
    now_ms = services.clock()
    async with transaction(services.database.require()) as tx:
        built = await league.build_window(tx, "", now_ms)
    windows = orjson.loads(built.payload)["windows"] if built is not None else {}
    seasons = [season for season, spans in windows.items() if any(end_ms > now_ms for _, end_ms in spans)]
    events = [{"season": season, "reason": "endpoint", "requested_at": now_ms} for season in seasons]
    positions = await services.publisher.commands(PREWARM, events)
    keys = [page.key for season in seasons for page in LEAGUE_RULES.prewarmed_pages(season)]
    return Prewarmed(seasons=seasons, keys=keys, positions=positions)


@router.get(
    "/api/cache/verdict",
    summary="Check whether the cache is large enough (admin)",
    response_model=None,
    responses=answer(CacheVerdict),
)
@access(Role.ADMIN, Scope.SYSTEM, limit=RateLimit.CALLER, cost=1)
async def get_verdict(league: WiredLeague) -> Response:
    """Counters of Redis, PostgreSQL and this process, and whether a larger Redis is advised."""
    document: dict[str, Any] = await league.monitor.report()
    return uncached(document)
