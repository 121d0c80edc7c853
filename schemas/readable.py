"""The only access to the Avro library's reader: a schema passes through it once, and then every record that names the
schema.

Invariants. The library never sees a refused schema. For any bytes a record has one outcome within limited time and
memory: the datum, or an `InvalidEventError` that names the reason (`unsafe_schema`, `too_many_values`, `not_avro`).

This module limits what the library does not. Reading `count` items of no bytes never ends: such a schema is refused
(`bounds.py`). Skipping fields that the reader does not need ignores the end of the bytes: there the bytes are read
through `_Counted`, which checks it. The library accepts an index of -1 for the last branch or symbol: `_Strict` does
not.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import to_parsing_canonical_form

from highwater.schemas.bounds import Bounds, ReaderCosts, bounds_of, reader_costs
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.shapes import Kind, Shape, UnsafeSchemaError, clean_schema

# A third of a second of decoding and 60 MB at worst. Our fullest events, novelty packed to 200 KB, could hold 470,000
# by their size, so that they are never counted.
VALUES_MAX = 500_000
# If the schema of a value is not a record, one with this name and this one field wraps it.
_WRAPPER, _WRAPPED = "highwater.Wrapped", "value"


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """A schema that may be decoded, as the Avro library needs it, times left as the integers that they are written as.

    `as_writer` is what data were written with, `as_reader` what others are read into.
    """

    as_writer: Any
    as_reader: Any
    shape: Shape
    canonical_form: str
    is_record: bool
    bounds: Bounds
    costs: ReaderCosts


def readable(text: str) -> Readable:
    """Return the schema in a text for reading.

    Raises:
        UnsafeSchemaError: it must not be decoded.
    """
    clean = clean_schema(text)
    is_record = clean.shape.kind is Kind.RECORD
    bounds = bounds_of(clean.shape)
    document = clean.document
    if not is_record:
        document = {"type": "record", "name": _WRAPPER, "fields": [{"name": _WRAPPED, "type": document}]}
    try:
        as_writer, as_reader = parse_schema(document), parse_schema(document)
    except Exception as error:  # a schema can provoke any error of the library, including KeyError and TypeError
        raise UnsafeSchemaError(f"the schema cannot be parsed: {error or type(error).__name__}"[:500]) from error
    form = to_parsing_canonical_form(as_reader)
    _make_strict(as_writer)
    return Readable(as_writer, as_reader, clean.shape, form, is_record, bounds, reader_costs(clean.shape))


def parsed_for_writing(text: str) -> Any:
    """Return a schema for the Avro library's writer, times left as integers (milliseconds since 1970-01-01 UTC).

    Raises:
        UnsafeSchemaError: it could not be read.
    """
    clean = clean_schema(text)
    bounds_of(clean.shape)
    return parse_schema(clean.document)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A writer's schema with the one that its data are read into (None: the same)."""

    writer: Readable
    reader: Readable | None
    bounds: Bounds = field(init=False)
    _uncounted_bytes_max: int = field(init=False)

    def __post_init__(self) -> None:
        """Add the reader's cost.

        Raises:
            UnsafeSchemaError: together they hold more than any event needs.
        """
        bounds = self.writer.bounds if self.reader is None else bounds_of(self.writer.shape, self.reader.costs)
        object.__setattr__(self, "bounds", bounds)
        # Without a reader nothing is skipped, and few bytes hold few values: those are read in C, uncounted.
        size = -1 if self.reader is not None else int((VALUES_MAX - bounds.from_nothing) / max(1.0, bounds.per_byte))
        object.__setattr__(self, "_uncounted_bytes_max", size)

    def read(self, value: bytes, begin: int, *, values_max: int = VALUES_MAX) -> Any:
        """Return the datum in the bytes from `begin` to their end.

        Raises:
            InvalidEventError: `not_avro`, the bytes do not fit; `too_many_values`, they hold more than is decoded.
        """
        is_counted = len(value) > self._uncounted_bytes_max or values_max < VALUES_MAX
        body = _Counted(value, self.bounds, values_max) if is_counted else io.BytesIO(value)
        body.seek(begin)
        try:
            datum = schemaless_reader(
                body, self.writer.as_writer, None if self.reader is None else self.reader.as_reader
            )
        except InvalidEventError:
            raise
        except Exception as error:  # bytes can provoke any error of the library, including IndexError and MemoryError
            raise InvalidEventError("not_avro", f"{error or type(error).__name__}"[:500]) from error
        if body.tell() != len(value):
            raise InvalidEventError("not_avro", f"{len(value) - body.tell()} bytes are left over after the event")
        return datum if self.writer.is_record else datum[_WRAPPED]


class _Counted(io.BytesIO):
    """Bytes that are read in a limited number of pieces and only to their end."""

    def __init__(self, value: bytes, bounds: Bounds, values_max: int) -> None:
        super().__init__(value)
        self._values_max = values_max
        self._left = max(0, int((values_max - bounds.from_nothing) / max(1.0, bounds.per_byte)))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next piece, complete."""
        self._left -= 1
        if self._left < 0:
            raise InvalidEventError("too_many_values", f"the record may hold more than {self._values_max:,} values")
        if size is None or size < 0:
            raise EOFError(f"a length of {size}")
        found = super().read(size)
        if len(found) != size:
            raise EOFError(f"Expected {size} bytes, read {len(found)}")
        return found


class _Strict(list[Any]):
    """Branches of a union, or symbols of an enum: an index below 0 is invalid.

    The library adds the length to an index below 0 before the lookup; therefore the list reports a length of zero.
    Nothing else reads the length of a writer's list; a reader's is another, plain list.
    """

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise IndexError(f"there is no branch or symbol {index}")
        return super().__getitem__(index)


def _make_strict(parsed: dict[str, Any]) -> None:
    """Replace the lists of a parsed record that are indexed by the bytes."""
    for one in parsed["fields"]:
        one["type"] = _strict(one["type"])


def _strict(parsed: Any) -> Any:
    if isinstance(parsed, list):
        return _Strict(_strict(branch) for branch in parsed)
    if isinstance(parsed, dict):
        for inner in ("items", "values"):
            if inner in parsed:
                parsed[inner] = _strict(parsed[inner])
        if "symbols" in parsed:
            parsed["symbols"] = _Strict(parsed["symbols"])
        if "fields" in parsed:
            _make_strict(parsed)
    return parsed
