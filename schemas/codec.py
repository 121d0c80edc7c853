"""Avro in the Confluent wire format: byte 0, a big-endian schema id, the Avro body. No I/O.

The codec knows only the ids it was told of; a fresh id is reported as `UnknownSchemaError`, and whoever talks to the
registry teaches it. Format: Confluent Schema Registry documentation, "Wire format".
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from highwater.schemas.avro_files import parse_for_reading, parsed_schema, schema_text
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.topics import TOPICS

_HEADER = struct.Struct(">bI")
_MAGIC = 0
# What stands before the Avro body.
PREFIX_BYTES = _HEADER.size


def schema_id_of(value: bytes) -> int:
    """The id of the schema that a value was written with.

    Raises:
        InvalidEventError: the bytes are not in the wire format.
    """
    if len(value) < PREFIX_BYTES or value[0] != _MAGIC:
        raise InvalidEventError("not_wire_format", "the value does not start with magic byte 0 and a schema id")
    schema_id: int = _HEADER.unpack_from(value)[1]
    return schema_id


def read_event(value: bytes, schema_id: int, writer: Any, reader: Any) -> dict[str, Any]:
    """The event in a value that was written with the parsed schema `writer`, read into `reader` (None: the same).

    Raises:
        InvalidEventError: the bytes do not fit the schema.
    """
    body = io.BytesIO(value)
    body.seek(PREFIX_BYTES)
    try:
        event = schemaless_reader(body, writer, reader)
    except Exception as error:  # fastavro raises whatever the bytes provoke, down to IndexError and MemoryError
        raise InvalidEventError(
            "not_avro", f"schema {schema_id} does not fit: {error or type(error).__name__}"
        ) from error
    if body.tell() != len(value):
        raise InvalidEventError("not_avro", f"{len(value) - body.tell()} bytes are left over after the event")
    if not isinstance(event, dict):
        raise InvalidEventError("not_avro", f"schema {schema_id} is not a record")
    return event


class Codec:
    """Encodes and decodes the values of catalogued topics."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` gives, for each topic, the id under which the registry holds its current schema."""
        self._prefix = {topic: _HEADER.pack(_MAGIC, schema_id) for topic, schema_id in ids.items()}
        self._own = {topic: parsed_schema(TOPICS[topic].schema) for topic in ids}
        self._current = dict(ids)
        self._texts: dict[int, str] = {}
        self._writers: dict[int, Any] = {}
        for topic, schema_id in ids.items():
            self.teach(schema_id, schema_text(TOPICS[topic].schema))

    def teach(self, schema_id: int, text: str) -> None:
        """Make a schema id known; `text` is the Avro schema as the registry holds it."""
        self._texts[schema_id] = text
        self._writers[schema_id] = parse_for_reading(text)

    def encode(self, topic: str, event: Mapping[str, object]) -> bytes:
        """The bytes of an event under the topic's current schema.

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
        """The event in a record's value, times as milliseconds.

        Raises:
            InvalidEventError: the bytes are not Avro in the wire format, or do not fit the topic's schema.
            UnknownSchemaError: the id is not known here; ask the registry, teach, and decode again.
        """
        if value is None:
            raise InvalidEventError("empty_value", "the record has no value")
        schema_id = schema_id_of(value)
        writer = self._writers.get(schema_id)
        if writer is None:
            raise UnknownSchemaError(schema_id)
        reader = None if self._current.get(topic) == schema_id else self._own[topic]
        return read_event(value, schema_id, writer, reader)

    def field_names(self, topic: str) -> tuple[str, ...]:
        """The fields of a topic's events, in order."""
        return tuple(field["name"] for field in json.loads(schema_text(TOPICS[topic].schema))["fields"])
