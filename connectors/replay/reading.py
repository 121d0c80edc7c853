"""Reads a topic in bulk: by assignment, outside any group, in batches, to ends fixed before.

Invariant: librdkafka's queue limits memory for any size of the topic and its records; no group's offsets change.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from numpy.typing import NDArray

from highwater.connectors.replay.consumer import offsets_at, open_reader
from highwater.connectors.replay.shares import Span
from highwater.schemas.envelope import HEADERS_UNREADABLE, Headers
from highwater.schemas.errors import UnavailableError

if TYPE_CHECKING:
    from highwater.connectors.kafka.records import Record

__all__ = [
    "Batch",
    "batch_of",
    "batch_of_records",
    "in_batches",
    "offsets_at",
    "open_reader",
    "read_batches",
    "read_in_time",
]

# The half millisecond per batch is a twentieth of what 2,500 records cost; more records take more memory.
BATCH_RECORDS = 2_500
# A broker that sends nothing for this long, though it reported more records, is unavailable.
SILENCE_SECONDS = 15.0
_WAIT_SECONDS = 0.1
# Fewer large records are decoded together, since each step holds them once more.
_BATCH_BYTES = 1 << 20
# In order of time the partitions are merged: this much of each is held, so that a full one waits for the others.
_MERGED_RECORDS = 1_000
_MERGED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic, as columns. Times are the broker's (log append), in ms since 1970."""

    topic: str
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    keys: list[bytes | None]
    headers: list[Headers | None]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.values)

    def only(self, kept: Sequence[int]) -> Batch:
        """Return a batch with only the records at the given indexes."""
        return Batch(
            self.topic,
            self.partitions[kept],
            self.offsets[kept],
            self.times_ms[kept],
            [self.keys[i] for i in kept],
            [self.headers[i] for i in kept],
            [self.values[i] for i in kept],
        )

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        # Imported here, because reading in batches does not need it: 14 MB in each process.
        from highwater.connectors.kafka.records import Record  # noqa: PLC0415

        numbers = zip(self.partitions.tolist(), self.offsets.tolist(), self.times_ms.tolist(), strict=True)
        for place, (partition, offset, arrived_ms) in enumerate(numbers):
            key, value, headers = self.keys[place], self.values[place], self.headers[place]
            yield Record(self.topic, partition, offset, arrived_ms, key, value, headers or [])


class _Ends:
    """The end of each partition, and which are not reached yet."""

    def __init__(self, consumer: Consumer, topic: str, spans: Mapping[int, Span]) -> None:
        self._consumer = consumer
        self._topic = topic
        self.open = {partition: span.high for partition, span in spans.items() if span.low < span.high}
        self._highs = np.zeros(max(spans, default=0) + 1, np.int64)
        for partition, span in spans.items():
            self._highs[partition] = span.high
        consumer.assign([TopicPartition(topic, partition, spans[partition].low) for partition in self.open])

    def inside(self, batch: Batch) -> Batch:
        """Return the records before their partition's end; those that reach it close it."""
        inside = batch.offsets < self._highs[batch.partitions]
        for partition in np.unique(batch.partitions):
            last = int(batch.offsets[batch.partitions == partition].max())
            if last + 1 >= self.open.get(int(partition), last + 2):
                self.close(int(partition))
        return batch if inside.all() else batch.only(np.flatnonzero(inside).tolist())

    def close(self, partition: int) -> None:
        """Mark this partition as complete."""
        if self.open.pop(partition, None) is not None:
            self._consumer.pause([TopicPartition(self._topic, partition)])


def read_batches(consumer: Consumer, topic: str, spans: Mapping[int, Span]) -> Iterator[Batch]:
    """Yield every record of the spans as they come: ordered within each partition, not among partitions.

    Raises:
        UnavailableError: the broker became unavailable.
    """
    ends = _Ends(consumer, topic, spans)
    silent_seconds = 0.0
    wanted = BATCH_RECORDS
    while ends.open:
        # What has arrived already, without waiting for more: so a batch is never larger than the queue.
        messages = consumer.consume(wanted, 0) or consumer.consume(1, _WAIT_SECONDS)
        if not messages:
            silent_seconds += _WAIT_SECONDS
            if silent_seconds > SILENCE_SECONDS:
                raise UnavailableError(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s")
            continue
        silent_seconds = 0.0
        # For records of this size no more than one part of a batch.
        wanted = max(1, min(BATCH_RECORDS, _BATCH_BYTES * len(messages) // max(1, sum(map(len, messages)))))
        yield from _parts(ends.inside(batch_of(topic, _without_marks(messages, ends))))


def _parts(batch: Batch) -> Iterator[Batch]:
    """Split the batch into parts of at most 1 MiB of values, or of one record."""
    sizes = [len(value or b"") for value in batch.values]
    if sum(sizes) <= _BATCH_BYTES:
        if sizes:
            yield batch
        return
    part: list[int] = []
    size = 0
    for place, one in enumerate(sizes):
        if part and size + one > _BATCH_BYTES:
            yield batch.only(part)
            part, size = [], 0
        part.append(place)
        size += one
    yield batch.only(part)


def _without_marks(messages: list[Message], ends: _Ends) -> list[Message]:
    """Return the records among polled messages, and note the ends of partitions.

    Raises:
        UnavailableError: a message reports an error.
    """
    if not any(map(Message.error, messages)):
        return messages
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
            ends.close(message.partition())
        else:
            raise UnavailableError(f"Kafka: {error.str()}")
    return records


def batch_of(topic: str, messages: list[Message]) -> Batch:
    """Return messages as columns. `map` costs half of a comprehension."""
    count = len(messages)
    return Batch(
        topic,
        np.fromiter(map(Message.partition, messages), np.int32, count),
        np.fromiter(map(Message.offset, messages), np.int64, count),
        np.fromiter((stamp[1] for stamp in map(Message.timestamp, messages)), np.int64, count),
        list(map(Message.key, messages)),
        _headers_of(messages),
        list(map(Message.value, messages)),
    )


def _headers_of(messages: list[Message]) -> list[Headers | None]:
    """Return the headers of each; headers with a name that is not UTF-8 are replaced by one that says so.

    Each message is read once: a name that is not UTF-8 is raised the first time (through `map`; called directly, it
    would come up later), and the second time the client returns a corrupt list, which crashes the process.
    """
    found: list[Headers | None] = []
    asked = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(asked)
        except (UnicodeDecodeError, SystemError):
            found.append([HEADERS_UNREADABLE])
    return found


def read_in_time(
    consumer: Consumer, topic: str, spans: Mapping[int, Span], keep: Callable[[Batch], Batch]
) -> Iterator[Record]:
    """Yield what `keep` keeps of the spans in the order of arrival over all partitions (log-append time, then
    partition).

    Raises:
        UnavailableError: the broker became unavailable.
    """
    ends = _Ends(consumer, topic, spans)
    merge = _Merge(ends.open)
    silent_seconds = 0.0
    while ends.open or merge.heads:
        record = merge.next(ends.open)
        if record is not None:
            if record.partition in merge.paused and not merge.is_full(record.partition, 2):
                merge.paused.discard(record.partition)
                if record.partition in ends.open:
                    consumer.resume([TopicPartition(topic, record.partition)])
            yield record
            continue
        messages = consumer.consume(_MERGED_RECORDS, 0) or consumer.consume(1, _WAIT_SECONDS)
        silent_seconds = 0.0 if messages else silent_seconds + _WAIT_SECONDS
        if silent_seconds > SILENCE_SECONDS:
            raise UnavailableError(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s")
        batch = ends.inside(batch_of(topic, _without_marks(messages, ends)))
        if len(batch):
            merge.add(batch, keep(batch))
        for partition in ends.open.keys() - merge.paused:
            if merge.is_full(partition, 1):
                merge.paused.add(partition)
                consumer.pause([TopicPartition(topic, partition)])


class _Merge:
    """Records of several partitions that wait for older ones of the others.

    A partition delays the others only by the time that its reader has reached, whether its records are kept or not: so
    the first few of many are known long before everything is read.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._held: dict[int, deque[Record]] = {partition: deque() for partition in partitions}
        self._sizes = dict.fromkeys(self._held, 0)
        self._read_to_ms = dict.fromkeys(self._held, -1)
        # The oldest waiting record of each partition: (arrival, partition), as a heap.
        self.heads: list[tuple[int, int]] = []
        self.paused: set[int] = set()

    def add(self, batch: Batch, kept: Batch) -> None:
        """Add what was read, and which of it is wanted."""
        for partition in np.unique(batch.partitions).tolist():
            self._read_to_ms[partition] = int(batch.times_ms[batch.partitions == partition].max())
        for record in kept.records():
            held = self._held[record.partition]
            if not held:
                heapq.heappush(self.heads, (record.arrived_ms, record.partition))
            held.append(record)
            self._sizes[record.partition] += _size(record)

    def next(self, unread: Iterable[int]) -> Record | None:
        """Return the oldest record, if no `unread` partition can bring one that precedes it."""
        if not self.heads:
            return None
        head = self.heads[0]
        for partition in unread:
            if not self._held[partition] and (self._read_to_ms[partition], partition) < head:
                return None
        partition = head[1]
        held = self._held[partition]
        record = held.popleft()
        self._sizes[partition] -= _size(record)
        if held:
            heapq.heapreplace(self.heads, (held[0].arrived_ms, partition))
        else:
            heapq.heappop(self.heads)
        return record

    def is_full(self, partition: int, parts: int) -> bool:
        """Return whether enough of the partition waits to stop reading it; the limit is divided by `parts`."""
        return len(self._held[partition]) > _MERGED_RECORDS // parts or self._sizes[partition] > _MERGED_BYTES // parts


def _size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")


def in_batches(topic: str, records: Iterable[Record]) -> Iterator[Batch]:
    """Yield single records as batches, of as many as are merged at a time."""
    held: list[Record] = []
    size = 0
    for record in records:
        held.append(record)
        size += _size(record)
        if len(held) >= _MERGED_RECORDS or size >= _MERGED_BYTES:
            yield batch_of_records(topic, held)
            held, size = [], 0
    if held:
        yield batch_of_records(topic, held)


def batch_of_records(topic: str, records: Sequence[Record]) -> Batch:
    """Return records as columns."""
    return Batch(
        topic,
        np.array([record.partition for record in records], np.int32),
        np.array([record.offset for record in records], np.int64),
        np.array([record.arrived_ms for record in records], np.int64),
        [record.key for record in records],
        [record.headers for record in records],
        [record.value for record in records],
    )
