"""Which records of the log come from a relay that was overtaken.

A shard of the outbox is one relay's at a time, by a lease with an epoch that only grows. The lease fences what a relay does in
PostgreSQL, not what its producer still holds: one that was stopped may publish its old rows after the next relay has published
newer ones. So each record says the shard and epoch it was published under, and a reader passes over what has a lower epoch than
it has read before of the same shard in the same partition.

Nothing is lost by that. A relay deletes a row after its acknowledgement and only under its own epoch. A record that lies behind
one of a higher epoch was acknowledged after the lease was taken over, so its row was still there for the next relay to publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from highwater.schemas.topics import TOPICS

HEADER = "ce_relayepoch"
_NUMBERS_MAX = 2**63 - 1


class Epoch(NamedTuple):
    """The highest epoch of a shard that was read in a partition, and the first offset that had it."""

    epoch: int
    offset: int


class Stamp(NamedTuple):
    """The shard of a record, and the epoch it was published under."""

    shard: int
    epoch: int


def to_header(shard: int, epoch: int) -> bytes:
    """The value of the header."""
    return b"%d/%d" % (shard, epoch)


def is_stamped(topic: str) -> bool:
    """Whether the outbox writes a topic, so that its records say their relay."""
    known = TOPICS.get(topic)
    return known is not None and "outbox" in known.producers


def header_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The header of a record, whatever its topic."""
    for name, value in headers:
        if name == HEADER:
            return value
    return None


def stamp_of(
    topic: str, headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None
) -> Stamp | None:
    """What a record says of its relay; None where it says nothing, and in topics that the outbox does not write.

    Anybody may write into the other topics, and must not be able to have our records passed over.
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


def is_overtaken(held: Epoch | None, stamp: Stamp, offset: int) -> bool:
    """Whether a record lies behind one of a higher epoch. What lies before that one is read again, and is not."""
    return held is not None and stamp.epoch < held.epoch and offset > held.offset


def raised(held: Epoch | None, stamp: Stamp, offset: int) -> Epoch | None:
    """The epoch to remember from this record on; None where what is held stays."""
    return Epoch(stamp.epoch, offset) if held is None or stamp.epoch > held.epoch else None


def encode(epochs: Mapping[int, Epoch]) -> list[Any]:
    """As JSON can hold it."""
    return [[shard, *epoch] for shard, epoch in sorted(epochs.items())]


def decode(facts: Iterable[Iterable[int]]) -> dict[int, Epoch]:
    """What `encode` gave."""
    return {shard: Epoch(epoch, offset) for shard, epoch, offset in facts}
