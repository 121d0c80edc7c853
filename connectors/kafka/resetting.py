"""Sets where a consumer group reads next: a plan first, which changes nothing, then applied.

Invariant: for Highwater's own consumers the table `positions` and the group's offsets in Kafka are set to the same place,
never while the group has a live member, which would continue from its own place. A stopped partition is the exception:
nobody reads it, and its consumer checks whether it may continue. Groups of other applications, and the worker, have
their offsets only in Kafka.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from highwater.connectors.kafka.admin import REQUEST_SECONDS, Admin, LogRange, listed
from highwater.connectors.kafka.groups import (
    ALL_POSITIONS,
    WORKER,
    Standing,
    catalogued_groups,
    kafka_group_of,
    own_name,
    standings,
)
from highwater.connectors.kafka.memberships import foreign_standings
from highwater.connectors.kafka.reading import Place, kafka_error
from highwater.connectors.kafka.stopped import resume
from highwater.connectors.postgres.pool import transaction
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import HighwaterError, UnavailableError

if TYPE_CHECKING:
    import asyncpg

# Kafka's error for offsets of a group that is not empty.
_HAS_MEMBERS = frozenset({KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS})
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

SET_POSITIONS = """
INSERT INTO positions ("group", topic, partition, topic_id, next)
SELECT $1, topic, partition, topic_id, next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[]) AS wanted (topic, partition, topic_id, next)
ON CONFLICT ("group", topic, partition) DO UPDATE SET topic_id = EXCLUDED.topic_id, next = EXCLUDED.next
"""


class NoSuchGroupError(HighwaterError):
    """There is no consumer group of this name. Check the name; `highwater lag` lists the groups."""


class NotReadError(HighwaterError):
    """The group does not read this topic or partition. Choose one that it reads."""


class GroupRunningError(HighwaterError):
    """The group has live members, which would continue from their own offsets. Stop them first."""


class OffsetsRefusedError(HighwaterError):
    """Kafka refuses the offsets of the group. Its answer says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target: the first or last offset, a given offset, or the first record from a time on (`value` in ms)."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One partition of the plan; `before` None = the group had no commit there."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The topics and partitions to reset; empty means all."""

    topics: Sequence[str] = ()
    partitions: Sequence[int] = ()

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a partition is one of them."""
        return (not self.topics or topic in self.topics) and (not self.partitions or partition in self.partitions)


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group: `name` is that of the catalogue if it is ours, else Kafka's."""

    name: str
    kafka_group: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset changes. `members`: live ones, which block it; `is_committed`: in Kafka too."""

    group: GroupName
    steps: tuple[Step, ...]
    members: int
    is_committed: bool


def parse_target(text: str, now_ms: int) -> Target:
    """Parse `earliest`, `latest`, an offset, an ISO 8601 time, or one before now such as `-90m`.

    Raises:
        ValueError: it is none of these.
    """
    if text in ("earliest", "latest"):
        return Target("earliest" if text == "earliest" else "latest")
    if text.isascii() and text.isdecimal():
        return Target("offset", int(text))
    if ago := re.fullmatch(r"-(\d{1,9})([smhd])", text):
        return Target("time", now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    return Target("time", ms_from_iso(text))


def place_in(span: LogRange, target: Target, at_time: int | None) -> int:
    """Return the offset in a partition that holds `span`; `at_time` is the first offset from the target's time on, if any."""
    match target.kind:
        case "earliest":
            return span.low
        case "latest":
            return span.high
        case "offset":
            return min(max(target.value, span.low), span.high)
        case "time":
            return span.high if at_time is None else at_time


def group_named(text: str, own: Container[str]) -> GroupName:
    """Return the group of a name; `own` are our names, each of which also has a name in Kafka."""
    name = own_name(text)
    if name in own:
        return GroupName(name, kafka_group_of(name), is_own=True)
    return GroupName(text, text, is_own=False)


async def own_groups(pool: asyncpg.Pool[asyncpg.Record]) -> dict[str, list[str]]:
    """Return our groups with the topics that they read according to the catalogue; one that only has positions reads none."""
    found = catalogued_groups()
    for row in await pool.fetch(ALL_POSITIONS):
        found.setdefault(row["group"], [])
    return found


async def standings_of(
    admin: Admin,
    client: Mapping[str, str],
    pool: asyncpg.Pool[asyncpg.Record],
    group: GroupName,
    own: Mapping[str, list[str]],
) -> tuple[Standing, ...]:
    """Return the place of a group in each partition that it reads; none if it is unknown.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    if group.is_own:
        return (await standings(client, pool, {group.name: own[group.name]}))[group.name]
    return await foreign_standings(admin, client, group.kafka_group)


async def plan_reset(
    admin: Admin,
    client: Mapping[str, str],
    pool: asyncpg.Pool[asyncpg.Record],
    named: str,
    target: Target,
    chosen: Chosen,
) -> ResetPlan:
    """Return what a reset of a group would change.

    Raises:
        NoSuchGroupError: there is no such group.
        NotReadError: it does not read the chosen topics.
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    own = await own_groups(pool)
    group = group_named(named, own)
    found = await standings_of(admin, client, pool, group, own)
    if not found and not group.is_own:
        raise NoSuchGroupError(f"there is no group {named!r}; there are {', '.join(sorted(own))}")
    _refuse_unread(chosen, {(s.topic, s.partition) for s in found}, group.name)
    wanted = [s for s in found if chosen.has(s.topic, s.partition)]
    at_times = await _offsets_at(client, wanted, target)
    steps = tuple(
        Step(s.topic, s.partition, s.next, place_in(s.range, target, at_times.get((s.topic, s.partition))))
        for s in wanted
    )
    is_committed = not all(s.stopped for s in wanted)
    members = await live_members(client, group.kafka_group) if is_committed else 0
    return ResetPlan(group, steps, members, is_committed)


def _refuse_unread(chosen: Chosen, read: set[Place], group: str) -> None:
    topics = sorted({topic for topic, _ in read})
    for topic in chosen.topics:
        if topic not in topics:
            raise NotReadError(
                f"{group} does not read {topic!r}; it reads {', '.join(topics) or 'nothing that is on the broker'}"
            )
        for partition in chosen.partitions:
            if (topic, partition) not in read:
                raise NotReadError(f"{topic} has no partition {partition}")


async def apply_reset(client: Mapping[str, str], pool: asyncpg.Pool[asyncpg.Record], plan: ResetPlan) -> None:
    """Set the positions; Kafka refuses offsets of a live group, whose members commit them as they continue.

    Raises:
        GroupRunningError: it has live members, perhaps since the plan was made; nothing was changed.
        NotReadError: none of its topics is on the broker.
        OffsetsRefusedError: Kafka refuses an offset; no position was changed.
        UnavailableError: Kafka or PostgreSQL does not answer; no position was changed.
    """
    group, steps = plan.group, plan.steps
    if plan.members:
        raise GroupRunningError(f"{group.name} has live members ({plan.members}); stop them, then reset")
    if not steps:
        raise NotReadError(f"none of the topics of {group.name} is on the broker; run `highwater init`")
    if group.is_own and group.name != WORKER:
        ids = await Admin(client).topic_ids(sorted({step.topic for step in steps}))
        columns = (
            [step.topic for step in steps],
            [step.partition for step in steps],
            [ids[step.topic] for step in steps],
            [step.after for step in steps],
        )
        async with transaction(pool) as tx:
            await tx.execute(SET_POSITIONS, group.name, *columns)
            await resume(tx, group.name, [(step.topic, step.partition) for step in steps])
            # Before the transaction ends: if Kafka refuses, nothing changes here. A member that joins after Kafka
            # accepted them and has read the former positions is fenced by the new ones, and reads those.
            await _commit_offsets(client, plan)
    else:
        await _commit_offsets(client, plan)


async def _commit_offsets(client: Mapping[str, str], plan: ResetPlan) -> None:
    """Set the offsets in Kafka, if the plan has any."""
    if plan.is_committed:
        await asyncio.to_thread(set_offsets, client, plan.group.kafka_group, plan.steps)


async def _offsets_at(client: Mapping[str, str], standings: Sequence[Standing], target: Target) -> dict[Place, int]:
    """Return the first offset from the target's time on, for the partitions that have one."""
    if target.kind != "time" or not standings:
        return {}

    def ask() -> dict[Place, int]:
        asked = {
            TopicPartition(s.topic, s.partition): OffsetSpec.for_timestamp(max(0, target.value)) for s in standings
        }
        admin = AdminClient(dict(client))  # kept: without the client its futures would never be resolved
        try:
            futures = admin.list_offsets(asked, request_timeout=REQUEST_SECONDS)
            found = {(tp.topic, tp.partition): listed(future).offset for tp, future in futures.items()}
        except KafkaException as error:
            raise kafka_error(error) from error
        except TimeoutError:
            raise UnavailableError(f"Kafka does not list offsets within {REQUEST_SECONDS:g} s") from None
        return {place: offset for place, offset in found.items() if offset >= 0}

    return await asyncio.to_thread(ask)


async def live_members(client: Mapping[str, str], kafka_group: str) -> int:
    """Return the number of members of a group in Kafka.

    Raises:
        UnavailableError: Kafka does not answer.
    """

    def ask() -> int:
        admin = AdminClient(dict(client))
        future = admin.describe_consumer_groups([kafka_group], request_timeout=REQUEST_SECONDS)[kafka_group]
        try:
            return len(future.result(2 * REQUEST_SECONDS).members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise kafka_error(error) from error

    return await asyncio.to_thread(ask)


def set_offsets(client: Mapping[str, str], kafka_group: str, steps: Sequence[Step]) -> None:
    """Set the offsets of a group in Kafka; blocking. Positions in PostgreSQL stay.

    Raises:
        GroupRunningError: it has live members.
        OffsetsRefusedError: Kafka refuses an offset.
        UnavailableError: Kafka does not answer.
    """
    places = [TopicPartition(step.topic, step.partition, step.after) for step in steps]
    request = [ConsumerGroupTopicPartitions(kafka_group, places)]
    admin = AdminClient(dict(client))  # kept: without the client its futures would never be resolved
    try:
        futures = admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)
        for place in futures[kafka_group].result(2 * REQUEST_SECONDS).topic_partitions:
            if place.error is not None and place.error.code() in _HAS_MEMBERS:
                raise GroupRunningError(f"{kafka_group} has live members by now; stop them, then reset")
            if place.error is not None:
                raise OffsetsRefusedError(f"{place.topic}/{place.partition}: {place.error.str()}")
    except KafkaException as error:
        if error.args[0].code() in _HAS_MEMBERS:
            raise GroupRunningError(f"{kafka_group} has live members by now; stop them, then reset") from error
        raise kafka_error(error) from error
    except TimeoutError as error:  # of the future: the request got no answer
        raise UnavailableError("Kafka does not answer to the offsets of a group") from error
