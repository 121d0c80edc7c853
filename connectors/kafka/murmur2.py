"""murmur2 as Kafka's Java client computes it: the partition of a key, and the outbox shard.

Implemented here (MurmurHash2, a public-domain algorithm, with Kafka's seed), since the library that has it is a Kafka
client whose import takes a twentieth of a role's start time.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_MULTIPLIER, _SHIFT = 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash, 32 bits unsigned."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> _SHIFT) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ mixed
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java, aiokafka, Faust and our librdkafka clients choose for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
