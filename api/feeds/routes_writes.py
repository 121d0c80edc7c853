"""Writes of feeds: each publishes an event first, and answers with its position."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import Access, OwnedBy, Scope, access, declared
from highwater.api.core.auth import Role
from highwater.api.core.errors import UnprocessableError
from highwater.api.core.guard import GuardedRoute, User
from highwater.api.core.openapi import CHANNEL, ID
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Wired
from highwater.api.feeds.known_users import require_known_user
from highwater.api.feeds.services import WiredFeeds
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["feeds"], route_class=GuardedRoute)
ACCEPTED = HTTPStatus.ACCEPTED
# The dashboard also decides by it which buttons it shows.
REBUILD = Access(Role.ADMIN, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.PLAN, cost=10)
ERASE = Access(Role.ADMIN, Scope.ADMIN, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)


class Subscriptions(BaseModel):
    """All channels that the user subscribes to."""

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
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def put_subscriptions(user: User, body: Subscriptions, services: Wired) -> Positions:
    """The given channels replace the user's subscriptions."""
    channels = list(dict.fromkeys(body.channels))
    return await _write(services, "feeds.subscriptions-replaced", {"user_id": user, "channels": channels})


@router.put(
    "/api/users/{user:id}/subscriptions/{channel:id}", status_code=ACCEPTED, summary="Subscribe a user to a channel"
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def put_subscription(user: User, channel: str, services: Wired) -> Positions:
    """The user's other subscriptions stay. The channel may be one that has no insights yet."""
    return await _write(services, "feeds.subscription-changed", _subscription(user, channel, subscribed=True))


@router.delete(
    "/api/users/{user:id}/subscriptions/{channel:id}", status_code=ACCEPTED, summary="Unsubscribe a user from a channel"
)
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def delete_subscription(user: User, channel: str, services: Wired) -> Positions:
    """The user's other subscriptions stay."""
    return await _write(services, "feeds.subscription-changed", _subscription(user, channel, subscribed=False))


def _subscription(user: str, channel: str, *, subscribed: bool) -> dict[str, Any]:
    return {"user_id": user, "channel_id": channel, "subscribed": subscribed}


@router.put("/api/users/{user:id}/plan", status_code=ACCEPTED, summary="Change a user's plan")
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.DEPLOYMENT, limit=RateLimit.CALLER, cost=1)
async def put_user_plan(user: User, body: Plan, services: Wired, feeds: WiredFeeds) -> Positions:
    """The plan decides how often the user's clusters are rebuilt, and limits its calls; a bound key does not set it.

    It must be one of the policy's.
    """
    known = feeds.policy.plans
    if body.plan not in known:
        told = f"there is no plan {body.plan!r}; the plans are {', '.join(sorted(known))}"
        raise UnprocessableError(told, field="plan", reason="unknown_plan")
    return await _write(services, "feeds.plan-changed", {"user_id": user, "plan": body.plan})


@router.post("/api/users/{user:id}/activity", status_code=ACCEPTED, summary="Report that a user is active")
@access(Role.EDITOR, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def post_activity(user: User, services: Wired) -> Positions:
    """Only active users' clusters are rebuilt."""
    return await _write(services, "feeds.user-active", {"user_id": user})


@router.post("/api/users/{user:id}/rebuild", status_code=ACCEPTED, summary="Request a rebuild (admin)")
@declared(REBUILD)
async def post_rebuild(
    user: User,
    services: Wired,
    response: Response,
    *,
    if_new: Annotated[bool, Query(description="rebuild only if the user would see a change")] = False,
    force: Annotated[bool, Query(description="overrides `if_new`")] = False,
) -> Positions:
    """Requests a rebuild at any number of pending insights, also at 0. If nothing changes, version and ETag stay as they are.
    It takes vectors of a newer embedding model version, even if nothing else is new; that version is `regrouped`.

    `Location` is the address of the outcome. 404 if the user is unknown.
    """
    await require_known_user(services, user)
    told = await _write(services, "feeds.rebuild-demanded", {"user_id": user, "force": force, "if_new": if_new})
    response.headers["Location"] = f"/api/users/{quote(user, safe='')}/rebuilds/{quote(told.positions[0], safe='')}"
    return told


@router.delete("/api/users/{user:id}/data", status_code=ACCEPTED, summary="Erase a user (admin)")
@declared(ERASE)
async def delete_data(user: User, services: Wired) -> Positions:
    """Deletes all data of the user. Versions of the user's resources never restart."""
    return await _write(services, "feeds.user-erased", {"user_id": user})
