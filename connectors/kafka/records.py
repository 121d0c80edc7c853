"""The data of consumers: records as read, events as decoded, and dead letters with their reasons."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Generic, NamedTuple

from confluent_kafka import Message

from highwater.connectors.kafka.outbox import OutboxRow
from highwater.schemas.envelope import HEADERS_UNREADABLE, Headers, iso_from_ms, missing_attributes
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, EventT_co, TopicName, event_of
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, MESSAGE_BYTES_MAX

# Kafka allows any bytes as a header; the stored part of a detail fits a screen.
_DETAIL_CHARACTERS_MAX = 500
# The key of a record whose bytes are left out is kept if it would pass our own checks.
_KEY_BYTES_KEPT = 512


class Record(NamedTuple):
    """One record of the log. `arrived_ms` is the broker's time (log append), `leader_epoch` that of the leader that took it."""

    topic: str
    partition: int
    offset: int
    arrived_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int | None = None

    @property
    def position(self) -> Position:
        """Return its position in the log."""
        return Position(self.topic, self.partition, self.offset)


class Event(NamedTuple, Generic[EventT_co]):
    """A record with its decoded value."""

    record: Record
    value: EventT_co

    def of(self, topic: TopicName[EventT]) -> EventT | None:
        """Return the value as an event of a topic; None if the record belongs to another one."""
        return event_of(topic, self.record.topic, self.value)


def of_topic(events: Iterable[Event[Any]], topic: TopicName[EventT]) -> list[Event[EventT]]:
    """Return the events of one topic."""
    return [event for event in events if event.record.topic == topic]


class DeadLetter(NamedTuple):
    """A record that cannot be processed, and the reason."""

    record: Record
    reason: str
    detail: str


def record_of(message: Message) -> Record:
    """Return the record in a librdkafka message."""
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        _headers_of(message),
        message.leader_epoch(),
    )


def _headers_of(message: Message) -> Headers:
    """Return the headers; none if a name is not UTF-8, which the client cannot represent (our events need no such header)."""
    try:
        # The client leaves its UnicodeDecodeError pending, to be raised by any later call; `partial` raises it here.
        return list(partial(message.headers)() or ())
    except (UnicodeDecodeError, SystemError):
        return [HEADERS_UNREADABLE]


def dead_letter_row(letter: DeadLetter, *, group: str, now_ms: int) -> OutboxRow:
    """Return the outbox row of a dead letter: original key, bytes and headers, and also reason and origin.

    The broker limits compressed sizes, so a record can be larger here than any that we may send. Its letter holds
    neither bytes nor headers: they remain at `dlq_origin`; otherwise a relay that cannot publish would stop
    permanently.
    """
    record = letter.record
    headers = [(name, value if value is not None else b"") for name, value in record.headers]
    size = sum(map(len, (record.key or b"", record.value or b"", *(part for header in headers for part in header))))
    is_whole = size <= MESSAGE_BYTES_MAX
    topic = record.topic + DEAD_LETTER_SUFFIX
    kept = headers if is_whole else [("dlq_omitted_bytes", str(size).encode())]
    return OutboxRow(
        topic=topic,
        key=record.key if is_whole or len(record.key or b"") <= _KEY_BYTES_KEPT else None,
        value=record.value if is_whole else None,
        headers=[
            *kept,
            *missing_attributes(kept, record.position, group=group, topic=topic, arrived_ms=record.arrived_ms),
            ("dlq_reason", letter.reason.encode()),
            ("dlq_detail", letter.detail[:_DETAIL_CHARACTERS_MAX].encode("utf-8", "replace")),
            ("dlq_origin", str(record.position).encode()),
            ("dlq_group", group.encode()),
            ("dlq_time", iso_from_ms(now_ms).encode()),
        ],
    )
