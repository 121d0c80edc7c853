"""Owns the client that a replay reads with.

Invariant: it joins no group and commits nothing, so nobody's offsets move; what it holds beside the batch in hand is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.connectors.kafka.signals import deferred_signals
from highwater.schemas.errors import UnavailableError

_REQUEST_SECONDS = 10.0
# What librdkafka holds beside the batch in hand; it is what bounds a batch of large records too, since a batch is what
# has come already. Of small records it holds three times as much in its own bookkeeping.
_QUEUE_KIB = 1024
# Bytes as they were compressed: what comes out, a hundred times as much at worst, is in memory at once, whatever the queue's
# limit. At half a millisecond a request this is still a million small records a second.
_FETCH_BYTES = 48 * 1024
_FETCH_PARTITION_BYTES = 24 * 1024


def open_reader(client: Mapping[str, str]) -> Consumer:
    """A consumer that joins no group and commits nothing; librdkafka asks for a group's name all the same."""
    with deferred_signals():
        return Consumer(
            {
                **client,
                "client.id": "highwater-replay",
                "group.id": "highwater-replay",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": _FETCH_PARTITION_BYTES,
                "fetch.max.bytes": _FETCH_BYTES,
                "message.max.bytes": _FETCH_BYTES,  # of a producer; librdkafka wants it no larger than the one above
                "queued.max.messages.kbytes": _QUEUE_KIB,
                # By default a full queue makes the client wait a second before it fetches again: a fifth of the speed.
                "queued.min.messages": 1_000_000,
                "fetch.queue.backoff.ms": 5,
            }
        )


def offsets_at(consumer: Consumer, topic: str, partitions: Sequence[int], ms: int) -> dict[int, int]:
    """The offset of the first record at that time or later, in each partition; one past the last where there is none.

    Raises:
        UnavailableError: the broker does not answer.
    """
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, p, ms) for p in partitions], timeout=_REQUEST_SECONDS)
    except KafkaException as error:
        raise UnavailableError(f"Kafka does not list offsets: {error.args[0].str()}") from error
    # -1 stands for the end; an offset beyond every log is clamped to where its partition ends.
    return {place.partition: place.offset if place.offset >= 0 else 2**62 for place in found}
