"""Consumer groups over HTTP: the list, one group with members and lag, and a reset: planned by GET, executed by POST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.broker.access import READ, RESET
from highwater.api.broker.answers import ConsumerGroup, GroupReset, ListedGroups
from highwater.api.broker.groups import all_groups, executed_reset, one_group, planned_reset, reset_document
from highwater.api.broker.sources import Sources
from highwater.api.core.access import declared
from highwater.api.core.answers import answer
from highwater.api.core.errors import ConflictError, NotFoundError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.services import Wired
from highwater.connectors.kafka.resetting import Chosen

router = APIRouter(tags=["broker"], route_class=GuardedRoute)

_PLACE = "`earliest`, `latest`, an offset, a time (ISO 8601), or an age such as `-90m`."
_PLACE_CHARACTERS_MAX = 100
# A group reads a few topics of up to 64 partitions each.
_NAMED_MAX = 1_000
_Partition = Annotated[int, Field(ge=0, le=999_999)]


class ResetRequest(BaseModel):
    """Where a group continues reading. No topics: all topics of the group; partitions need exactly one topic."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(min_length=1, max_length=_PLACE_CHARACTERS_MAX, description=_PLACE)
    topics: list[str] = Field(default_factory=list, max_length=_NAMED_MAX)
    partitions: list[_Partition] = Field(default_factory=list, max_length=_NAMED_MAX)


@router.get("/api/groups", summary="List consumer groups", response_model=None, responses=answer(ListedGroups))
@declared(READ)
async def get_groups(called: Called, services: Wired) -> ListedGroups:
    """Lists the groups of the catalogue and every other group that Kafka knows, with state and lag."""
    del called
    return {"groups": await all_groups(Sources.of(services))}


@router.get(
    "/api/groups/{group:id}",
    summary="Describe a consumer group",
    response_model=None,
    responses={**answer(ConsumerGroup), **problems(NotFoundError)},
)
@declared(READ)
async def get_group(group: str, called: Called, services: Wired) -> ConsumerGroup:
    """Describes a group: members with hosts and assignments, and the lag of each partition."""
    del called
    return await one_group(Sources.of(services), group)


@router.get(
    "/api/groups/{group:id}/reset",
    summary="Plan a reset of a consumer group",
    response_model=None,
    responses={**answer(GroupReset), **problems(NotFoundError)},
)
@declared(READ)
async def get_group_reset(
    group: str,
    called: Called,
    services: Wired,
    to: Annotated[str, Query(min_length=1, max_length=_PLACE_CHARACTERS_MAX, description=_PLACE)],
    topic: Annotated[list[str] | None, Query(max_length=_NAMED_MAX, description="Only these topics.")] = None,
    partition: Annotated[
        list[_Partition] | None, Query(max_length=_NAMED_MAX, description="Only these; needs exactly one topic.")
    ] = None,
) -> GroupReset:
    """Shows what the reset would change; nothing is changed."""
    del called
    plan = await planned_reset(Sources.of(services), group, to, Chosen(topic or (), partition or ()), services.clock())
    return reset_document(plan, is_executed=False)


@router.post(
    "/api/groups/{group:id}/reset",
    summary="Reset a consumer group",
    response_model=None,
    responses={**answer(GroupReset), **problems(NotFoundError, ConflictError)},
)
@declared(RESET)
async def post_group_reset(group: str, body: ResetRequest, called: Called, services: Wired) -> GroupReset:
    """Sets where the group reads next. Refused while the group has live members; recorded as an action."""
    del called
    return await executed_reset(
        Sources.of(services), group, body.to, Chosen(body.topics, body.partitions), services.clock()
    )
