"""Batches of records of one partition as single events of the stream library, so that an agent may fold them.

Invariant: an agent processes such a batch like its records one after the other, and the library processes it like one
event. So a batch behaves like an event: it waits in the same queue, is discarded by the same rebalance, and is
acknowledged and committed as a whole, after every batch before it. The library's overhead per event (its message, its
queue, its acknowledgement) is some 150 us; a batch pays it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from highwater.streams.intake import Record

# Records per batch. With 8 partitions of 250 keys a row is written for 80 records; an agent takes some 0.1 s for a
# batch, during which ticks and a rebalance wait. With only different keys it takes 3 s, half of a session.
BATCH_RECORDS_MAX = 20_000
# Records of a partition that may wait for its agent before no more are passed on: the current batch, and the next one.
WAITING_RECORDS_MAX = 20_000

Place: TypeAlias = tuple[str, int]


class Batch(ABC):
    """Consecutive records of one partition, two or more, as an agent gets them."""

    topic: str
    partition: int
    records: Sequence[Any]  # each with offset, value, and headers as pairs

    @abstractmethod
    def alone(self, record: Any) -> Record:
        """Return one of them as an agent gets a single record."""


class _Handed(NamedTuple):
    last: int
    records: int


class Handover:
    """Batches of folded topics that were passed to agents and not committed yet, by partition, oldest first."""

    def __init__(self, topics: Collection[str]) -> None:
        self.topics = frozenset(topics)
        self._handed: dict[Place, deque[_Handed]] = {}

    def note(self, place: Place, last: int, count: int) -> None:
        """Note a batch up to the offset `last`; an agent acknowledges it by that offset."""
        self._handed.setdefault(place, deque()).append(_Handed(last, count))

    def following(self, place: Place, acknowledged: Collection[int]) -> int | None:
        """Return the offset to commit: after the last batch before which all are acknowledged. None if there is nothing new."""
        handed, found = self._handed.get(place), None
        while handed and handed[0].last in acknowledged:
            found = handed.popleft().last + 1
        return found

    def full(self, acknowledged: Mapping[Place, Collection[int]]) -> set[Place]:
        """Return the partitions with enough waiting records."""
        return {
            place
            for place, handed in self._handed.items()
            if sum(one.records for one in handed if one.last not in acknowledged.get(place, ())) >= WAITING_RECORDS_MAX
        }

    def forget(self) -> None:
        """Forget everything when offsets move: uncommitted batches are read again."""
        self._handed.clear()


def in_batches(records: Sequence[Any]) -> Iterator[Any]:
    """Yield records of a partition in batches (lists); a single one unchanged."""
    for start in range(0, len(records), BATCH_RECORDS_MAX):
        batch = records[start : start + BATCH_RECORDS_MAX]
        yield batch if len(batch) > 1 else batch[0]
