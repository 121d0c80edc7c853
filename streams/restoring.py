"""Restoring tables: records of their changelogs into the local stores, in a thread of its own.

Invariant: a store says up to which offset of its changelog it goes, and says so in the same write as the rows, so that a worker
that is killed continues where it was. Rows are written in the order of the log: the last one of a key stays, a tombstone
deletes it.
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
    """What of a changelog's partition is to be read: offsets, both included."""

    first: int
    last: int


class ChangelogRecord(Protocol):
    """A record as librdkafka gives it; a value of None is a tombstone."""

    def topic(self) -> str:
        """The changelog."""

    def partition(self) -> int:
        """The partition."""

    def offset(self) -> int:
        """Where it lies."""

    def key(self) -> bytes | None:
        """The key of its row."""

    def value(self) -> bytes | None:
        """The row."""


class Batch(NamedTuple):
    """Records, in order within each partition; of partitions that were read to where their log ended then, the offset behind it.

    That end may be before one that was told earlier: a broker that has just become the leader does not know yet how much is safe.
    """

    records: Sequence[ChangelogRecord]
    ends: Mapping[Place, int]


class Store(Protocol):
    """The rows of one partition."""

    def write(self, writes: WriteBatch) -> None:
        """Write all or nothing."""


# Sorts behind every key of a table: keys are texts, which hold no byte of this value, or begin with a text.
_BEHIND_ALL_KEYS = b"\xff" * 16


def emptied(store: Store) -> None:
    """Delete all rows of a store, and with them the offset: it is as if it was new."""
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"", _BEHIND_ALL_KEYS)
    store.write(batch)


# Opens a client and gives batches without end, an empty one where nothing comes for a tenth of a second.
ReadChangelogs: TypeAlias = Callable[[Mapping[Place, Span]], Generator[Batch, None, None]]


@dataclass(slots=True)
class Restoration:
    """One reading of what stores lack.

    Args:
        spans: what is to be read.
        stores: of each partition.
        offset_key: the key in a store of the offset up to which it goes, in decimal.
        offsets: is kept at the last offset written, for whoever shows progress; never above the end of its span.
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
        """Read and write until every span was read; False where it was stopped before. Blocks.

        Raises:
            BeginningMovedError: records were deleted before they were read.
            TombstonesGoneError: stores are so old that what they lack can no longer be read.
            UnavailableError: the broker refuses a read.
        """
        try:
            return self._run()
        finally:
            self._over.set()

    def stop(self) -> None:
        """End `run` in its thread, and wait until it writes no more: the time of one batch."""
        self._stopping.set()
        self._over.wait()

    @property
    def total(self) -> int:
        """Offsets in all spans; a compacted log has fewer records."""
        return sum(span.last - span.first + 1 for span in self.spans.values())

    @property
    def remaining(self) -> int:
        """Offsets that are still to be read."""
        return sum(max(0, span.last - self.offsets.get(place, span.first - 1)) for place, span in self.spans.items())

    def seconds_left(self, at_seconds: float) -> float | None:
        """How much longer at the speed so far; None before there is one."""
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
                ) in batch.ends.items():  # the last offset may hold a mark of a transaction, which nobody is given
                    if end > self.spans[place].last:
                        self.offsets[place] = self.spans[place].last
                        left.discard(place)
                if not left or self._stopping.is_set():
                    break
        return not left

    def _write(self, records: Sequence[ChangelogRecord]) -> Mapping[Place, int]:
        """Write records; the last offset of each partition."""
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
    """How much longer something takes at the speed so far; None before there is one."""
    if remaining <= 0:
        return 0.0
    return elapsed_seconds * remaining / done if done > 0 else None


def progress_text(remaining: int, seconds: float | None) -> str:
    """How far a restoration is, for people."""
    about = "" if seconds is None else f", about {max(1.0, seconds):.0f} s"
    return f"restoring, {remaining} changelog records to go{about}"
