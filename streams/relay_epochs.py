"""Which records of the log come from a relay that was overtaken.

A shard of the outbox belongs to one relay at a time, by a lease with an epoch that only grows. The lease fences a
relay's writes in PostgreSQL, but not the records in its producer: a paused relay may publish old rows after the next
relay has published newer ones. So each record has the shard and epoch it was published under, and a reader skips
records with a lower epoch than it has read before for the same shard in the same partition.

Nothing is lost by that. A relay deletes a row after its acknowledgement and only under its own epoch. A record after
one of a higher epoch was acknowledged after the lease was taken over, so its row still existed for the next relay to
publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from highwater.schemas.topics import TOPICS

HEADER = "ce_relayepoch"
_NUMBERS_MAX = 2**63 - 1


class Epoch(NamedTuple):
    """The highest epoch of a shard that was read in a partition, and its first offset."""

    epoch: int
    offset: int


class Stamp(NamedTuple):
    """The shard of a record, and the epoch it was published under."""

    shard: int
    epoch: int


def to_header(shard: int, epoch: int) -> bytes:
    """Return the value of the header."""
    return b"%d/%d" % (shard, epoch)


def is_stamped(topic: str) -> bool:
    """Return whether the outbox writes a topic, so that its records have a relay header."""
    known = TOPICS.get(topic)
    return known is not None and "outbox" in known.producers


def header_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """Return the header of a record of any topic."""
    for name, value in headers:
        if name == HEADER:
            return value
    return None


def stamp_of(
    topic: str, headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None
) -> Stamp | None:
    """Return a record's relay and epoch; None without them, and for topics that the outbox does not write.

    Anybody may write to the other topics, and must not be able to make readers skip our records.
    """
    if not headers or not is_stamped(topic):
        return None
    value = header_of(headers.items() if isinstance(headers, Mapping) else headers)
    if value is None:
        return None
    shard, _, epoch = value.partition(b"/")
    if not (shard.isdigit() and epoch.isdigit() and len(shard) <= 4 and int(epoch) <= _NUMBERS_MAX):
        return None
    return Stamp(int(shard), int(epoch))


def is_overtaken(latest: Epoch | None, stamp: Stamp, offset: int) -> bool:
    """Return whether a record comes after one of a higher epoch. A record before that one is a repeated read, and is
    not overtaken.
    """
    return latest is not None and stamp.epoch < latest.epoch and offset > latest.offset


def raised(latest: Epoch | None, stamp: Stamp, offset: int) -> Epoch | None:
    """Return the epoch to remember from this record on; None if it does not change."""
    return Epoch(stamp.epoch, offset) if latest is None or stamp.epoch > latest.epoch else None


def encode(epochs: Mapping[int, Epoch]) -> list[Any]:
    """Return it as JSON."""
    return [[shard, *epoch] for shard, epoch in sorted(epochs.items())]


def decode(facts: Iterable[Iterable[int]]) -> dict[int, Epoch]:
    """Parse the result of `encode`."""
    return {shard: Epoch(epoch, offset) for shard, epoch, offset in facts}
