"""Reads topics for people: by assignment, outside any consumer group, so that no group's offsets change.

Invariant: unless it follows, a read has an end that was fixed before it began (the high-water marks of that moment).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.foreign_values import ForeignValues
from highwater.connectors.kafka.records import Record, record_of
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.kafka.signals import deferred_signals
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, headers_of, iso_or_number, text_of
from highwater.schemas.errors import InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.json_events import event_to_json
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX, DEAD_LETTER_SUFFIX, TOPICS

Place = tuple[str, int]  # topic, partition

# A broker that sends nothing for this long, though it reported more records, is unavailable.
SILENCE_SECONDS = 15.0
_POLL_SECONDS = 0.2


def open_reader(
    client: Mapping[str, str], *, fetch_bytes: int = DEAD_LETTER_BYTES_MAX, more: Mapping[str, Any] | None = None
) -> Consumer:
    """Open a consumer that joins no group and commits nothing; librdkafka requires a group name anyway. `more`: settings."""
    with deferred_signals():
        return Consumer(
            {
                **client,
                "client.id": "highwater-read",
                "group.id": "highwater-read",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": fetch_bytes,
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 32 * 1024,
                **(more or {}),
            }
        )


def read_spans(
    consumer: Consumer,
    spans: Mapping[Place, LogRange],
    *,
    first_only: bool = False,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[Record]:
    """Yield every record of each partition's span, or its first; partitions are not ordered among themselves.

    Raises:
        UnavailableError: the broker became unavailable.
    """
    ends = {place: span.high for place, span in spans.items() if span.low < span.high}
    consumer.assign([TopicPartition(*place, spans[place].low) for place in ends])
    # A pause outlasts an assignment: a partition that an earlier call read to its end would stay silent.
    consumer.resume([TopicPartition(*place) for place in ends])
    silent_polls = 0
    while ends:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            silent_polls += 1
            if silent_polls * _POLL_SECONDS > silence_seconds:
                raise UnavailableError(f"Kafka sent nothing for {silence_seconds:.0f} s")
            continue
        silent_polls = 0
        place = (message.topic(), message.partition())
        if is_end(message):
            ends.pop(place, None)
            continue
        if place not in ends:
            continue
        # A log that does not have the first offset (recreated, or shorter than a position says) is read from its beginning.
        if spans[place].low <= message.offset() < ends[place]:
            yield record_of(message)
        if first_only or message.offset() + 1 >= ends[place]:
            del ends[place]
            consumer.pause([TopicPartition(*place)])


def read_record(reader: Consumer, position: Position) -> Record | None:
    """Return the record at a position; None if the log does not have it.

    Raises:
        UnavailableError: the broker became unavailable.
    """
    span = LogRange(position.offset, position.offset + 1)
    return next(read_spans(reader, {(position.topic, position.partition): span}), None)


def is_end(message: Message) -> bool:
    """Return whether a polled message reports the end of its partition.

    Raises:
        UnavailableError: it reports an error.
    """
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
        return True
    raise UnavailableError(f"Kafka: {error.str()}")


async def log_ranges_of(admin: Admin, topics: list[str]) -> dict[Place, LogRange]:
    """Return the first and one-past-last offset of every partition of topics; topics that are not on the broker are left out."""
    counts = await admin.partition_counts()
    places = [(topic, partition) for topic in topics for partition in range(counts.get(topic, 0))]
    return await admin.log_ranges(places) if places else {}


class Decoder:
    """Decodes values of one topic as JSON; a dead letter's by the topic it came from."""

    def __init__(self, topic: str, codec: Codec, registry: Registry) -> None:
        self._topic = topic.removesuffix(DEAD_LETTER_SUFFIX)
        self._codec = codec
        self._registry = registry

    @classmethod
    async def of(cls, topic: str, registry: Registry) -> Decoder:
        """Return the decoder of a topic; values of one outside the catalogue are read by `foreign_values.py`."""
        known = TOPICS.get(topic.removesuffix(DEAD_LETTER_SUFFIX))
        codec = await registry.codec([] if known is None else [known])
        return (_ForeignDecoder if known is None else cls)(topic, codec, registry)

    def decode(self, value: bytes | None, headers: Headers | None = None) -> dict[str, Any]:
        """Return the event as JSON.

        Raises:
            InvalidEventError: the bytes are not an event of the topic.
            UnknownSchemaError: they name a schema that the registry does not have.
        """
        del headers  # our events name their schema in the value
        try:
            event = self._codec.decode(self._topic, value)
        except UnknownSchemaError as error:
            self._codec.teach(error.schema_id, asyncio.run(self._registry.text_of(error.schema_id)))
            event = self._codec.decode(self._topic, value)
        return event_to_json(self._topic, event)

    def shown(self, record: Record) -> dict[str, Any]:
        """Return a record as JSON: `value`, or `undecodable` with the reason and `bytes_base64`.

        The value `null` of JSON has `bytes_base64`, unlike a tombstone.
        """
        document: dict[str, Any] = {
            "position": str(record.position),
            "timestamp": iso_or_number(record.arrived_ms),
            "key": text_of(record.key),
            "headers": headers_of(record.headers),
        }
        try:
            document["value"] = self.decode(record.value, record.headers)
        except (InvalidEventError, UnknownSchemaError) as error:
            document["undecodable"] = str(error)
        if document.get("value") is None and record.value is not None:
            document["bytes_base64"] = base64.b64encode(record.value).decode()
        return document


class _ForeignDecoder(Decoder):
    """Decodes values of another application's topic, of any JSON type."""

    def __init__(self, topic: str, codec: Codec, registry: Registry) -> None:
        super().__init__(topic, codec, registry)
        self._values = ForeignValues(lambda schema_id: asyncio.run(registry.text_of(schema_id)))

    def decode(self, value: bytes | None, headers: Headers | None = None) -> dict[str, Any]:
        return cast("dict[str, Any]", None if value is None else self._values.value(value, headers))


def kafka_error(error: KafkaException) -> UnavailableError:
    """Return an error of librdkafka as an error of Highwater."""
    return UnavailableError(f"Kafka: {error.args[0].str()}")
