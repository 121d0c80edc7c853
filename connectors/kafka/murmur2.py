"""murmur2 as Kafka's Java client computes it: the partition of a key, and the outbox shard."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition that Java, aiokafka, Faust and our librdkafka clients choose for a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
