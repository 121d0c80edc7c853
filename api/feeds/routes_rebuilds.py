"""The outcome of a requested rebuild, by the position of the request."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Path, Request, Response

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.errors import BadRequestError, NotFoundError
from highwater.api.core.freshness import FEEDS_TOPICS, BeyondEndError
from highwater.api.core.guard import GuardedRoute, User
from highwater.api.core.services import Wired
from highwater.api.feeds.answers import RebuildDemand
from highwater.connectors.feeds.demands import Demand, demand_at
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import REBUILD_DEMANDED
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["feeds"], route_class=GuardedRoute)


@router.get(
    "/api/users/{user:id}/rebuilds/{position:path}",
    summary="Get the outcome of a requested rebuild",
    response_model=None,
    responses=answer(RebuildDemand),
)
@access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_rebuild(
    request: Request,
    user: User,
    position: Annotated[
        str,
        Path(
            description="position that `POST …/rebuild` returned; slashes may be encoded",
        ),
    ],
    services: Wired,
) -> Response:
    """`status` is pending; rebuilt (`cluster_version` was made); unchanged (it stayed); skipped or failed, with a `reason`."""
    asked = _position_of(position)
    if asked.partition >= TOPICS[REBUILD_DEMANDED].partitions:
        raise NotFoundError(f"{REBUILD_DEMANDED} has no partition {asked.partition}")
    await services.fresh(request, FEEDS_TOPICS)
    demand = await demand_at(services.database.require(), user, str(asked))
    if demand is None:
        # Its sink may be behind: a position that was just returned is waited for, and is never 404.
        try:
            await services.accounted(request, asked)
        except BeyondEndError:
            pass
        else:
            demand = await demand_at(services.database.require(), user, str(asked))
    if demand is None:
        raise NotFoundError(f"user {user!r} has no rebuild request at {asked}")
    return uncached(_document(user, demand))


def _position_of(text: str) -> Position:
    try:
        position = parse_position(unquote(text))
    except InvalidEventError as error:
        raise BadRequestError(str(error), field="position") from error
    if position.topic != REBUILD_DEMANDED:
        raise BadRequestError(f"{position} is not a position of {REBUILD_DEMANDED}", field="position")
    return position


def _document(user: str, demand: Demand) -> dict[str, Any]:
    finished_ms = demand.finished_at_ms
    return {
        "user_id": user,
        "position": demand.position,
        "status": demand.status,
        "reason": demand.reason,
        "cluster_version": demand.cluster_version,
        "request_position": demand.request_position,
        "demanded_at": iso_from_ms(demand.demanded_at_ms),
        "finished_at": None if finished_ms is None else iso_from_ms(finished_ms),
    }
