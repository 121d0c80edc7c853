"""Avro in the Confluent wire format: byte 0, a big-endian schema id, the Avro body. No I/O.

The codec knows only the ids that it was taught; an unknown id is reported as `UnknownSchemaError`, and the client of
the registry teaches it. Taught schemas are read through `readable.py`, so that no schema and no bytes block the reader.
Format: Confluent Schema Registry documentation, "Wire format".
"""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastavro import schemaless_writer

from highwater.schemas.avro_files import own_schema, parsed_schema, schema_text
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.readable import Readable, Reading, readable
from highwater.schemas.shapes import UnsafeSchemaError
from highwater.schemas.topics import TOPICS

if TYPE_CHECKING:
    from highwater.schemas.columns import ColumnReader

_HEADER = struct.Struct(">bI")
_MAGIC = 0
# The prefix of the Avro body.
PREFIX_BYTES = _HEADER.size
# Text of foreign schemas in the cache, in characters; parsed they take some twenty times as much, and the oldest are
# evicted. Highwater's own versions have 3 KB, so a thousand of them fit; a producer that keeps naming new schemas does not fill
# the memory.
_TAUGHT_BYTES_MAX = 4 << 20
# The size that a refused schema counts for; its text is not kept.
_REFUSAL_BYTES = 1_000


def schema_id_of(value: bytes) -> int:
    """Return the id of the schema that a value was written with.

    Raises:
        InvalidEventError: the bytes are not in the wire format.
    """
    if len(value) < PREFIX_BYTES or value[0] != _MAGIC:
        raise InvalidEventError("not_wire_format", "the value does not start with magic byte 0 and a schema id")
    schema_id: int = _HEADER.unpack_from(value)[1]
    return schema_id


def read_event(value: bytes, schema_id: int, reading: Reading) -> dict[str, Any]:
    """Return the event in a value in the wire format.

    Raises:
        InvalidEventError: the bytes do not fit the schema, or hold more values than are decoded.
    """
    if not reading.writer.is_record:
        raise InvalidEventError("not_avro", f"schema {schema_id} is not a record")
    try:
        event: dict[str, Any] = reading.read(value, PREFIX_BYTES)
    except InvalidEventError as error:
        raise InvalidEventError(error.reason, f"schema {schema_id} does not fit: {error}") from error
    return event


@dataclass(slots=True)
class _Known:
    """A schema of an id, or why it is not decoded. `readings` are created when topics need them."""

    schema: Readable | UnsafeSchemaError
    readings: dict[str | None, Reading | UnsafeSchemaError] = field(default_factory=dict)


class Codec:
    """Encodes and decodes the values of catalogued topics."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` maps each topic to the id of its current schema in the registry."""
        self._prefix = {topic: _HEADER.pack(_MAGIC, schema_id) for topic, schema_id in ids.items()}
        self._own = {topic: parsed_schema(TOPICS[topic].schema) for topic in ids}
        self._current = dict(ids)
        self._columns: dict[str, ColumnReader | None] = {}  # created on demand
        self._known = {schema_id: _Known(own_schema(TOPICS[topic].schema)) for topic, schema_id in ids.items()}
        self._taught: dict[int, int] = {}  # schema id -> size of its text, oldest first
        self._taught_bytes = 0
        self._teaching = threading.Lock()

    def teach(self, schema_id: int, text: str) -> None:
        """Add a schema id; `text` is the Avro schema as the registry holds it.

        A refused one is remembered: `decode` refuses its records by name.
        """
        if schema_id in self._known and schema_id not in self._taught:
            return  # of the catalogue
        schema: Readable | UnsafeSchemaError
        try:
            schema, size = readable(text), len(text)
        except UnsafeSchemaError as error:
            schema, size = error.with_traceback(None), _REFUSAL_BYTES
        with self._teaching:  # readers in threads share a codec
            self._taught_bytes += size - self._taught.pop(schema_id, 0)
            self._taught[schema_id] = size
            self._known[schema_id] = _Known(schema)
            while self._taught_bytes > _TAUGHT_BYTES_MAX and len(self._taught) > 1:
                oldest = next(iter(self._taught))
                self._taught_bytes -= self._taught.pop(oldest)
                del self._known[oldest]

    def encode(self, topic: str, event: Mapping[str, object]) -> bytes:
        """Return the bytes of an event with the topic's current schema.

        Raises:
            InvalidEventError: a field is missing or has the wrong type.
        """
        buffer = io.BytesIO()
        buffer.write(self._prefix[topic])
        try:
            schemaless_writer(buffer, self._own[topic], event, strict_allow_default=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
            raise InvalidEventError("not_of_schema", f"not a {TOPICS[topic].schema}: {error}") from error
        return buffer.getvalue()

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """Return the event in a record's value, times as milliseconds.

        Raises:
            InvalidEventError: the bytes are not Avro in the wire format, or do not fit the topic's schema, or their
                schema or
                their size is refused.
            UnknownSchemaError: the id is unknown here; ask the registry, teach it, and decode again.
        """
        if value is None:
            raise InvalidEventError("empty_value", "the record has no value")
        schema_id = schema_id_of(value)
        known = self._known.get(schema_id)
        if known is None:
            raise UnknownSchemaError(schema_id)
        reader = None if self._current.get(topic) == schema_id else topic
        reading = known.readings.get(reader)
        if reading is None:
            reading = known.readings[reader] = _reading(known, reader)
        if isinstance(reading, UnsafeSchemaError):
            raise UnsafeSchemaError(f"schema {schema_id} is not decoded: {reading}")
        return read_event(value, schema_id, reading)

    def decode_many(self, topic: str, values: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
        """Return the events in many values of a topic; None for each value that `decode` has to read or refuse.

        Several times faster than one by one, for values in the topic's current schema, if that is flat.
        """
        if topic not in self._columns:
            # Loads NumPy, which a process with few events at a time does not need.
            from highwater.schemas.columns import column_reader  # noqa: PLC0415 - see above

            schema = own_schema(TOPICS[topic].schema) if topic in self._current else None
            self._columns[topic] = None if schema is None else column_reader(schema.as_reader, self._prefix[topic])
        reader = self._columns[topic]
        return [None] * len(values) if reader is None else reader.read(values)

    def field_names(self, topic: str) -> tuple[str, ...]:
        """Return the fields of a topic's events, in order."""
        return tuple(field["name"] for field in json.loads(schema_text(TOPICS[topic].schema))["fields"])


def _reading(known: _Known, topic: str | None) -> Reading | UnsafeSchemaError:
    """Return how events of a schema are read into a topic's (None: unchanged)."""
    if isinstance(known.schema, UnsafeSchemaError):
        return known.schema
    try:
        return Reading(known.schema, None if topic is None else own_schema(TOPICS[topic].schema))
    except UnsafeSchemaError as error:
        return error.with_traceback(None)
