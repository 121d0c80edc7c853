"""How the pipeline of queries does: times, failures, sizes and what its calls cost (R1.38 to R1.41)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from highwater.api.core.access import Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.services import Wired
from highwater.api.queries.answers import QueryMetrics
from highwater.connectors.queries import metrics as query_metrics
from highwater.streams.identity.rate_limits import RateLimit

# A day: what is older belongs to whoever collects /metrics.
MINUTES_MAX = 1_440

router = APIRouter(tags=["queries"], route_class=GuardedRoute)


@router.get(
    "/api/queries/metrics",
    summary="Get metrics of the query pipeline",
    response_model=None,
    responses=answer(QueryMetrics),
)
@access(Role.VIEWER, Scope.QUERIES, limit=RateLimit.CALLER, cost=1)
async def get_query_metrics(
    services: Wired,
    minutes: Annotated[int, Query(ge=1, le=MINUTES_MAX, description="how many minutes back")] = 60,
) -> Response:
    """Covers the last minutes. Row counts are PostgreSQL's estimates; everything else is counted."""
    document = await query_metrics.report(services.database.require(), services.clock(), minutes)
    return uncached(document)
