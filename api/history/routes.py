"""The history of metrics over HTTP: a metric over a span of the last day, for all or for one consumer group or topic.

Invariant: the values of another application's group or topic are recorded for a day after a request for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from highwater.api.core.access import Access, OwnedBy, Scope, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.errors import NotFoundError, UnprocessableError
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Services, Wired
from highwater.api.core.times import time_of
from highwater.api.history.answers import History
from highwater.connectors.history.samples import samples, samples_of, watch
from highwater.connectors.kafka.memberships import NO_GROUP, membership
from highwater.connectors.kafka.resetting import group_named, own_groups
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.topics import all_topics
from highwater.streams.history import (
    GROUP_LAG,
    KEPT_MS,
    METRICS,
    TOPIC_RATE,
    Grid,
    Metric,
    Sample,
    grid_of,
    of_label,
    values_of,
)
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["system"], route_class=GuardedRoute)

HISTORY = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.CALLER, cost=1)
_SPAN_MS = 3_600_000
_CHARACTERS_MAX = 40
_Begin = Annotated[
    str | None,
    Query(alias="from", max_length=_CHARACTERS_MAX, description="ISO 8601; by default an hour before the end."),
]
_End = Annotated[str | None, Query(alias="to", max_length=_CHARACTERS_MAX, description="ISO 8601; by default now.")]


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
    begin: _Begin = None,
    end: _End = None,
) -> Response:
    """A value per step, null if nothing was recorded. Samples are taken every minute and kept for 24 hours."""
    grid = _grid(services, begin, end)
    found = await samples(services.database.require(), metric, grid)
    return _answer(METRICS[metric], found, grid)


@router.get(
    "/api/groups/{group:id}/history",
    summary="Get the history of a consumer group's lag over the last day",
    response_model=None,
    responses={**answer(History), **problems(NotFoundError)},
)
@declared(HISTORY)
async def get_group_history(group: str, services: Wired, begin: _Begin = None, end: _End = None) -> Response:
    """The lag in all, and by partition (`topic/partition`); null where nothing was recorded.

    A group of another application is recorded from the first request on, and until a day after the last; up to 20 groups are.
    """
    grid = _grid(services, begin, end)
    pool = services.database.require()
    name = group_named(group, await own_groups(pool))
    if not name.is_own:
        if (await membership(services.admin, name.kafka_group)).state == NO_GROUP:
            raise NotFoundError(f"there is no consumer group {group[:250]!r}")
        await watch(pool, "group", name.name, services.clock())
    return _answer(GROUP_LAG, await samples_of(pool, GROUP_LAG.name, name.name, grid), grid)


@router.get(
    "/api/topics/{topic:id}/history",
    summary="Get the history of a topic's rate over the last day",
    response_model=None,
    responses={**answer(History), **problems(NotFoundError)},
)
@declared(HISTORY)
async def get_topic_history(topic: str, services: Wired, begin: _Begin = None, end: _End = None) -> Response:
    """The events appended per second; null where nothing was recorded.

    A topic of another application is recorded from the first request on, and until a day after the last; up to 20 topics are.
    """
    grid = _grid(services, begin, end)
    pool = services.database.require()
    if any(one.name == topic for one in all_topics()):
        return _answer(TOPIC_RATE, of_label(await samples(pool, "rate", grid), topic), grid)
    if topic not in await services.admin.partition_counts():
        raise NotFoundError(f"there is no topic {topic[:250]!r} on the broker")
    await watch(pool, "topic", topic, services.clock())
    return _answer(TOPIC_RATE, await samples_of(pool, TOPIC_RATE.name, topic, grid), grid)


def _grid(services: Services, begin: str | None, end: str | None) -> Grid:
    """Return the steps of the requested span.

    Raises:
        UnprocessableError: one of them is not a time, or the span is longer than a day.
    """
    to_ms = services.clock() if end is None else time_of(end, "to")
    from_ms = to_ms - _SPAN_MS if begin is None else time_of(begin, "from")
    if not 0 < to_ms - from_ms <= KEPT_MS:
        raise UnprocessableError("from is before to, and at most 24 hours before it", field="from", reason="bad_span")
    return grid_of(from_ms, to_ms)


def _answer(metric: Metric, found: Sequence[Sample], grid: Grid) -> Response:
    document = _document(metric, values_of(metric, found, grid), grid)
    return uncached(document)


def _document(metric: Metric, found: Mapping[str, Sequence[float | None]], grid: Grid) -> dict[str, Any]:
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
