"""Shows values of another application's topic: by a schema of the registry, else as JSON, else as text.

A value names its schema by its prefix (byte 0 and the id), or in the header `__value_schema_id` (byte 0 and the id, or
byte 1 and the GUID; the value has no prefix then). Source: `SchemaId` of Confluent's clients, version 2.10 and later.

Invariant: nothing is guessed about other bytes: they are refused with the reason, and the caller shows the bytes. The
registry is asked once for each schema, and for a limited number of schemas that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from highwater.schemas.codec import PREFIX_BYTES, schema_id_of
from highwater.schemas.envelope import Headers
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError, UnknownSchemaGuidError
from highwater.schemas.exact_json import read_json, write_json
from highwater.schemas.logical_types import Conversion, conversion_of
from highwater.schemas.readable import Reading, readable
from highwater.schemas.shapes import clean_schema

# The id of a schema in its registry, or the GUID that it has in every registry.
SchemaName = int | UUID
SCHEMA_HEADER = "__value_schema_id"
_GUID_MARK, _GUID_BYTES = b"\1", 16
# Bytes that only look like the wire format name a new schema in each record: after this many the registry is asked no
# more.
UNKNOWN_SCHEMAS_MAX = 50
# Control characters that text may contain: tab, line feed, carriage return.
_CONTROLS = dict.fromkeys(one for one in range(0x20) if one not in b"\t\n\r")


class _Framing(NamedTuple):
    """The schema that a value names, where the value begins, and whether a header names it."""

    schema: SchemaName
    begin: int
    is_in_header: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Schema:
    """How values of a schema are read, and how its logical types are shown (None: it has none)."""

    reading: Reading
    conversion: Conversion | None

    @classmethod
    def of(cls, text: str) -> _Schema:
        """Read a schema's text.

        Raises:
            UnsafeSchemaError: its values are not decoded.
        """
        reading = Reading(readable(text), None)
        return cls(reading, conversion_of(clean_schema(text, keeps_logical_types=True).document))

    def json(self, raw: bytes, begin: int) -> _AvroJson:
        """Return the datum from `begin` on.

        Raises:
            InvalidEventError: the bytes do not fit the schema.
        """
        datum = self.reading.read(raw, begin)
        if self.conversion is None:
            return _AvroJson(write_json(datum), is_exact=True)
        return _AvroJson(write_json(self.conversion(datum)), is_exact=False)


class _AvroJson(NamedTuple):
    """The JSON of a value in Avro. `is_exact`: its numbers are integers of 64 bits and doubles."""

    text: bytes
    is_exact: bool


class ForeignValues:
    """Reads values; `text_of` returns the Avro schema of an id or a GUID, or raises `UnknownSchemaError`."""

    def __init__(self, text_of: Callable[[SchemaName], str]) -> None:
        self._text_of = text_of
        self._schemas: dict[SchemaName, _Schema | None] = {}
        self._unknown = 0

    def value(self, raw: bytes, headers: Headers | None = None) -> Any:
        """Return the value as JSON has it, long numbers as `LongNumber`; of Avro, bytes in base64 and logical types by
        what they mean.

        Raises:
            InvalidEventError: it is neither Avro of a registered schema, nor JSON, nor text.
        """
        found = self._avro(raw, headers)
        if found is not None:
            return orjson.loads(found.text) if found.is_exact else read_json(found.text)
        parsed = _parsed(raw)
        return _text(raw) if parsed is None else parsed[1]

    def json(self, raw: bytes, headers: Headers | None = None) -> str:
        """Return the same as a text of JSON; what is JSON as it was written.

        Raises:
            InvalidEventError: as of `value`.
        """
        found = self._avro(raw, headers)
        if found is not None:
            return found.text.decode()
        parsed = _parsed(raw)
        return (orjson.dumps(_text(raw)) if parsed is None else parsed[0]).decode()

    def _avro(self, raw: bytes, headers: Headers | None) -> _AvroJson | None:
        """Return a value by the schema that it names; None if it names none, or one that is not Avro.

        Raises:
            InvalidEventError: it does not fit the schema; or a header names a schema that is not available, and the value is
                no JSON object or array.
        """
        framing = _framing(raw, headers)
        if framing is None:
            return None
        schema = self._schema(framing.schema)
        if schema is not None:
            return schema.json(raw, framing.begin)
        if framing.is_in_header and not (raw[:1] in (b"{", b"[") and _parsed(raw)):
            raise InvalidEventError(
                "unknown_schema",
                f"the header {SCHEMA_HEADER} names the schema with the {schema_named(raw, headers)}, of which the registry has"
                " no Avro schema",
            )
        return None

    def _schema(self, schema: SchemaName) -> _Schema | None:
        """Return how values of a schema are shown; None if it is not available."""
        if schema not in self._schemas:
            if self._unknown >= UNKNOWN_SCHEMAS_MAX:
                return None
            self._schemas[schema] = self._made(schema)
            self._unknown += self._schemas[schema] is None
        return self._schemas[schema]

    def _made(self, schema: SchemaName) -> _Schema | None:
        try:
            return _Schema.of(self._text_of(schema))
        except (
            UnknownSchemaError,
            UnknownSchemaGuidError,
            InvalidEventError,
        ):  # missing, or not an Avro schema: the bytes are shown
            return None


def _framing(raw: bytes, headers: Headers | None) -> _Framing | None:
    """Return the schema that a value names; None if it names none."""
    for name, framed in headers or ():
        if name == SCHEMA_HEADER and framed is not None:
            if framed[:1] == _GUID_MARK and len(framed) > _GUID_BYTES:
                return _Framing(UUID(bytes=framed[1 : 1 + _GUID_BYTES]), 0, is_in_header=True)
            try:
                return _Framing(schema_id_of(framed), 0, is_in_header=True)
            except InvalidEventError:  # another application's header of that name
                break
    try:
        return _Framing(schema_id_of(raw), PREFIX_BYTES, is_in_header=False)
    except InvalidEventError:
        return None


def schema_named(raw: bytes, headers: Headers | None) -> str | None:
    """Return the schema that a value or its header names, in words; None if neither names one."""
    framing = _framing(raw, headers)
    if framing is None:
        return None
    return f"{'GUID' if isinstance(framing.schema, UUID) else 'id'} {framing.schema}"


def with_prefix(raw: bytes | None, headers: Headers | None) -> bytes | None:
    """Return a value in the form that has its schema's id in front of it, also if a header has the id."""
    framing = None if raw is None else _framing(raw, headers)
    if raw is None or framing is None or not framing.is_in_header or isinstance(framing.schema, UUID):
        return raw
    return b"\0" + framing.schema.to_bytes(4, "big") + raw


def _parsed(raw: bytes) -> tuple[bytes, Any] | None:
    """Return the JSON of a value as it was written, and parsed; None if it is not JSON.

    The wire format of JSON values has the same prefix as that of Avro.
    """
    for text in (raw, raw[PREFIX_BYTES:]) if raw[:1] == b"\0" else (raw,):
        try:
            return text, read_json(text)
        except ValueError:
            continue
    return None


def _text(raw: bytes) -> str:
    """Return a value that is text.

    Raises:
        InvalidEventError: it is not text.
    """
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        found = "\0"
    if any(ord(one) in _CONTROLS for one in found):
        raise InvalidEventError("not_text", "the value is neither Avro of a registered schema, nor JSON, nor text")
    return found
