"""Describes topics of the broker for people: partitions with their replicas, configuration, and sizes. Nothing here
writes.

Topics outside the catalogue are described in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from highwater.connectors.kafka.admin import REQUEST_SECONDS, Admin, LogRange
from highwater.connectors.kafka.log_dirs import Replica, replica_bytes
from highwater.schemas.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic as a list shows it. `replicas` is the lowest number of replicas of a partition, `out_of_sync` the number
    of replicas that lag.
    """

    name: str
    partitions: int
    replicas: int
    out_of_sync: int
    leaderless: int


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. `leader` None: it has none now; `size_bytes` None: its brokers did not report it."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    range: LogRange | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic. `is_default`: it was not set for this topic; a secret has no value."""

    name: str
    value: str | None
    is_default: bool


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the broker has it."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionFacts, ...]
    config: tuple[ConfigEntry, ...]

    @property
    def events(self) -> int:
        """Return the number of offsets that it holds; for a compacted topic more than there are records."""
        return sum(one.range.high - one.range.low for one in self.partitions if one.range is not None)

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes of one replica of each partition; None: unknown."""
        known = [one.size_bytes for one in self.partitions if one.size_bytes is not None]
        return sum(known) if known else None


async def listed_topics(admin: Admin) -> list[TopicSummary]:
    """Return every topic on the broker, by name.

    Raises:
        UnavailableError: the broker does not answer.
    """
    return await asyncio.to_thread(_listed, admin)


def _listed(admin: Admin) -> list[TopicSummary]:
    with admin.asking("Kafka does not list its topics") as client:
        topics = client.list_topics(timeout=REQUEST_SECONDS).topics
    found = []
    for name, topic in sorted(topics.items()):
        partitions = topic.partitions.values()
        found.append(
            TopicSummary(
                name,
                len(partitions),
                min((len(one.replicas) for one in partitions), default=0),
                sum(len(one.replicas) - len(one.isrs) for one in partitions),
                sum(one.leader < 0 for one in partitions),
            )
        )
    return found


async def described_topic(admin: Admin, client: Mapping[str, str], name: str) -> TopicFacts | None:
    """Return one topic; None if there is none with this name.

    Raises:
        UnavailableError: the broker does not answer.
    """
    found = await asyncio.to_thread(_described, admin, name)
    if found is None:
        return None
    numbers = [one.id for one in found.partitions]
    led = [(name, one.id) for one in found.partitions if one.leader is not None]
    ranges = await admin.log_ranges(led) if led else {}
    config = await asyncio.to_thread(_config, admin, name)
    try:
        sizes = await replica_bytes(client, {name: numbers})
    except UnavailableError:  # a broker that refuses its disk sizes still reports everything else
        sizes = {}
    partitions = tuple(
        PartitionFacts(
            one.id,
            None if one.leader is None else one.leader.id,
            tuple(node.id for node in one.replicas),
            tuple(node.id for node in one.isr),
            ranges.get((name, one.id)),
            _size(sizes, name, one.id, None if one.leader is None else one.leader.id),
        )
        for one in sorted(found.partitions, key=lambda each: each.id)
    )
    return TopicFacts(name, str(found.topic_id), bool(found.is_internal), partitions, config)


def _size(sizes: Mapping[Replica, int], topic: str, partition: int, leader: int | None) -> int | None:
    """Return the bytes of the leader's replica, or of the largest if there is no leader or its broker did not report it."""
    if leader is not None and Replica(topic, partition, leader) in sizes:
        return sizes[Replica(topic, partition, leader)]
    return max(
        (size for replica, size in sizes.items() if replica[:2] == (topic, partition)),
        default=None,
    )


def _described(admin: Admin, name: str) -> Any | None:
    with admin.asking("Kafka does not describe its topics") as client:
        (future,) = client.describe_topics(TopicCollection([name]), request_timeout=REQUEST_SECONDS).values()
        try:
            return future.result(REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
                return None
            raise


def _config(admin: Admin, name: str) -> tuple[ConfigEntry, ...]:
    with admin.asking("Kafka does not tell configurations") as client:
        (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        entries = future.result(REQUEST_SECONDS)
    return tuple(
        ConfigEntry(one.name, None if one.is_sensitive else one.value, _is_default(one.source))
        for _, one in sorted(entries.items())
    )


# Kafka's code for settings of the topic itself; all other sources apply to other topics too.
_OF_TOPIC = 1


def _is_default(source: int) -> bool:
    return source != _OF_TOPIC
