"""Reads the offsets that a group has committed in Kafka, from outside the group.

Invariant: it uses a consumer of that group that joins nothing. When the coordinator of a group moves or does not exist
yet, librdkafka's admin client refreshes data that only consumers have, and crashes the process with a segmentation
fault.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.connectors.kafka.admin import REQUEST_SECONDS
from highwater.connectors.kafka.refusal import unavailable


def committed_offsets(client: Mapping[str, str], group: str) -> dict[tuple[str, int], int]:
    """Return the offsets by topic and partition, where there is one; blocking, some 20 ms.

    Raises:
        UnavailableError: the broker does not answer.
    """
    consumer = Consumer({**client, "client.id": "highwater-read", "group.id": group, "enable.auto.commit": False})
    try:
        topics = consumer.list_topics(timeout=REQUEST_SECONDS).topics.values()
        places = [TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions]
        found = consumer.committed(places, timeout=REQUEST_SECONDS)
    except KafkaException as error:
        raise unavailable(client, f"Kafka does not report offsets: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}
