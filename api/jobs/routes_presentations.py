"""Views of decks (R2.42, R2.43).

Invariant: a view is an event first; its part of the displayed number may be lost with Redis, the stored part may not.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.auth import Role
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.publishing import Positions
from highwater.api.core.resources import DECK_OWNER
from highwater.api.core.services import Wired
from highwater.api.core.uuids import canonical_uuid
from highwater.api.jobs.services import WiredJobs
from highwater.schemas.jobs import VIEW_RECORDED
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


async def _presentation_id(presentation: Annotated[str, Path(description="the id of the job that made it")]) -> str:
    return canonical_uuid("presentation_id", presentation)


@router.post(
    "/api/presentations/{presentation}/views", status_code=HTTPStatus.ACCEPTED, summary="Count a view of a presentation"
)
# Viewing is reading: a caller that may read a deck may count a view.
@access(Role.VIEWER, Scope.JOBS, OwnedBy.DECK, limit=RateLimit.PLAN, cost=1)
async def post_view(
    presentation: Annotated[str, Depends(_presentation_id)], called: Called, services: Wired, jobs: WiredJobs
) -> Positions:
    """The view is shown at once and stored within a minute."""
    await called.found(DECK_OWNER, presentation)
    is_shown = await jobs.views.raised(presentation)
    event = {"presentation_id": presentation, "ts": services.clock()}
    try:
        # Its sink gathers for a minute, and is not waited for.
        positions = await services.publisher.one(VIEW_RECORDED, event, sink_wait_ms=0)
    except BaseException:
        if is_shown:
            await jobs.views.lower({presentation: 1})
        raise
    return Positions(positions=positions)
