"""The operation of operators on the cache of pages: invalidate.

Invariant: nothing is built here. A request becomes an event, and the materializer builds documents (R4.32).
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import Scope, access
from highwater.api.core.auth import Role
from highwater.api.core.errors import UnprocessableError
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.publishing import Positions
from highwater.api.core.services import Wired
from highwater.api.pages.services import WiredPages
from highwater.streams.checks import check_id
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["cache"], route_class=GuardedRoute)

INVALIDATION = "cache.invalidation-requested"
# One event each in one request; a season has fewer documents.
KEYS_MAX = 1_000


class Keys(BaseModel):
    """Keys of pages."""

    model_config = ConfigDict(extra="forbid", strict=True)
    keys: list[str] = Field(min_length=1, max_length=KEYS_MAX)


@router.post("/api/cache/invalidate", status_code=HTTPStatus.ACCEPTED, summary="Invalidate pages (admin)")
@access(Role.ADMIN, Scope.SYSTEM, limit=RateLimit.PLAN, cost=1)
async def post_invalidate(body: Keys, services: Wired, pages: WiredPages) -> Positions:
    """Forces a new version even if the content is unchanged."""
    keys = list(dict.fromkeys(body.keys))
    for key in keys:
        found = pages.documents.page_of(key)
        if found is None:
            raise UnprocessableError(f"{key[:250]!r} is not a key of a document", field="keys")
        if found.id:
            check_id("keys", found.id)
    now_ms = services.clock()
    events = [{"key": key, "requested_at": now_ms} for key in keys]
    return Positions(positions=await services.publisher.commands(INVALIDATION, events))
