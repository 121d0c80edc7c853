"""Consumer groups in Kafka: their state, their members with assignments, and the offsets of other applications' groups.

Invariant: nothing here writes, joins a group or commits. Offsets are read by `offsets.py`, never by the admin client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from highwater.connectors.kafka.admin import REQUEST_SECONDS, Admin
from highwater.connectors.kafka.groups import Standing
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.reading import Place, log_ranges_of
from highwater.connectors.kafka.refusal import unavailable

# Kafka's name for the state of an unknown group.
NO_GROUP = "dead"
# Groups whose offsets are read for one page: each takes some 20 ms of a thread.
GROUPS_ASKED_MAX = 200
_THREADS = 8


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as a list shows it: its name and state in Kafka."""

    kafka_group: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group; `instance_id`: of a static member."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Membership:
    """A group and its members. `assignor` is empty if nobody has joined."""

    kafka_group: str
    state: str
    assignor: str
    coordinator: str | None
    members: tuple[Member, ...]


async def listed_groups(admin: Admin) -> list[ListedGroup]:
    """Return every group that Kafka knows, by name.

    Raises:
        UnavailableError: the brokers do not answer.
    """
    return await asyncio.to_thread(_listed, admin)


def _listed(admin: Admin) -> list[ListedGroup]:
    with admin.asking("Kafka does not list its groups") as client:
        found = client.list_consumer_groups(request_timeout=REQUEST_SECONDS).result(2 * REQUEST_SECONDS)
        if found.errors and not found.valid:
            raise found.errors[0]
    return sorted(
        (ListedGroup(one.group_id, _word(one.state)) for one in found.valid), key=lambda group: group.kafka_group
    )


async def membership(admin: Admin, kafka_group: str) -> Membership:
    """Return the members of a group; for an unknown group `NO_GROUP` without members.

    Raises:
        UnavailableError: the brokers do not answer.
    """
    return await asyncio.to_thread(_membership, admin, kafka_group)


def _membership(admin: Admin, kafka_group: str) -> Membership:
    with admin.asking("Kafka does not describe its groups") as client:
        future = client.describe_consumer_groups([kafka_group], request_timeout=REQUEST_SECONDS)[kafka_group]
        try:
            found = future.result(2 * REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return Membership(kafka_group, NO_GROUP, "", None, ())
            raise
    members = tuple(
        Member(
            one.member_id,
            one.client_id,
            one.host.removeprefix("/"),
            one.group_instance_id,
            tuple(sorted((place.topic, place.partition) for place in one.assignment.topic_partitions)),
        )
        for one in sorted(found.members, key=lambda member: (member.client_id, member.member_id))
    )
    node = found.coordinator
    coordinator = None if node is None or node.id < 0 else f"{node.id} ({node.host}:{node.port})"
    return Membership(kafka_group, _word(found.state), found.partition_assignor or "", coordinator, members)


def _word(state: object) -> str:
    """Format `PREPARING_REBALANCING` as `preparing rebalancing`."""
    return str(getattr(state, "name", state)).lower().replace("_", " ")


async def foreign_standings(admin: Admin, client: Mapping[str, str], kafka_group: str) -> tuple[Standing, ...]:
    """Return the place of another application's group in every partition of the topics that it reads.

    These are the topics with a committed offset and those that its members are assigned.

    Raises:
        UnavailableError: the brokers do not answer.
    """
    offsets = await asyncio.to_thread(committed_offsets, client, kafka_group)
    members = (await membership(admin, kafka_group)).members
    assigned = {topic for member in members for topic, _ in member.assignment}
    return (await standings_by_group(admin, {kafka_group: offsets}, assigned))[kafka_group]


async def standings_by_group(
    admin: Admin, committed: Mapping[str, Mapping[Place, int]], topics: Iterable[str] = ()
) -> dict[str, tuple[Standing, ...]]:
    """Return the place of groups with these commits in every partition of the topics of their commits, and of `topics`.

    Raises:
        UnavailableError: the brokers do not answer.
    """
    read = {group: {topic for topic, _ in offsets} | set(topics) for group, offsets in committed.items()}
    ranges = await log_ranges_of(admin, sorted(set().union(*read.values())))
    return {
        group: tuple(
            Standing(*place, offsets.get(place), held)
            for place, held in sorted(ranges.items())
            if place[0] in read[group]
        )
        for group, offsets in committed.items()
    }


async def committed_in(
    client: Mapping[str, str], kafka_groups: Sequence[str], places: Iterable[Place]
) -> dict[str, dict[Place, int]]:
    """Return the offsets that groups have committed in these partitions, by group; groups without any are left out.

    Raises:
        UnavailableError: the brokers do not answer.
    """
    asked = sorted(places)

    def ask_all() -> dict[str, dict[Place, int]]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="offsets") as threads:
            found = threads.map(lambda group: _committed(client, group, asked), kafka_groups)
            return {group: offsets for group, offsets in zip(kafka_groups, found, strict=True) if offsets}

    return await asyncio.to_thread(ask_all)


def _committed(client: Mapping[str, str], kafka_group: str, places: Sequence[Place]) -> dict[Place, int]:
    consumer = Consumer(
        {**client, "client.id": "highwater-read", "group.id": kafka_group, "enable.auto.commit": False, "log_level": 4}
    )
    try:
        found = consumer.committed([TopicPartition(*place) for place in places], timeout=REQUEST_SECONDS)
    except KafkaException as error:
        raise unavailable(client, f"Kafka does not report offsets: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}
