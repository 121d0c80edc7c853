"""The client that a replay reads with.

Invariant: it joins no group and commits nothing, so no group's offsets change; its queue beside the current batch is
limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.connectors.kafka.signals import deferred_signals
from highwater.schemas.errors import UnavailableError

_REQUEST_SECONDS = 10.0
# librdkafka's queue beside the current batch; it also limits a batch of large records, since a batch is what has
# arrived already. For small records its own bookkeeping takes three times as much.
_QUEUE_KIB = 1024
# Compressed bytes: the decompressed data, at worst a hundred times as much, is in memory at once, despite the queue's
# limit. At half a millisecond per request this is still a million small records a second.
_FETCH_BYTES = 48 * 1024
_FETCH_PARTITION_BYTES = 24 * 1024


def open_reader(client: Mapping[str, str]) -> Consumer:
    """Open a consumer that joins no group and commits nothing; librdkafka requires a group name anyway."""
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
                "message.max.bytes": _FETCH_BYTES,  # of a producer; librdkafka requires it to be at most the value above
                "queued.max.messages.kbytes": _QUEUE_KIB,
                # By default a client with a full queue waits a second before it fetches again: a fifth of the speed.
                "queued.min.messages": 1_000_000,
                "fetch.queue.backoff.ms": 5,
            }
        )


def offsets_at(consumer: Consumer, topic: str, partitions: Sequence[int], ms: int) -> dict[int, int]:
    """Return the offset of the first record at that time or later, in each partition; one past the last if there is
    none.

    Raises:
        UnavailableError: the broker does not answer.
    """
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, p, ms) for p in partitions], timeout=_REQUEST_SECONDS)
    except KafkaException as error:
        raise UnavailableError(f"Kafka does not list offsets: {error.args[0].str()}") from error
    # -1 means the end; an offset beyond every log is clamped to the end of its partition.
    return {place.partition: place.offset if place.offset >= 0 else 2**62 for place in found}
