"""Gathers the state of consumer groups and assembles the API's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from highwater.api.broker.answers import ConsumerGroup, GroupReset, ListedGroup
from highwater.api.broker.sources import Sources
from highwater.api.core.errors import ConflictError, NotFoundError, UnprocessableError
from highwater.connectors.kafka.groups import Standing, kafka_group_of, standings
from highwater.connectors.kafka.memberships import (
    GROUPS_ASKED_MAX,
    NO_GROUP,
    Membership,
    committed_in,
    listed_groups,
    membership,
    standings_by_group,
)
from highwater.connectors.kafka.reading import Place
from highwater.connectors.kafka.resetting import (
    Chosen,
    GroupName,
    GroupRunningError,
    NoSuchGroupError,
    NotReadError,
    OffsetsRefusedError,
    ResetPlan,
    apply_reset,
    group_named,
    own_groups,
    parse_target,
    plan_reset,
    standings_of,
)


async def all_groups(sources: Sources) -> list[ListedGroup]:
    """Return every group of the catalogue and every group that Kafka knows.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    pool, client = sources.require_pool(), sources.client
    own = await own_groups(pool)
    states = {one.kafka_group: one.state for one in await listed_groups(sources.admin)}
    stand, others = await asyncio.gather(
        standings(client, pool, own), _lags_of_others(sources, [one for one in states if _is_foreign(one, own)])
    )
    found = [
        _listed(GroupName(name, kafka_group_of(name), is_own=True), states, lag_of(rows))
        for name, rows in sorted(stand.items())
    ]
    return found + [
        _listed(GroupName(name, name, is_own=False), states, others.get(name))
        for name in sorted(states)
        if _is_foreign(name, own)
    ]


def _is_foreign(kafka_group: str, own: Mapping[str, Sequence[str]]) -> bool:
    return not group_named(kafka_group, own).is_own


def _listed(group: GroupName, states: Mapping[str, str], lag: int | None) -> ListedGroup:
    return {
        "group": group.name,
        "kafka_group": group.kafka_group,
        "is_catalogued": group.is_own,
        "state": states.get(group.kafka_group, NO_GROUP),
        "lag": lag,
    }


def lag_of(rows: Sequence[Standing]) -> int | None:
    """Return the number of events that a group has not read; None if it has read nothing."""
    return None if all(one.next is None for one in rows) else sum(one.events for one in rows)


async def _lags_of_others(sources: Sources, groups: Sequence[str]) -> dict[str, int]:
    counts = await sources.admin.partition_counts()
    places = [(topic, number) for topic, count in counts.items() for number in range(count)]
    committed = await committed_in(sources.client, groups[:GROUPS_ASKED_MAX], places)
    found = await standings_by_group(sources.admin, committed)
    return {group: sum(one.events for one in rows) for group, rows in found.items()}


async def one_group(sources: Sources, named: str) -> ConsumerGroup:
    """Return a group with its members and partitions.

    Raises:
        NotFoundError: neither the catalogue nor Kafka has such a group.
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    pool, client = sources.require_pool(), sources.client
    own = await own_groups(pool)
    group = group_named(named, own)
    rows, members = await asyncio.gather(
        standings_of(sources.admin, client, pool, group, own), membership(sources.admin, group.kafka_group)
    )
    if not group.is_own and not rows and members.state == NO_GROUP:
        raise NotFoundError(f"there is no consumer group {named[:250]!r}")
    return document_of(group, rows, members)


def document_of(group: GroupName, rows: Sequence[Standing], found: Membership) -> ConsumerGroup:
    """Assemble the answer."""
    readers: dict[Place, str] = {place: one.client_id for one in found.members for place in one.assignment}
    return {
        **_listed(group, {found.kafka_group: found.state}, lag_of(rows)),
        "assignor": found.assignor,
        "coordinator": found.coordinator,
        "auto_offset_reset": "earliest" if group.is_own else "unknown",
        "members": [
            {
                "member_id": one.member_id,
                "client_id": one.client_id,
                "host": one.host,
                "instance_id": one.instance_id,
                "assignment": [{"topic": topic, "partition": partition} for topic, partition in one.assignment],
            }
            for one in found.members
        ],
        "partitions": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "next": one.next,
                "end": one.range.high,
                "lag": one.events,
                "member": readers.get((one.topic, one.partition)),
                "stopped": None if one.stopped is None else one.stopped.text,
            }
            for one in rows
        ],
    }


async def planned_reset(sources: Sources, named: str, to: str, chosen: Chosen, now_ms: int) -> ResetPlan:
    """Return what a reset of a group would change.

    Raises:
        NotFoundError: there is no such group.
        UnprocessableError: it does not read the chosen topics, or `to` is not a position.
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    try:
        target = parse_target(to, now_ms)
    except (ValueError, OverflowError) as error:
        raise UnprocessableError(
            f"{to[:100]!r} is neither earliest, latest, an offset nor a time", field="to"
        ) from error
    if chosen.partitions and len(chosen.topics) != 1:
        raise UnprocessableError("partitions need exactly one topic", field="partitions")
    try:
        return await plan_reset(sources.admin, sources.client, sources.require_pool(), named, target, chosen)
    except NoSuchGroupError as error:
        raise NotFoundError(str(error)) from error
    except NotReadError as error:
        raise UnprocessableError(str(error), field="topics") from error


async def executed_reset(sources: Sources, named: str, to: str, chosen: Chosen, now_ms: int) -> GroupReset:
    """Reset a group.

    Raises:
        ConflictError: it has live members; nothing was changed.
        NotFoundError, UnprocessableError, UnavailableError: as for `planned_reset`.
    """
    plan = await planned_reset(sources, named, to, chosen, now_ms)
    try:
        await apply_reset(sources.client, sources.require_pool(), plan)
    except (GroupRunningError, NotReadError, OffsetsRefusedError) as error:
        raise ConflictError(str(error)) from error
    return reset_document(plan, is_executed=True)


def reset_document(plan: ResetPlan, *, is_executed: bool) -> GroupReset:
    """Assemble the answer."""
    return {
        "group": plan.group.name,
        "executed": is_executed,
        "live_members": plan.members,
        "partitions": [
            {"topic": one.topic, "partition": one.partition, "before": one.before, "after": one.after}
            for one in plan.steps
        ],
    }
