"""Writes of feeds: each is an event first, and answers with its position."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import Access, Scope, Whose, access, declared
from highwater.api.core.auth import Role
from highwater.api.core.guard import GuardedRoute, User
from highwater.api.core.openapi import CHANNEL, ID
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Wired
from highwater.api.feeds.known_users import require_known_user
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["feeds"], route_class=GuardedRoute)
ACCEPTED = HTTPStatus.ACCEPTED
# Also what the dashboard offers its buttons by.
REBUILD = Access(Role.ADMIN, Scope.FEEDS, Whose.USER, limit=RateLimit.PLAN, cost=10)
ERASE = Access(Role.ADMIN, Scope.ADMIN, Whose.USER, limit=RateLimit.CALLER, cost=1)


class Subscriptions(BaseModel):
    """The whole set of channels that a user is subscribed to."""

    model_config = ConfigDict(extra="forbid", strict=True)
    channels: list[Annotated[str, CHANNEL]] = Field(description="at most 1,000 ids")


class Plan(BaseModel):
    """A user's plan."""

    model_config = ConfigDict(extra="forbid", strict=True)
    plan: Annotated[str, ID]


async def _write(services: Wired, topic: str, event: dict[str, Any]) -> Positions:
    event["ts"] = services.clock()
    return Positions(positions=await services.publisher.one(topic, event))


@router.put("/api/users/{user:id}/subscriptions", status_code=ACCEPTED, summary="Replace a user's subscriptions")
@access(Role.EDITOR, Scope.FEEDS, Whose.USER, limit=RateLimit.CALLER, cost=1)
async def put_subscriptions(user: User, body: Subscriptions, services: Wired) -> Positions:
    """The channels given are the user's from now on, and no others."""
    channels = list(dict.fromkeys(body.channels))
    return await _write(services, "feeds.subscriptions-replaced", {"user_id": user, "channels": channels})


@router.put("/api/users/{user:id}/plan", status_code=ACCEPTED, summary="Change a user's plan")
@access(Role.EDITOR, Scope.FEEDS, Whose.USER, limit=RateLimit.CALLER, cost=1)
async def put_user_plan(user: User, body: Plan, services: Wired) -> Positions:
    """The plan decides how often the user's clusters are rebuilt (R0.10)."""
    return await _write(services, "feeds.plan-changed", {"user_id": user, "plan": body.plan})


@router.post("/api/users/{user:id}/activity", status_code=ACCEPTED, summary="Say that a user is active")
@access(Role.EDITOR, Scope.FEEDS, Whose.USER, limit=RateLimit.CALLER, cost=1)
async def post_activity(user: User, services: Wired) -> Positions:
    """Only active users are reclustered (R0.7)."""
    return await _write(services, "feeds.user-active", {"user_id": user})


@router.post("/api/users/{user:id}/rebuild", status_code=ACCEPTED, summary="Ask for a rebuild now (admin)")
@declared(REBUILD)
async def post_rebuild(
    user: User,
    services: Wired,
    response: Response,
    *,
    if_new: Annotated[bool, Query(description="only when it would change what the user is shown")] = False,
    force: Annotated[
        bool, Query(description="wins over `if_new`; takes a newer basis for the same insights too")
    ] = False,
) -> Positions:
    """A manual trigger: it rebuilds at any pending, 0 included. What comes out as it was keeps its version and its ETag,
    and where only the basis is newer (`skipped`, `only_basis_changed`) the version stays unless `force` is set.

    `Location` is where to ask what became of it. 404 for a user whom no event has told of.
    """
    await require_known_user(services, user)
    told = await _write(services, "feeds.rebuild-demanded", {"user_id": user, "force": force, "if_new": if_new})
    response.headers["Location"] = f"/api/users/{quote(user, safe='')}/rebuilds/{quote(told.positions[0], safe='')}"
    return told


@router.delete("/api/users/{user:id}/data", status_code=ACCEPTED, summary="Erase a user (admin)")
@declared(ERASE)
async def delete_data(user: User, services: Wired) -> Positions:
    """Everything kept of the user goes; resource versions go on growing."""
    return await _write(services, "feeds.user-erased", {"user_id": user})
