"""The history of figures over HTTP: a metric over a span of the last day."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Response

from highwater.api.core.access import Access, Scope, Whose, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import CACHE_NEVER, JSON
from highwater.api.core.errors import UnprocessableError
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.services import Services, Wired
from highwater.api.history.answers import History
from highwater.connectors.history.samples import samples
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.streams.history import KEPT_MS, METRICS, Metric, grid_of, values_of
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["system"], route_class=GuardedRoute)

HISTORY = Access(Role.VIEWER, Scope.SYSTEM, Whose.DEPLOYMENT, limit=RateLimit.CALLER, cost=1)
_SPAN_MS = 3_600_000
_CHARACTERS_MAX = 40


@router.get(
    "/api/history",
    summary="Get the history of a metric over the last day",
    response_model=None,
    responses=answer(History),
)
@declared(HISTORY)
async def get_history(
    services: Wired,
    metric: Annotated[
        Literal["rate", "lag", "lag_seconds", "stage_seconds", "hit_ratio"],
        Query(description="Which metric; `about` of the answer says what it counts."),
    ],
    begin: Annotated[
        str | None,
        Query(alias="from", max_length=_CHARACTERS_MAX, description="ISO 8601; by default an hour before the end."),
    ] = None,
    end: Annotated[
        str | None, Query(alias="to", max_length=_CHARACTERS_MAX, description="ISO 8601; by default now.")
    ] = None,
) -> Response:
    """A value per step, null if nothing was recorded. Samples are taken every minute and kept for 24 hours."""
    to_ms = services.clock() if end is None else _time(end, "to")
    from_ms = to_ms - _SPAN_MS if begin is None else _time(begin, "from")
    if not 0 < to_ms - from_ms <= KEPT_MS:
        raise UnprocessableError("from is before to, and at most 24 hours before it", field="from", reason="bad_span")
    found = await history(services, METRICS[metric], from_ms, to_ms)
    return Response(orjson.dumps(found), headers={"Cache-Control": CACHE_NEVER}, media_type=JSON)


async def history(services: Services, metric: Metric, from_ms: int, to_ms: int) -> dict[str, Any]:
    """The answer for a span.

    Raises:
        UnavailableError: PostgreSQL does not answer.
    """
    grid = grid_of(from_ms, to_ms)
    found = values_of(metric, await samples(services.database.require(), metric.name, grid), grid)
    return {
        "metric": metric.name,
        "title": metric.title,
        "about": metric.about,
        "unit": metric.unit,
        "label": metric.label,
        "begin": iso_from_ms(grid.from_ms),
        "end": iso_from_ms(grid.to_ms),
        "step_seconds": grid.step_ms // 1000,
        "series": [{"name": name, "values": values} for name, values in found.items()],
    }


def _time(text: str, field: str) -> int:
    try:
        return ms_from_iso(text)
    except ValueError as error:
        raise UnprocessableError(f"{field} is not an ISO 8601 time: {error}", field=field, reason="bad_time") from error
