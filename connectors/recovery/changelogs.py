"""Recreates changelogs that have another number of partitions than the topics, so that their rows are rebuilt.

Invariant: a recreated changelog begins after the end of the old one and has no mark. So no offset occurs twice, a worker
does not take its local rows for newer ones, and refuses the table until `tables.py` has written every row and the mark.
Only the seconds between the creation and the deletion of the first records are not covered by this, and no worker may
run then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from highwater.connectors.kafka.admin import REQUEST_SECONDS, listed
from highwater.connectors.kafka.deleting import delete_records
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.whole_tables import MARK_KEY

# A change of a topic's policy, or its deletion, reaches the broker's logs within a second.
_APPLIED_SECONDS_MAX = 60.0
_AGAIN_SECONDS = 0.1


def recreate_changelogs(client: Mapping[str, str], names: Collection[str], partitions: int) -> None:
    """Delete these topics and create them with their configuration and replicas, and a beginning above 0; blocking.

    Raises:
        UnavailableError: the broker does not do it; it can be repeated.
    """
    admin = AdminClient({**client, "logger": logging.getLogger("librdkafka")})
    producer = Producer(
        {**client, "acks": "all", "compression.type": "lz4", "linger.ms": 20, "logger": logging.getLogger("librdkafka")}
    )
    try:
        topics = [_like(admin, name, partitions) for name in sorted(names)]
        ends = _ends(admin, names)
        for future in admin.delete_topics([topic.topic for topic in topics]).values():
            future.result(REQUEST_SECONDS)
        for topic in topics:
            _create(admin, topic)
            for partition in range(partitions):
                _fill(producer, topic.topic, partition, ends.get((topic.topic, partition), 0) + 1)
        if producer.flush(_APPLIED_SECONDS_MAX):
            raise UnavailableError(
                "the changelogs cannot be recreated: Kafka acknowledges no records; run the command again"
            )
        delete_records(admin, [topic.topic for topic in topics])
    except (KafkaException, TimeoutError) as error:
        raise UnavailableError(f"the changelogs cannot be recreated: {error}; run the command again") from error


def _like(admin: AdminClient, name: str, partitions: int) -> NewTopic:
    """Return a topic with the configuration and the replicas of an existing one."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    (found,) = (future.result(REQUEST_SECONDS) for future in admin.describe_configs([resource]).values())
    own = {key: entry.value for key, entry in found.items() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    existing = admin.list_topics(name, timeout=REQUEST_SECONDS).topics[name].partitions.values()
    return NewTopic(name, partitions, min(len(partition.replicas) for partition in existing), config=own)


def _ends(admin: AdminClient, names: Collection[str]) -> dict[tuple[str, int], int]:
    """Return the end of each partition of these topics."""
    topics = admin.list_topics(timeout=REQUEST_SECONDS).topics
    asked = {TopicPartition(name, p): OffsetSpec.latest() for name in names for p in topics[name].partitions}
    futures = admin.list_offsets(asked, request_timeout=REQUEST_SECONDS)
    return {(place.topic, place.partition): listed(future).offset for place, future in futures.items()}


def _fill(producer: Producer, topic: str, partition: int, count: int) -> None:
    """Queue this number of empty records, which are deleted again."""
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, b"", key=MARK_KEY, partition=partition)
            except BufferError:  # the queue is full until the broker has acknowledged some
                producer.poll(_AGAIN_SECONDS)
            else:
                break


def _create(admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic; waits while the broker still deletes one of that name."""
    deadline = monotonic_seconds() + _APPLIED_SECONDS_MAX
    while True:
        try:
            admin.create_topics([topic])[topic.topic].result(REQUEST_SECONDS)
        except KafkaException as error:
            is_deleting = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not is_deleting or monotonic_seconds() > deadline:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return
