"""Finds single events in the log: one by its position, or matching ones of a partition from a time on.

Invariant: nothing here joins a group or commits; every read has an end that was fixed before it began, and a search
reads at most `RECORDS_MAX` records, so that a search for a missing event ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from highwater.connectors.kafka.records import Event, Record, record_of
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, ReadTopic
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX
from highwater.streams.tracing import context_of

# Limit of one search: a second of reading, and hours of a partition at 50 events/s. An effect follows its cause within
# a tick or two, so an event not found by then was deleted, or never existed.
RECORDS_MAX = 200_000
# Traces remembered by one finder, some 10 MB; an explanation has a few hundred steps.
TRACES_MAX = 50_000
REQUEST_SECONDS = 10.0
# A broker that sends nothing for this long, though it reported more records, is unavailable.
SILENCE_SECONDS = 15.0
_POLL_SECONDS = 0.2
_BATCH = 1_000

_Name = TypeVar("_Name", bound=Hashable)


class Finder:
    """Reads with one consumer, in the caller's thread. Calls block: from a coroutine they need a thread.

    Every method may also raise `UnavailableError` when the broker is unavailable, and `UnknownSchemaError` for a value
    under a schema that the codec does not know (teach it, or add its id to `absent`, and repeat the call).
    """

    def __init__(self, client: Mapping[str, str], codec: Codec, absent: Collection[int] = ()) -> None:
        """`absent` are schema ids that the registry does not have: a value under one of them is not an event."""
        self._codec = codec
        self._absent = absent
        self._traces: dict[Position, str] = {}
        self._consumer = Consumer(
            {
                **client,
                "client.id": "highwater-find",
                "group.id": "highwater-find",  # required by the client; nothing joins or commits
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": DEAD_LETTER_BYTES_MAX,
                "fetch.wait.max.ms": 20,  # at the end of a partition nobody waits for more
                "log_level": "0",
            }
        )

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def at(self, position: Position) -> Event[Mapping[str, Any]] | None:
        """Return the event at a position; None if the log does not hold it, or it is not an event of its topic."""
        place = (position.topic, position.partition)
        low, high = self._ends(place)
        if not low <= position.offset < high:
            return None
        for record in self._records(place, position.offset, position.offset + 1):
            if record.offset == position.offset:
                return self._decoded(record)
        return None

    def trace_of(self, position: Position) -> str | None:
        """Return the trace of an event that was read; None if it has none, or was not read."""
        return self._traces.get(position)

    def ends(self, place: tuple[str, int]) -> tuple[int, int]:
        """Return the first and one-past-last offset of a partition; both 0 if it does not exist."""
        return self._ends(place)

    def span(self, place: tuple[ReadTopic[EventT], int], end: int) -> Iterator[Event[EventT]]:
        """Yield all events of a partition up to an offset, however many."""
        for record in self._records(place, self._ends(place)[0], end):
            event = self._decoded(record)
            if event is not None:
                yield event

    def events(
        self, place: tuple[ReadTopic[EventT], int], from_ms: int, is_candidate: Callable[[Record], bool]
    ) -> Iterator[Event[EventT]]:
        """Yield events of a partition from a broker time on whose bytes pass a check, which costs less than decoding."""
        _, high = self._ends(place)
        begin = self._offset_at(place, from_ms)
        if begin is None:
            return
        for record in self._records(place, begin, min(high, begin + RECORDS_MAX)):
            if is_candidate(record):
                event = self._decoded(record)
                if event is not None:
                    yield event

    def first(
        self,
        place: tuple[ReadTopic[EventT], int],
        from_ms: int,
        is_candidate: Callable[[Record], bool],
        conditions: Mapping[_Name, Callable[[Event[EventT]], bool]],
        until_ms: int | None = None,
    ) -> dict[_Name, Event[EventT]]:
        """Return the first matching event for each wanted name; names that are not found are left out. One pass for all
        of them.
        """
        found: dict[_Name, Event[EventT]] = {}
        if not conditions:
            return found
        for event in self.events(place, from_ms, is_candidate):
            if until_ms is not None and event.record.arrived_ms > until_ms:
                break
            fits = [name for name, test in conditions.items() if name not in found and test(event)]
            found.update(dict.fromkeys(fits, event))
            if len(found) == len(conditions):
                break
        return found

    def _decoded(self, record: Record) -> Event[Any] | None:
        try:
            event = Event(record, self._codec.decode(record.topic, record.value))
        except InvalidEventError:
            return None  # it is a dead letter by now; it caused nothing
        except UnknownSchemaError as error:
            if error.schema_id in self._absent:
                return None
            raise
        context = context_of(record.headers)
        if context is not None and len(self._traces) < TRACES_MAX:
            self._traces[record.position] = context.trace_id
        return event

    def _ends(self, place: tuple[str, int]) -> tuple[int, int]:
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART):  # noqa: SLF001
                return 0, 0
            raise UnavailableError(f"Kafka does not answer: {error.args[0].str()}") from error
        return low, high

    def _offset_at(self, place: tuple[str, int], from_ms: int) -> int | None:
        try:
            (found,) = self._consumer.offsets_for_times([TopicPartition(*place, max(0, from_ms))], REQUEST_SECONDS)
        except KafkaException as error:
            raise UnavailableError(f"Kafka does not answer: {error.args[0].str()}") from error
        return None if found.offset < 0 else int(found.offset)

    def _records(self, place: tuple[str, int], begin: int, end: int) -> Iterator[Record]:
        if begin >= end:
            return
        self._consumer.assign([TopicPartition(*place, begin)])
        silent_polls = 0
        try:
            while True:
                messages = self._consumer.consume(min(_BATCH, end - begin), _POLL_SECONDS)
                silent_polls = 0 if messages else silent_polls + 1
                if silent_polls * _POLL_SECONDS > SILENCE_SECONDS:
                    raise UnavailableError(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s")
                for message in messages:
                    if _is_end(message):
                        return
                    record = record_of(message)
                    if (record.topic, record.partition) != place or record.offset < begin:
                        continue  # fetched for an earlier search
                    if record.offset >= end:
                        return
                    yield record
                    begin = record.offset + 1
                    if begin >= end:
                        return
        finally:
            self._consumer.unassign()


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    # Past the end, or the beginning was deleted meanwhile: there is nothing more to find.
    if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001 - librdkafka's names
        return True
    raise UnavailableError(f"Kafka: {error.str()}")
