"""Reads dead letters from the log, with the actions on them. Blocking: from a loop, call it in a thread.

Invariant: reading joins no consumer group and changes no offsets; its end is fixed before it begins.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from highwater.api.dead_letters.letter import Handling, Letter, dead_letters_of, handling_of
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.reading import Decoder, Place, log_ranges_of, open_reader, read_spans
from highwater.connectors.kafka.records import Record
from highwater.connectors.kafka.registry import Registry
from highwater.schemas import codec
from highwater.schemas.envelope import iso_or_number
from highwater.schemas.errors import InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.readable import Reading, readable
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic, dead_letter_topic

HANDLED = "streams.dead-letter-handled"
# What one listing reads per topic; more letters indicate a broken producer, and nobody reads through them.
LISTED_MAX = 10_000
# Remembered actions: as many as letters are listed for two topics.
_HANDLED_MAX = 20_000
# What a page or a terminal shows of a letter with a foreign schema; a larger one is shown as bytes.
_VALUES_SHOWN_MAX = 100_000


class LetterBox:
    """The dead letters of a deployment."""

    def __init__(self, client: Mapping[str, str], registry: Registry) -> None:
        self._client = client
        self._admin = Admin(client)
        self._registry = registry
        self._decoders: dict[str, Decoder] = {}

    def summary(self) -> list[dict[str, Any]]:
        """Return, for each topic that has letters: their number, the number not resent, the reasons, and the time of
        the latest.
        """
        topics = [dead_letter_topic(topic) for topic in TOPICS.values()]
        counts: Counter[str] = Counter()
        for place, held in self.ranges(topics).items():
            counts[place[0]] += held.high - held.low
        reasons: dict[str, Counter[str]] = {}
        sent_again: Counter[str] = Counter()
        arrived: dict[str, int] = {}
        for letter in self.letters([topic for topic in topics if counts[topic.name]], latest=LISTED_MAX):
            name = letter.record.topic
            reasons.setdefault(name, Counter())[letter.reason or "unknown"] += 1
            sent_again[name] += not letter.is_open
            arrived[name] = max(letter.record.arrived_ms, arrived.get(name, 0))
        return [
            {
                "topic": name.removesuffix(DEAD_LETTER_SUFFIX),
                "count": count,
                "open": count - sent_again[name],
                "reasons": dict(reasons.get(name, Counter()).most_common()),
                "latest_at": iso_or_number(arrived[name]) if name in arrived else None,
            }
            for name, count in sorted(counts.items())
            if count
        ]

    def letters(
        self, topics: Iterable[Topic], *, latest: int | None = None, only: int | None = None
    ) -> Iterator[Letter]:
        """Yield dead letters of topics in order: all, the latest of each, or the one at an offset.

        Raises:
            UnavailableError: Kafka is unavailable.
        """
        handled: dict[Position, list[Handling]] | None = None
        for record in self._records([dead_letters_of(topic) for topic in topics], latest=latest, only=only):
            if handled is None:  # read after the ends were fixed, and only if there is a letter
                handled = self.handled()
            yield Letter(record, tuple(handled.get(record.position, ())))

    def handled(self) -> dict[Position, list[Handling]]:
        """Return the actions by letter; events that no Highwater version has written are skipped."""
        found: dict[Position, list[Handling]] = {}
        decoder: Decoder | None = None
        for record in self._records([TOPICS[HANDLED]], latest=_HANDLED_MAX):
            decoder = decoder or self._decoder(HANDLED)
            try:
                one = handling_of(decoder.decode(record.value))
            except (InvalidEventError, UnknownSchemaError, ValueError):
                continue
            found.setdefault(one.letter, []).append(one)
        return found

    def shown(self, letter: Letter) -> dict[str, Any]:
        """Return a complete letter as JSON.

        In addition to `Letter.document`: headers; `value`, or `undecodable` with the reason and, if the bytes are Avro
        of another schema in the registry, `as_written`; `schema_id`; `bytes_base64`.
        """
        record = letter.record
        document = {**self._decoder(letter.topic).shown(record), **letter.document()}
        document["bytes_base64"] = letter.bytes_base64()
        document["schema_id"] = None if record.value is None else schema_id_of(record.value)
        if "value" not in document:
            document["as_written"] = self.as_written(record.value)
        return document

    def document_of(self, letter: Letter) -> dict[str, Any]:
        """Return the document that an edit starts from: the decoded value, else the bytes decoded by their own schema,
        else nothing.
        """
        try:
            return self._decoder(letter.topic).decode(letter.record.value)
        except (InvalidEventError, UnknownSchemaError):
            found = self.as_written(letter.record.value)
            return found if isinstance(found, dict) else {}

    def as_written(self, value: bytes | None) -> Any:
        """Decode bytes by the schema id in them, for any topic; None if that fails."""
        schema_id = None if value is None else schema_id_of(value)
        if value is None or schema_id is None:
            return None
        try:
            reading = Reading(readable(asyncio.run(self._registry.text_of(schema_id))), None)
            return _json_value(reading.read(value, codec.PREFIX_BYTES, values_max=_VALUES_SHOWN_MAX))
        except (UnknownSchemaError, UnavailableError, InvalidEventError):
            return None

    def ranges(self, topics: Iterable[Topic]) -> dict[Place, LogRange]:
        """Return the offsets that the broker holds of topics; missing topics are left out."""
        return asyncio.run(log_ranges_of(self._admin, [topic.name for topic in topics]))

    def partitions(self) -> dict[str, int]:
        """Return the partitions of every topic on the broker."""
        return asyncio.run(self._admin.partition_counts())

    def _decoder(self, topic: str) -> Decoder:
        if topic not in self._decoders:
            self._decoders[topic] = asyncio.run(Decoder.of(topic, self._registry))
        return self._decoders[topic]

    def _records(self, topics: list[Topic], *, latest: int | None = None, only: int | None = None) -> Iterator[Record]:
        spans = {}
        for place, held in self.ranges(topics).items():
            if only is not None:
                spans[place] = LogRange(max(held.low, only), min(held.high, only + 1))
            else:
                spans[place] = LogRange(held.low if latest is None else max(held.low, held.high - latest), held.high)
        if not any(span.low < span.high for span in spans.values()):
            return
        reader = open_reader(self._client)
        try:
            yield from read_spans(reader, spans)
        finally:
            reader.close()


async def in_thread(letters: Iterator[Letter]) -> AsyncIterator[Letter]:
    """Yield letters for a loop: each is read in a thread, since reading blocks."""
    while (letter := await asyncio.to_thread(next, letters, None)) is not None:
        yield letter


def schema_id_of(value: bytes) -> int | None:
    """Return the schema id of bytes in the wire format; None if they have another form."""
    try:
        return codec.schema_id_of(value)
    except InvalidEventError:
        return None


def _json_value(value: Any) -> Any:
    """Return a decoded Avro value as JSON: bytes as base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): _json_value(one) for name, one in value.items()}
    return [_json_value(one) for one in value] if isinstance(value, list) else value
