"""Channels that advanced since their subscribers were last notified (R0.25, R0.29, R0.30).

Invariant: a tick reports at most its share of channels, oldest first; the others stay dirty, and an advance between
reporting and clearing keeps its channel dirty.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from highwater.streams.versioned_rows import pack, unpack

# Of the facts of a row, which has no version.
_NAMES = ("current_seq", "dirty_since", "retractions")


@dataclass(slots=True)
class Channel:
    """The row of one channel: its head, and since when (broker time, ms) it has an unreported advance; None = reported.

    `retractions`: how many of its insights were retracted after they were stored.
    """

    head: int = 0
    dirty_since: int | None = None
    retractions: int = 0


def advance(channel: Channel, head: int, arrived_at: int, retractions: int = 0) -> None:
    """Merge an advance: only a higher head, or more retractions, makes it dirty, and the first such arrival decides the order."""
    if head > channel.head or retractions > channel.retractions:
        channel.head, channel.retractions = max(channel.head, head), max(channel.retractions, retractions)
        channel.dirty_since = arrived_at if channel.dirty_since is None else min(channel.dirty_since, arrived_at)


def clear(channel: Channel, told_head: int) -> None:
    """Clear it after its subscribers were notified of `told_head`, unless it has advanced since."""
    if channel.head <= told_head:
        channel.dirty_since = None


def tick_quota(cap: int, partitions: int, partition: int, tick_number: int) -> int:
    """Return the share of one partition in the limit of a tick (R0.29). Over all partitions of a tick the shares sum to
    the limit.

    The remainder rotates with the tick number, so that even a limit of 1 serves every partition in turn.
    """
    share, rest = divmod(cap, partitions)
    return share + ((partition - tick_number) % partitions < rest)


def encode_channel(channel: Channel) -> bytes:
    """Return the row as JSON."""
    return orjson.dumps(pack(_NAMES, (channel.head, channel.dirty_since, channel.retractions)))


def decode_channel(row: bytes | None) -> Channel:
    """Return the channel in a row, also in one from before retractions were counted; a new one without a row."""
    return Channel() if row is None else Channel(*unpack(_NAMES, orjson.loads(row)))
