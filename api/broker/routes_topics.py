"""Topics over HTTP: the list, and one with its partitions, configuration, readers and schema."""

from __future__ import annotations

from fastapi import APIRouter

from highwater.api.broker.access import READ
from highwater.api.broker.answers import BrokerTopic, ListedTopics
from highwater.api.broker.sources import Sources
from highwater.api.broker.topics import all_topics, one_topic
from highwater.api.core.access import declared
from highwater.api.core.answers import answer
from highwater.api.core.errors import NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Wired

router = APIRouter(tags=["broker"], route_class=GuardedRoute)


@router.get("/api/topics", summary="List the topics on the broker", response_model=None, responses=answer(ListedTopics))
@declared(READ)
async def get_topics(called: Called, services: Wired) -> ListedTopics:
    """Lists every topic, also those that are not in the catalogue."""
    del called
    return {"topics": await all_topics(Sources.of(services))}


@router.get(
    "/api/topics/{topic:id}",
    summary="Describe a topic",
    response_model=None,
    responses={**answer(BrokerTopic), **problems(NotFoundError)},
)
@declared(READ)
async def get_topic(topic: str, called: Called, services: Wired) -> BrokerTopic:
    """Describes a topic on the broker: configuration, partitions with offsets and sizes, consumer groups with lag, and schema."""
    del called
    return await one_topic(Sources.of(services), topic)
