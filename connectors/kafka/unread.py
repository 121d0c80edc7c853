"""The ids that the records of a topic name which its sink has not processed yet.

Invariant: a record is read once, however many ask. Reading continues where the last call ended, so a call that ends
early was not in vain. Calls block, and one thread makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from confluent_kafka import Consumer

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.reading import Place, open_reader, read_spans
from highwater.connectors.kafka.records import Record
from highwater.schemas.positions import Position
from highwater.streams.clock import monotonic_seconds

# An id takes some 250 bytes in memory: up to 50 MB for a topic. A sink that is further behind is minutes from the end.
IDS_MAX = 200_000
# Ids of records that were processed meanwhile are removed when there are this many more than unread ones.
_PROCESSED_IDS_MAX = 1_000


def open_unread_reader(client: Mapping[str, str]) -> Consumer:
    """Open a reader for one read, also of what follows the first record of an open transaction.

    A second read with the same consumer waits up to a second, until its connection next checks which partitions to fetch; a
    new consumer has read a record after 4 ms (11 at most, of 20).
    """
    return open_reader(client, more={"fetch.wait.max.ms": 5, "isolation.level": "read_uncommitted"})


class UnreadIds:
    """An index of one topic: id -> places of the records that name it."""

    def __init__(self, topic: str, id_of: Callable[[Record], str | None]) -> None:
        self._topic = topic
        self._id_of = id_of
        self._places: dict[str, list[tuple[int, int]]] = {}  # (partition, offset)
        self._count = 0
        self._next: dict[int, int] = {}  # of each partition: where reading continues

    def read(self, client: Mapping[str, str], unread: Mapping[Place, LogRange], until: float) -> bool:
        """Read to the ends of the unread parts; return whether it came there until a time of the monotonic clock.

        Raises:
            UnavailableError: the broker became unavailable.
        """
        self._forget(unread)
        left = {place: LogRange(max(one.low, self._next.get(place[1], 0)), one.high) for place, one in unread.items()}
        left = {place: one for place, one in left.items() if one.low < one.high}
        if not left:
            return True
        with closing(open_unread_reader(client)) as reader:
            for record in read_spans(reader, left, silence_seconds=max(0.0, until - monotonic_seconds())):
                if self._count >= IDS_MAX or monotonic_seconds() > until:
                    return False
                self._note(record)
        self._next.update({partition: one.high for (_, partition), one in left.items()})  # the last may be no record
        return True

    def positions(self, identifier: str, unread: Mapping[Place, LogRange]) -> list[Position]:
        """Return where the unread parts name an id, in the order of each partition."""
        found = [Position(self._topic, *place) for place in self._places.get(identifier, ())]
        lows = {place: one.low for place, one in unread.items()}
        return [position for position in found if position.offset >= lows.get(position[:2], position.offset + 1)]

    def _note(self, record: Record) -> None:
        identifier = self._id_of(record)
        if identifier is not None:
            self._places.setdefault(identifier, []).append((record.partition, record.offset))
            self._count += 1
        self._next[record.partition] = record.offset + 1

    def _forget(self, unread: Mapping[Place, LogRange]) -> None:
        """Remove the ids of processed records; all of them, if the log of a partition became shorter."""
        highs = {partition: one.high for (_, partition), one in unread.items()}
        if any(self._next.get(partition, 0) > high for partition, high in highs.items()):
            self._places, self._count, self._next = {}, 0, {}
        if self._count > _PROCESSED_IDS_MAX + sum(max(0, one.high - one.low) for one in unread.values()):
            lows = {partition: one.low for (_, partition), one in unread.items()}
            kept = {
                name: [place for place in places if place[1] >= lows.get(place[0], 0)]
                for name, places in self._places.items()
            }
            self._places = {name: places for name, places in kept.items() if places}
            self._count = sum(map(len, self._places.values()))
