"""Restores tables: writes records of their changelogs to the local stores, in a thread of its own.

Invariant: a store records up to which offset of its changelog it goes, in the same write as the rows, so that a killed
worker continues from there. Rows are written in the order of the log: the last one of a key stays, a tombstone deletes
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from rocksdict import WriteBatch

from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import monotonic_seconds

Place: TypeAlias = tuple[str, int]  # changelog, partition


class BeginningMovedError(HighwaterError):
    """Records of a changelog were deleted before they were read. The reading begins again; no action is needed."""

    def __init__(self, place: Place) -> None:
        super().__init__(f"the changelog {place[0]} no longer has what was to be read of partition {place[1]}")


class TombstonesGoneError(HighwaterError):
    """Stores were unused for longer than deletions of rows stay in the log. They are emptied and read from `beginnings`."""

    def __init__(self, beginnings: Mapping[Place, int]) -> None:
        places = ", ".join(f"{changelog}/{partition}" for changelog, partition in sorted(beginnings))
        super().__init__(f"the log no longer has every deletion since these stores were written: {places}")
        self.beginnings = beginnings


class Span(NamedTuple):
    """The part of a changelog's partition to be read: offsets, both included."""

    first: int
    last: int


class ChangelogRecord(Protocol):
    """A record as librdkafka returns it; a value of None is a tombstone."""

    def topic(self) -> str:
        """Return the changelog."""

    def partition(self) -> int:
        """Return the partition."""

    def offset(self) -> int:
        """Return the offset."""

    def key(self) -> bytes | None:
        """Return the key of its row."""

    def value(self) -> bytes | None:
        """Return the row."""


class Batch(NamedTuple):
    """Records, in order within each partition; for partitions that were read to their current end, the offset after it.

    That end may be before an earlier one: a broker that has just become the leader does not know yet how much is safe.
    """

    records: Sequence[ChangelogRecord]
    ends: Mapping[Place, int]


class Store(Protocol):
    """The rows of one partition."""

    def write(self, writes: WriteBatch) -> None:
        """Write all or nothing."""


# Sorts after every key of a table: keys are texts, which contain no byte of this value, or begin with a text.
_BEHIND_ALL_KEYS = b"\xff" * 16


def emptied(store: Store) -> None:
    """Delete all rows of a store, and with them the offset, as if it were new."""
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"", _BEHIND_ALL_KEYS)
    store.write(batch)


# Opens a client and yields batches without end, an empty one if nothing comes for a tenth of a second.
ReadChangelogs: TypeAlias = Callable[[Mapping[Place, Span]], Generator[Batch, None, None]]


@dataclass(slots=True)
class Restoration:
    """One reading of what stores lack.

    Args:
        spans: what is to be read.
        stores: of each partition.
        offset_key: the key in a store of the offset up to which it goes, in decimal.
        offsets: kept at the last offset written, to show progress; never above the end of its span.
    """

    read: ReadChangelogs
    spans: Mapping[Place, Span]
    stores: Mapping[Place, Store]
    offset_key: bytes
    offsets: MutableMapping[Place, int] = field(default_factory=dict)
    began_seconds: float = field(default_factory=monotonic_seconds)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> bool:
        """Read and write until every span was read; return False if it was stopped before. Blocks.

        Raises:
            BeginningMovedError: records were deleted before they were read.
            TombstonesGoneError: stores are so old that their missing records can no longer be read.
            UnavailableError: the broker refuses a read.
        """
        try:
            return self._run()
        finally:
            self._over.set()

    def stop(self) -> None:
        """Stop `run` in its thread, and wait until it writes no more: the time of one batch."""
        self._stopping.set()
        self._over.wait()

    @property
    def total(self) -> int:
        """Return the number of offsets in all spans; a compacted log has fewer records."""
        return sum(span.last - span.first + 1 for span in self.spans.values())

    @property
    def remaining(self) -> int:
        """Return the number of offsets still to be read."""
        return sum(max(0, span.last - self.offsets.get(place, span.first - 1)) for place, span in self.spans.items())

    def seconds_left(self, at_seconds: float) -> float | None:
        """Return the remaining time at the speed so far; None before there is one."""
        return seconds_left(self.total - self.remaining, self.remaining, at_seconds - self.began_seconds)

    def _run(self) -> bool:
        left = {place for place, span in self.spans.items() if span.first <= span.last}
        if not left:
            return True
        with closing(self.read({place: self.spans[place] for place in left})) as batches:
            for batch in batches:
                for place, offset in self._write(batch.records).items():
                    self.offsets[place] = min(offset, self.spans[place].last)
                    if offset >= self.spans[place].last:
                        left.discard(place)
                for (
                    place,
                    end,
                ) in batch.ends.items():  # the last offset may hold a transaction marker, which is never delivered
                    if end > self.spans[place].last:
                        self.offsets[place] = self.spans[place].last
                        left.discard(place)
                if not left or self._stopping.is_set():
                    break
        return not left

    def _write(self, records: Sequence[ChangelogRecord]) -> Mapping[Place, int]:
        """Write records; return the last offset of each partition."""
        writes: dict[Place, WriteBatch] = {}
        offsets: dict[Place, int] = {}
        for record in records:
            place = (record.topic(), record.partition())
            batch = writes.get(place)
            if batch is None:
                batch = writes[place] = WriteBatch(raw_mode=True)
            value = record.value()
            if value is None:
                batch.delete(record.key())
            else:
                batch.put(record.key(), value)
            offsets[place] = record.offset()
        for place, batch in writes.items():
            batch.put(self.offset_key, b"%d" % offsets[place])
            self.stores[place].write(batch)
        return offsets


def seconds_left(done: int, remaining: int, elapsed_seconds: float) -> float | None:
    """Return the remaining time at the speed so far; None before there is one."""
    if remaining <= 0:
        return 0.0
    return elapsed_seconds * remaining / done if done > 0 else None


def progress_text(remaining: int, seconds: float | None) -> str:
    """Return the progress of a restoration, for people."""
    about = "" if seconds is None else f", about {max(1.0, seconds):.0f} s"
    return f"restoring, {remaining} changelog records to go{about}"
