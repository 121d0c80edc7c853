"""Deletes every record of compacted topics, whose policy the broker would refuse it for.

Invariant: the policy of the topics is restored afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from highwater.connectors.kafka.admin import REQUEST_SECONDS
from highwater.streams.clock import monotonic_seconds

# A change of a topic's policy reaches the broker's logs within a second.
_POLICY_SECONDS_MAX = 60.0
_AGAIN_SECONDS = 0.1


def delete_records(admin: AdminClient, names: Collection[str]) -> None:
    """Delete all records of compacted topics; blocking. Their policy is restored afterwards.

    Raises:
        KafkaException: the broker does not do it.
    """
    topics = admin.list_topics(timeout=REQUEST_SECONDS).topics
    _set_policy(admin, names, "delete")
    try:
        deadline = monotonic_seconds() + _POLICY_SECONDS_MAX
        places = [TopicPartition(name, p, OFFSET_END) for name in names for p in topics[name].partitions]
        while not _are_deleted(admin, places, is_last=monotonic_seconds() > deadline):
            time.sleep(_AGAIN_SECONDS)
    finally:
        _set_policy(admin, names, "compact")


def _set_policy(admin: AdminClient, names: Collection[str], policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    changes = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in names]
    for future in admin.incremental_alter_configs(changes).values():
        future.result(REQUEST_SECONDS)


def _are_deleted(admin: AdminClient, places: list[TopicPartition], *, is_last: bool) -> bool:
    """Return whether the broker deleted them; until it has applied the changed policy it refuses."""
    try:
        for future in admin.delete_records(places).values():
            future.result(REQUEST_SECONDS)
    except KafkaException as error:
        if is_last or error.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    return True
