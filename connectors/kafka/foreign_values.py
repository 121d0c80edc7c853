"""Shows values of another application's topic: by a schema of the registry, else as JSON, else as text.

Invariant: nothing is guessed about other bytes: they are refused with the reason, and the caller shows the bytes. The
registry is asked once for each schema, and for a limited number of schemas that it does not have.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson

from highwater.schemas.codec import PREFIX_BYTES, schema_id_of
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.readable import Reading, readable

# Bytes that only look like the wire format name a new schema in each record: after this many the registry is asked no
# more.
UNKNOWN_SCHEMAS_MAX = 50
# Control characters that text may contain: tab, line feed, carriage return.
_CONTROLS = dict.fromkeys(one for one in range(0x20) if one not in b"\t\n\r")


class ForeignValues:
    """Reads values; `text_of` returns the Avro schema of an id, or raises `UnknownSchemaError`."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self._readings: dict[int, Reading | None] = {}
        self._unknown = 0

    def value(self, raw: bytes) -> Any:
        """Return the value as JSON has it; bytes within an Avro value in base64.

        Raises:
            InvalidEventError: it is neither Avro of a registered schema, nor JSON, nor text.
        """
        reading = self._reading(raw)
        if reading is not None:
            return _as_json(reading.read(raw, PREFIX_BYTES))
        parsed = _parsed(raw)
        return _text(raw) if parsed is None else parsed[1]

    def json(self, raw: bytes) -> str:
        """Return the same as a text of JSON; what is JSON as it was written, so that no number loses digits.

        Raises:
            InvalidEventError: as of `value`.
        """
        reading = self._reading(raw)
        if reading is not None:
            return orjson.dumps(reading.read(raw, PREFIX_BYTES), default=_plain).decode()
        parsed = _parsed(raw)
        return (orjson.dumps(_text(raw)) if parsed is None else parsed[0]).decode()

    def _reading(self, raw: bytes) -> Reading | None:
        """Return how a value in the wire format is read; None if it has another format, or its schema is not available."""
        try:
            schema_id = schema_id_of(raw)
        except InvalidEventError:
            return None
        if schema_id not in self._readings:
            if self._unknown >= UNKNOWN_SCHEMAS_MAX:
                return None
            self._readings[schema_id] = self._made(schema_id)
            self._unknown += self._readings[schema_id] is None
        return self._readings[schema_id]

    def _made(self, schema_id: int) -> Reading | None:
        try:
            return Reading(readable(self._text_of(schema_id)), None)
        except (UnknownSchemaError, InvalidEventError):  # missing, or not an Avro schema: the bytes are shown
            return None


def _parsed(raw: bytes) -> tuple[bytes, Any] | None:
    """Return the JSON of a value as it was written, and parsed; None if it is not JSON.

    The wire format of JSON values has the same prefix as that of Avro.
    """
    for text in (raw, raw[PREFIX_BYTES:]) if raw[:1] == b"\0" else (raw,):
        try:
            return text, orjson.loads(text)
        except orjson.JSONDecodeError:
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


def _as_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=_plain))


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
