"""What stands in a topic, read from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition


def records(stack: Any, topic: str, is_wanted: Callable[[str], bool]) -> list[Any]:
    """The records with keys that are wanted, those of a partition in their order."""
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": "look", "enable.partition.eof": False})
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10) for p in partitions}
        left = {p: high for p, (low, high) in ends.items() if low < high}
        consumer.assign([TopicPartition(topic, p, ends[p][0]) for p in left])
        while left:
            record = consumer.poll(10)
            assert record is not None
            assert record.error() is None
            if record.offset() + 1 >= left.get(record.partition(), 0):
                left.pop(record.partition(), None)
            if record.key() is not None and is_wanted(record.key().decode()):
                found.append(record)
    finally:
        consumer.close()
    return found
