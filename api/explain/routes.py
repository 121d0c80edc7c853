"""Explains why a feed or a page is served as it is: `connectors/explain/explaining.py` over HTTP.

Invariant: who may read a resource may have it explained, nobody else; an explanation holds no text of users. It reads
the log, so few run at once, and clients should not poll it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, TypeAlias, TypeVar

from fastapi import APIRouter, Query, Request, Response

from highwater.api.core.access import Access, OwnedBy, Scope, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.errors import NotFoundError
from highwater.api.core.freshness import FEEDS_TOPICS
from highwater.api.core.guard import Called, GuardedRoute, User
from highwater.api.core.openapi import problems
from highwater.api.core.services import Services, Wired
from highwater.api.explain import answers
from highwater.connectors.explain.explaining import Explainer, UnknownResourceError
from highwater.connectors.explain.explanations import Explanation
from highwater.connectors.explain.feeds import CHANNELS_DEFAULT, CHANNELS_MAX
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.errors import UnavailableError
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.league.resources import resource_of

router = APIRouter(tags=["explain"], route_class=GuardedRoute)

Found = TypeVar("Found")
Ask: TypeAlias = Callable[[Explainer], Awaitable[Explanation]]
# Both operations, and the card of the dashboard. Each reads the log for about a second.
EXPLAIN = Access(Role.VIEWER, Scope.SYSTEM, OwnedBy.USER, limit=RateLimit.PLAN, cost=2)

_CLUSTER_CHARACTERS_MAX = 200
# Each holds a thread and a connection to the broker for about a second; more wait, and beyond the limit must
# retry.
AT_ONCE = 4
WAITING_MAX = 32
_slots = asyncio.Semaphore(AT_ONCE)
_waiting: set[object] = set()


@router.get(
    "/api/explain/feed/{user:id}",
    summary="Explain a user's feed",
    response_model=None,
    responses={**answer(answers.Explanation), **problems(NotFoundError)},
)
@declared(EXPLAIN)
async def explain_feed(
    request: Request,
    user: User,
    services: Wired,
    channels: Annotated[int, Query(ge=1, le=CHANNELS_MAX, description="channels to follow")] = CHANNELS_DEFAULT,
    cluster: Annotated[
        str | None, Query(max_length=_CLUSTER_CHARACTERS_MAX, description="explain this cluster of the feed instead")
    ] = None,
) -> Response:
    """The events that led to the feed, as a tree and as a chain; each with position, time and delay to the next.

    Of a cluster: the rebuilds in which its insights entered it, and the insights.
    """
    await services.fresh(request, FEEDS_TOPICS)
    if cluster is not None:
        return await _answer(services, lambda explainer: explainer.cluster(user, cluster, services.clock()))
    return await _answer(services, lambda explainer: explainer.feed(user, channels))


@router.get(
    "/api/explain/resource/{key:id}",
    summary="Explain a resource",
    response_model=None,
    responses=answer(answers.Explanation),
)
@declared(replace(EXPLAIN, owned_by=OwnedBy.KEY))
async def explain_resource(request: Request, key: str, called: Called, services: Wired) -> Response:
    """The events that led to a resource: `league:table:2025-26`, `md:{match}:live`, `ns:{namespace}`, `clusters:{user}`."""
    await called.key(key)
    found = resource_of(key)
    await services.fresh(request, FEEDS_TOPICS if found is None else found.kind.topics)
    return await _answer(services, lambda explainer: explainer.resource(key))


def explainer_of(services: Services) -> Explainer:
    """Return the explainer for the services of an application; the dashboard's page uses it too.

    Raises:
        UnavailableError: a service is unavailable.
    """
    learn = Registry(services.settings.registry_access()).text_of
    return Explainer(services.database.require(), services.registry.require(), services.settings.kafka_client(), learn)


async def explained(services: Services, ask: Callable[[Explainer], Awaitable[Found]]) -> Found:
    """Run an explanation, in turn.

    Raises:
        NotFoundError: nothing is stored under the key.
        UnavailableError: a service is unavailable, or too many requests run.
    """
    if len(_waiting) >= WAITING_MAX:
        raise UnavailableError("too many explanations are in progress")
    place = object()
    _waiting.add(place)
    try:
        async with _slots:
            return await ask(explainer_of(services))
    except UnknownResourceError as error:
        raise NotFoundError(str(error)) from error
    finally:
        _waiting.discard(place)


async def _answer(services: Services, ask: Ask) -> Response:
    document = (await explained(services, ask)).document(services.settings.trace_url)
    return uncached(document)
