"""Owns how a topic is read in bulk: by assignment, outside any group, in batches, to ends fixed before.

Law: memory is bounded by librdkafka's queue, whatever the topic's size and its records'; nobody's offsets move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from numpy.typing import NDArray

from connectors.kafka.admin import LogRange
from connectors.kafka.records import Record, record_of
from schemas.envelope import Headers
from schemas.errors import UnavailableError

# Half a millisecond is paid once a batch, a hundredth of what 10,000 records cost; more records take more memory.
BATCH_RECORDS = 10_000
# A broker that sends nothing for this long, though it said that there is more, is away.
SILENCE_SECONDS = 15.0
_WAIT_SECONDS = 0.1
_REQUEST_SECONDS = 10.0
# What librdkafka holds beside the batch in hand; it is what bounds a batch of large records too, since a batch is what
# has come already.
_QUEUE_KIB = 8 * 1024
# Bytes as they were compressed, which may be a hundredth of what comes out: so small, that even then it fits.
_FETCH_BYTES = 1 << 20
_FETCH_PARTITION_BYTES = 256 * 1024
# Of larger records fewer are decoded together, since each step holds them once more.
_BATCH_BYTES = 4 << 20
# By time the partitions are merged: so much of each is held, so that a full one waits for the others.
_MERGED_RECORDS = 1_000
_MERGED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic, side by side. Times are the broker's (log append), in ms since 1970."""

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
        """The records at these places."""
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
        """The records one by one."""
        numbers = zip(self.partitions.tolist(), self.offsets.tolist(), self.times_ms.tolist(), strict=True)
        for place, (partition, offset, arrived_ms) in enumerate(numbers):
            key, value, headers = self.keys[place], self.values[place], self.headers[place]
            yield Record(self.topic, partition, offset, arrived_ms, key, value, headers or [])


def open_reader(client: Mapping[str, str]) -> Consumer:
    """A consumer that joins no group and commits nothing; librdkafka asks for a group's name all the same."""
    return Consumer(
        {
            **client,
            "client.id": "highwater-replay",
            "group.id": "highwater-replay",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": _FETCH_PARTITION_BYTES,
            "fetch.max.bytes": _FETCH_BYTES,
            "message.max.bytes": _FETCH_BYTES,  # of a producer; librdkafka wants it no larger than the one above
            "queued.max.messages.kbytes": _QUEUE_KIB,
            # By default a full queue makes the client wait a second before it fetches again: a fifth of the speed.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,
        }
    )


def offsets_at(consumer: Consumer, topic: str, partitions: Sequence[int], ms: int) -> dict[int, int]:
    """The offset of the first record at that time or later, in each partition; one past the last where there is none.

    Raises:
        UnavailableError: the broker does not answer.
    """
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, p, ms) for p in partitions], timeout=_REQUEST_SECONDS)
    except KafkaException as error:
        raise UnavailableError(f"Kafka does not list offsets: {error.args[0].str()}") from error
    # -1 stands for the end; an offset beyond every log is clamped to where its partition ends.
    return {place.partition: place.offset if place.offset >= 0 else 2**62 for place in found}


class _Ends:
    """Where each partition ends, and which are not there yet."""

    def __init__(self, consumer: Consumer, topic: str, spans: Mapping[int, LogRange]) -> None:
        self._consumer = consumer
        self._topic = topic
        self.open = {partition: span.high for partition, span in spans.items() if span.low < span.high}
        self._highs = np.zeros(max(spans, default=0) + 1, np.int64)
        for partition, span in spans.items():
            self._highs[partition] = span.high
        consumer.assign([TopicPartition(topic, partition, spans[partition].low) for partition in self.open])

    def inside(self, batch: Batch) -> Batch:
        """The records that come before their partition's end; those that reach it close it."""
        inside = batch.offsets < self._highs[batch.partitions]
        for partition in np.unique(batch.partitions):
            last = int(batch.offsets[batch.partitions == partition].max())
            if last + 1 >= self.open.get(int(partition), last + 2):
                self.close(int(partition))
        return batch if inside.all() else batch.only(np.flatnonzero(inside).tolist())

    def close(self, partition: int) -> None:
        """This partition has no more."""
        if self.open.pop(partition, None) is not None:
            self._consumer.pause([TopicPartition(self._topic, partition)])


def read_batches(consumer: Consumer, topic: str, spans: Mapping[int, LogRange]) -> Iterator[Batch]:
    """Every record of the spans, as they come: in order in each partition, in none among partitions.

    Raises:
        UnavailableError: the broker went away.
    """
    ends = _Ends(consumer, topic, spans)
    silent_seconds = 0.0
    while ends.open:
        # What has come already, without waiting for more: so a batch is never larger than the queue.
        messages = consumer.consume(BATCH_RECORDS, 0) or consumer.consume(1, _WAIT_SECONDS)
        if not messages:
            silent_seconds += _WAIT_SECONDS
            if silent_seconds > SILENCE_SECONDS:
                raise UnavailableError(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s")
            continue
        silent_seconds = 0.0
        yield from _parts(ends.inside(batch_of(topic, _without_marks(messages, ends))))


def _parts(batch: Batch) -> Iterator[Batch]:
    """The batch in parts of at most 4 MiB of values, or of one record."""
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
    """The records among what was polled; the ends of partitions are noted.

    Raises:
        UnavailableError: something is wrong.
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
    """Messages side by side. `map` is used because it costs half of a comprehension."""
    count = len(messages)
    try:
        # Through `map` a header's name that is not UTF-8 is raised here; called directly it would come up later.
        headers: list[Headers | None] = list(map(Message.headers, messages))
    except (UnicodeDecodeError, SystemError):
        headers = [record_of(message).headers for message in messages]
    return Batch(
        topic,
        np.fromiter(map(Message.partition, messages), np.int32, count),
        np.fromiter(map(Message.offset, messages), np.int64, count),
        np.fromiter((stamp[1] for stamp in map(Message.timestamp, messages)), np.int64, count),
        list(map(Message.key, messages)),
        headers,
        list(map(Message.value, messages)),
    )


def read_in_time(
    consumer: Consumer, topic: str, spans: Mapping[int, LogRange], keep: Callable[[Batch], Batch]
) -> Iterator[Record]:
    """What `keep` keeps of the spans in the order of arrival over all partitions (log-append time, then partition).

    Raises:
        UnavailableError: the broker went away.
    """
    ends = _Ends(consumer, topic, spans)
    held: dict[int, deque[Record]] = {partition: deque() for partition in ends.open}
    sizes = dict.fromkeys(held, 0)
    paused: set[int] = set()
    silent_seconds = 0.0
    while ends.open or any(held.values()):
        if all(held[partition] for partition in ends.open):
            partition = min((p for p in held if held[p]), key=lambda p: (held[p][0].arrived_ms, p))
            record = held[partition].popleft()
            sizes[partition] -= _size(record)
            if partition in paused and not _is_full(held[partition], sizes[partition], 2):
                paused.discard(partition)
                if partition in ends.open:
                    consumer.resume([TopicPartition(topic, partition)])
            yield record
            continue
        messages = consumer.consume(_MERGED_RECORDS, 0) or consumer.consume(1, _WAIT_SECONDS)
        silent_seconds = 0.0 if messages else silent_seconds + _WAIT_SECONDS
        if silent_seconds > SILENCE_SECONDS:
            raise UnavailableError(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s")
        batch = ends.inside(batch_of(topic, _without_marks(messages, ends)))
        for record in keep(batch).records() if len(batch) else ():
            held[record.partition].append(record)
            sizes[record.partition] += _size(record)
        for partition in ends.open.keys() - paused:
            if _is_full(held[partition], sizes[partition], 1):
                paused.add(partition)
                consumer.pause([TopicPartition(topic, partition)])


def _size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")


def _is_full(records: deque[Record], size: int, parts: int) -> bool:
    return len(records) > _MERGED_RECORDS // parts or size > _MERGED_BYTES // parts
