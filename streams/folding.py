"""Many records of one partition as one event of the stream library, so that an agent may fold them.

Invariant: an agent deals with such a batch as with its records one after the other, and the library with it as with one event.
So what holds for an event holds for a batch: it waits in the same queue, is thrown away by the same rebalance, and is
acknowledged and committed as a whole, after every batch before it. The library's way to an agent (its message, its queue, its
acknowledgement) costs some 150 us; a batch goes it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from highwater.streams.intake import Record

# Records of a batch. At 8 partitions of 250 keys a row is written for 80 records; an agent is at a batch for some 0.1 s, for
# which ticks and a rebalance wait. Of as many different keys it is at it for 3 s, half of a session.
BATCH_RECORDS_MAX = 20_000
# Records of a partition that may wait for its agent before no more are handed over: the batch in hand, and one behind it.
WAITING_RECORDS_MAX = 20_000

Place: TypeAlias = tuple[str, int]


class Batch(ABC):
    """Consecutive records of one partition, two or more, as an agent is given them."""

    topic: str
    partition: int
    records: Sequence[Any]  # each with offset, value, and headers as pairs

    @abstractmethod
    def alone(self, record: Any) -> Record:
        """One of them as an agent is given a single one."""


class _Handed(NamedTuple):
    last: int
    records: int


class Handover:
    """What of folded topics was handed to agents and not yet committed, by partition, oldest first."""

    def __init__(self, topics: Collection[str]) -> None:
        self.topics = frozenset(topics)
        self._handed: dict[Place, deque[_Handed]] = {}

    def note(self, place: Place, last: int, count: int) -> None:
        """Records up to the offset `last` were handed over; an agent acknowledges them by that offset."""
        self._handed.setdefault(place, deque()).append(_Handed(last, count))

    def following(self, place: Place, acknowledged: Collection[int]) -> int | None:
        """The offset to commit: behind the last batch before which all are acknowledged. None while there is nothing new."""
        handed, found = self._handed.get(place), None
        while handed and handed[0].last in acknowledged:
            found = handed.popleft().last + 1
        return found

    def full(self, acknowledged: Mapping[Place, Collection[int]]) -> set[Place]:
        """Partitions of which enough waits."""
        return {
            place
            for place, handed in self._handed.items()
            if sum(one.records for one in handed if one.last not in acknowledged.get(place, ())) >= WAITING_RECORDS_MAX
        }

    def forget(self) -> None:
        """Offsets move: what was handed over and is not committed is read again."""
        self._handed.clear()


def in_batches(records: Sequence[Any]) -> Iterator[Any]:
    """Records of a partition in batches (lists); one that is alone as it is."""
    for start in range(0, len(records), BATCH_RECORDS_MAX):
        batch = records[start : start + BATCH_RECORDS_MAX]
        yield batch if len(batch) > 1 else batch[0]
