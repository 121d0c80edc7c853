"""Contents of the log: at a position, or in a topic from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import TOPICS


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


def record_at(stack: Any, position: Position | str) -> Any:
    """The record at a position."""
    topic, partition, offset = parse_position(str(position))
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": "look", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = consumer.poll(15)
        assert message is not None
        assert (message.error(), message.offset()) == (None, offset)
        return message
    finally:
        consumer.close()


def ends(stack: Any, topic: str) -> dict[int, int]:
    """One past the last offset of each partition."""
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": "look"})
    try:
        partitions = range(TOPICS[topic].partitions)
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
    finally:
        consumer.close()
