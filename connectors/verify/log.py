"""The log as a verification reads it: by assignment, outside any group, from the first offset to an end that was fixed
before.

Invariant: records come in the order of the broker's time, those of a partition in the order of their offsets. Memory is
limited in bytes: records that wait for a slower partition, and the client's prefetch; one record of each partition
always fits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.reading import is_end
from highwater.connectors.kafka.records import Record, record_of
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.errors import InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX

# A broker that sends nothing for this long, though it reported more records, is unavailable.
_SILENCE_SECONDS = 15.0
# How long a read waits that is not full.
_POLL_SECONDS = 0.05
_TAKEN_MAX = 1_000
# Bytes of records that wait for those of other partitions: from here on only partitions without waiting records are
# read, and the others again below half of it. A paused partition discards what it has fetched, so this is more than one
# fetch of it.
WAITING_BYTES_MAX = 64 << 20
# The size of a record besides its bytes, with its headers, as Python objects.
_RECORD_BYTES = 1_000
# The client's prefetch, for all partitions together.
_FETCHED_KBYTES_MAX = 32 * 1024
# Records of all sinks that are processed together: as many as a sink's largest batch, and no more bytes than one
# usually decodes at a time.
_SLICE_MAX = 5_000
_SLICE_BYTES_MAX = 32 << 20


class ReadLog(Admin):
    """A broker that holds nothing more: a sink that waits for another one's topic has read all of it here."""

    def __init__(self) -> None:
        """Create it without a client."""

    async def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return none: no topic id matters here."""
        return dict.fromkeys(names, "")

    async def log_ranges(self, partitions: Iterable[Place]) -> dict[Place, LogRange]:
        """Return no ranges: every partition has been read here."""
        return dict.fromkeys(partitions, LogRange(0, 0))


async def in_slices(records: AsyncIterable[Record]) -> AsyncIterator[list[Record]]:
    """Yield records in order, as many at a time as sinks process together; the last slice may be empty."""
    waiting: list[Record] = []
    size = 0
    async for record in records:
        waiting.append(record)
        size += len(record.value or b"")
        if len(waiting) >= _SLICE_MAX or size >= _SLICE_BYTES_MAX:
            yield waiting
            waiting, size = [], 0
    yield waiting


def open_reader(client: Mapping[str, str]) -> Consumer:
    """Open a consumer that joins no group and commits nothing."""
    return Consumer(
        {
            **client,
            "client.id": "highwater-verify",
            "group.id": "highwater-verify",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": DEAD_LETTER_BYTES_MAX,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": _FETCHED_KBYTES_MAX,
        }
    )


async def read_all(
    client: Mapping[str, str], spans: Mapping[Place, LogRange], time_limit: TimeLimit
) -> AsyncIterator[Record]:
    """Yield every record of each partition's span, as they come.

    Raises:
        UnavailableError: the broker became unavailable, or the time limit has ended.
    """
    with _Reading(client, spans, time_limit) as reading:
        while reading.ends:
            for record in await reading.take():
                yield record


async def read_in_order(
    client: Mapping[str, str], spans: Mapping[Place, LogRange], time_limit: TimeLimit
) -> AsyncIterator[Record]:
    """Yield every record of each partition's span, by the broker's time.

    Raises:
        UnavailableError: the broker became unavailable, or the time limit has ended.
    """
    with _Reading(client, spans, time_limit) as reading:
        waiting = Waiting(reading.ends)
        while True:
            while waiting.silent & reading.ends.keys():
                for record in await reading.take():
                    waiting.add(record)
                    if waiting.is_full:
                        reading.pause((record.topic, record.partition))
            found = waiting.next()
            if found is None:
                return
            yield found
            place = found.topic, found.partition
            if place in waiting.silent:
                reading.resume(place)
            if waiting.is_drained:
                reading.resume_all()


class Waiting:
    """Records that wait until nothing older can come: while some partition has no known record, the order is open."""

    def __init__(self, places: Iterable[Place], bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.silent = set(places)
        self._queues: dict[Place, deque[Record]] = {place: deque() for place in self.silent}
        self._heads: list[tuple[int, str, int]] = []
        self._bytes = 0
        self._bytes_max = bytes_max

    @property
    def is_full(self) -> bool:
        """Return whether reading of partitions with waiting records should stop."""
        return self._bytes >= self._bytes_max

    @property
    def is_drained(self) -> bool:
        """Return whether they may be read again."""
        return self._bytes < self._bytes_max // 2

    def add(self, record: Record) -> None:
        """Add a record that has arrived."""
        place = record.topic, record.partition
        self._queues[place].append(record)
        self._bytes += _size(record)
        if place in self.silent:
            self.silent.discard(place)
            heapq.heappush(self._heads, (record.arrived_ms, *place))

    def next(self) -> Record | None:
        """Return the oldest; None if nothing waits."""
        if not self._heads:
            return None
        _, topic, partition = heapq.heappop(self._heads)
        queue = self._queues[topic, partition]
        record = queue.popleft()
        self._bytes -= _size(record)
        if queue:
            heapq.heappush(self._heads, (queue[0].arrived_ms, topic, partition))
        else:
            self.silent.add((topic, partition))
        return record


def _size(record: Record) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")


class _Reading:
    """A consumer and the ends that it has not reached."""

    def __init__(self, client: Mapping[str, str], spans: Mapping[Place, LogRange], time_limit: TimeLimit) -> None:
        self.ends = {place: span.high for place, span in spans.items() if span.low < span.high}
        self._starts = {place: spans[place].low for place in self.ends}
        self._client = client
        self._time_limit = time_limit
        self._paused: set[Place] = set()
        self._silent_polls = 0

    def __enter__(self) -> Self:
        self._consumer = open_reader(self._client)
        self._consumer.assign([TopicPartition(*place, low) for place, low in self._starts.items()])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    async def take(self) -> list[Record]:
        """Return what has arrived, within the spans; other tasks, and Ctrl-C, get their turn in between."""
        await asyncio.sleep(0)
        topic, partition = next(iter(self.ends))
        self._time_limit.at(
            f"{topic}/{partition} up to {self.ends[topic, partition]}, with {len(self.ends) - 1} more of the log"
        )
        messages = self._consumer.consume(_TAKEN_MAX, _POLL_SECONDS)
        self._silent_polls = 0 if messages else self._silent_polls + 1
        if self._silent_polls * _POLL_SECONDS > _SILENCE_SECONDS:
            raise UnavailableError(
                f"Kafka sent nothing for {_SILENCE_SECONDS:.0f} s of {topic}/{partition}, which ends at "
                f"{self.ends[topic, partition]}"
            )
        found = []
        for message in messages:
            place = message.topic(), message.partition()
            if is_end(message):
                self.ends.pop(place, None)
            elif place in self.ends:
                if message.offset() < self.ends[place]:
                    found.append(record_of(message))
                if message.offset() + 1 >= self.ends[place]:
                    del self.ends[place]
                    self._consumer.pause([TopicPartition(*place)])
        return found

    def pause(self, place: Place) -> None:
        """Stop reading a partition for now."""
        if place in self.ends and place not in self._paused:
            self._paused.add(place)
            self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        """Continue to read it."""
        if place in self._paused:
            self._paused.discard(place)
            if place in self.ends:
                self._consumer.resume([TopicPartition(*place)])

    def resume_all(self) -> None:
        """Continue to read all partitions."""
        for place in list(self._paused):
            self.resume(place)


async def decoded(context: ProcessContext, record: Record) -> Mapping[str, object] | None:
    """Return the event in a record; None for one that the live sink dead-lettered, and for tombstones."""
    try:
        return context.codec.decode(record.topic, record.value)
    except UnknownSchemaError as unknown:
        try:
            context.codec.teach(unknown.schema_id, await context.registry.text_of(unknown.schema_id))
            return context.codec.decode(record.topic, record.value)
        except (UnknownSchemaError, InvalidEventError):
            return None
    except InvalidEventError:
        return None
