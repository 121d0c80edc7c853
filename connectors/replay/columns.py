"""Decodes Avro events in columns: maps Avro types to Arrow types, and decodes a whole batch of flat events at once.

Invariant: the result equals what the Avro library returns for each record. If this module cannot guarantee that, it rejects the
batch, and the caller decodes it record by record.

A flat event has only numbers, booleans, strings, bytes, and unions of one of these with null. Each field is decoded for all
records together: NumPy moves one cursor per record, Arrow slices the strings. (Avro 1.12, "Binary encoding".)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "bytes": pa.binary(), "enum": pa.string(),
}  # fmt: skip
_LOGICAL = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
}
# A 64-bit varint has at most ten bytes; a cursor may pass the end by this much before it is noticed.
_VARINT_BYTES_MAX = 10
_PADDING = b"\0" * 16
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class NotFlatError(Exception):
    """These events, or these bytes, are to be read one by one."""


def arrow_type_of(avro: Any) -> pa.DataType:
    """Return the Arrow type of an Avro type; a union of several kinds of value becomes JSON text.

    Every field may be null, since all fields of a tombstone are.
    """
    if isinstance(avro, list):
        kinds = [kind for kind in avro if kind != "null"]
        return arrow_type_of(kinds[0]) if len(kinds) == 1 else pa.string()
    if isinstance(avro, str):
        return _PLAIN.get(avro, pa.string())
    kind = avro["type"]
    if kind in ("int", "long") and avro.get("logicalType") in _LOGICAL:
        return _LOGICAL[avro["logicalType"]]
    made_of = {
        "record": lambda: pa.struct([(field["name"], arrow_type_of(field["type"])) for field in avro["fields"]]),
        "array": lambda: pa.list_(arrow_type_of(avro["items"])),
        "map": lambda: pa.map_(pa.string(), arrow_type_of(avro["values"])),
        "fixed": lambda: pa.binary(avro["size"]),
    }
    return made_of.get(kind, lambda: arrow_type_of(kind))() if isinstance(kind, str) else arrow_type_of(kind)


def struct_of(rows: Sequence[dict[str, Any] | None], kind: pa.StructType, problems: dict[int, str]) -> pa.StructArray:
    """Return events as one column. A row that does not fit Arrow's types becomes null, and a problem by its index."""
    try:
        return _struct_of(rows, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        kept: list[dict[str, Any] | None] = list(rows)
    for place, row in enumerate(kept):
        try:
            _struct_of([row], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            kept[place] = None
            problems[place] = f"beyond its type: {error}"
    return _struct_of(kept, kind)


def _struct_of(rows: Sequence[dict[str, Any] | None], kind: pa.StructType) -> pa.StructArray:
    columns = []
    for field in kind:
        name = field.name
        values: list[Any] = [None if row is None else row[name] for row in rows]
        if pa.types.is_string(field.type) and any(not isinstance(value, str | None) for value in values):
            values = [v if isinstance(v, str | None) else json.dumps(v, default=str) for v in values]
        columns.append(pa.array(values, field.type))
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


class Flat:
    """The fast decoder of one flat schema."""

    def __init__(self, schema: Any, kind: pa.StructType) -> None:
        """`schema` is parsed, without logical types; `kind` is its Arrow type.

        Raises:
            NotFlatError: the schema is not flat.
        """
        self._kind = kind
        self._fields = [_flat_type(field["type"]) for field in schema["fields"]]
        if not self._fields:
            raise NotFlatError("no fields")

    def column(self, values: Sequence[bytes | None], prefix: bytes) -> pa.StructArray:
        """Return the events of values that all begin with `prefix` (magic byte and schema id).

        Raises:
            NotFlatError: one of the values is something else.
        """
        try:
            padded = b"".join((*values, _PADDING))  # type: ignore[arg-type]
            sizes = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
        except TypeError as error:
            raise NotFlatError("a tombstone") from error
        if len(padded) > _INT_MAX or (sizes < len(prefix)).any():
            raise NotFlatError("too long, or too short")
        ends = np.cumsum(sizes)
        at = ends - sizes
        buffer = np.frombuffer(padded, np.uint8)
        for place, byte in enumerate(prefix):
            if (buffer[at + place] != byte).any():
                raise NotFlatError("another schema")
        reader = _Reader(pa.py_buffer(padded), buffer, at + len(prefix), ends)
        try:
            columns = [reader.field(name, is_null_first) for name, is_null_first in self._fields]
            arrays = [_as(column, field.type) for column, field in zip(columns, self._kind, strict=True)]
        except pa.ArrowInvalid as error:  # a string that is not UTF-8
            raise NotFlatError(str(error)) from error
        if (reader.at != ends).any():
            raise NotFlatError("bytes are left over")
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind))


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _flat_type(avro: Any) -> tuple[str, bool | None]:
    """Return the name of the type, and whether null is the first of its union (None: no union).

    Raises:
        NotFlatError: it is composed of others.
    """
    if isinstance(avro, list):
        kinds = [_flat_type(kind)[0] for kind in avro]
        if len(kinds) == 2 and kinds.count("null") == 1 and not any(isinstance(kind, list) for kind in avro):
            return next(kind for kind in kinds if kind != "null"), kinds[0] == "null"
        raise NotFlatError("a union of several")
    name = avro["type"] if isinstance(avro, dict) else avro
    if not isinstance(name, str) or name not in _PLAIN or name == "enum":
        raise NotFlatError("made of others")
    return name, None


class _Reader:
    """One cursor per record, advanced field by field."""

    def __init__(self, data: pa.Buffer, buffer: Bytes, at: Numbers, ends: Numbers) -> None:
        self._data = data
        self._buffer = buffer
        self._ends = ends
        self.at = at

    def field(self, name: str, is_null_first: bool | None) -> pa.Array:
        """Return the next field of every record."""
        if is_null_first is None:
            return self._values(name, None)
        branch = self._varints(None)
        if ((branch < 0) | (branch > 1)).any():
            raise NotFlatError("no such branch of the union")
        present = branch == (1 if is_null_first else 0)
        return self._values(name, present)

    def _values(self, name: str, present: NDArray[np.bool_] | None) -> pa.Array:
        chosen = None if present is None or present.all() else np.flatnonzero(present)
        missing = None if chosen is None else ~present  # type: ignore[operator]
        if name == "null":
            return pa.nulls(len(self.at))
        if name in ("int", "long"):
            numbers = self._varints(chosen)
            if name == "int" and ((numbers < _INT_MIN) | (numbers > _INT_MAX)).any():
                raise NotFlatError("beyond 32 bits")
            return pa.array(self._spread(numbers, chosen), mask=missing)
        if name in ("string", "bytes"):
            return self._strings(chosen, missing, is_text=name == "string")
        width, dtype = {"boolean": (1, "u1"), "float": (4, "<f4"), "double": (8, "<f8")}[name]
        at = self._moved(chosen, width)
        # A copy, because the bytes of a number are not aligned.
        raw = np.ascontiguousarray(self._buffer[at[:, None] + np.arange(width)]).view(dtype).reshape(-1)
        return pa.array(self._spread(raw != 0 if name == "boolean" else raw, chosen), mask=missing)

    def _spread(self, values: Any, chosen: Numbers | None) -> Any:
        if chosen is None:
            return values
        spread = np.zeros(len(self.at), values.dtype)
        spread[chosen] = values
        return spread

    def _moved(self, chosen: Numbers | None, widths: Any) -> Numbers:
        """Advance the chosen cursors and return their previous places.

        Raises:
            NotFlatError: one is past the end of its record.
        """
        if chosen is None:
            before = self.at
            self.at = before + widths
        else:
            before = self.at[chosen]
            self.at = self.at.copy()
            self.at[chosen] = before + widths
        if (self.at > self._ends).any():
            raise NotFlatError("past the end")
        return before

    def _varints(self, chosen: Numbers | None) -> Numbers:
        """Read zigzag varints at the chosen cursors."""
        at = self.at if chosen is None else self.at[chosen]
        byte = self._buffer[at]
        found = (byte & 0x7F).astype(np.uint64)
        widths = np.ones(len(at), np.int64)
        open_ = np.flatnonzero(byte >= 0x80)
        for place in range(1, _VARINT_BYTES_MAX):
            if not len(open_):
                break
            byte = self._buffer[at[open_] + place]
            found[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            widths[open_] += 1
            open_ = open_[byte >= 0x80]
        # The tenth byte holds one bit; more bits are not a 64-bit number.
        if len(open_) or (self._buffer[at[widths == _VARINT_BYTES_MAX] + _VARINT_BYTES_MAX - 1] > 1).any():
            raise NotFlatError("beyond 64 bits")
        self._moved(chosen, widths)
        numbers: Numbers = (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)
        return numbers

    def _strings(self, chosen: Numbers | None, missing: NDArray[np.bool_] | None, *, is_text: bool) -> pa.Array:
        lengths = self._spread(self._varints(chosen), chosen)
        if (lengths < 0).any() or (lengths > len(self._buffer)).any():
            raise NotFlatError("an invalid length")
        begins = self._moved(None, lengths)
        # Begins and ends alternate: every second element is a string, the others are the bytes between them.
        cuts = np.empty(2 * len(begins), np.int32)
        cuts[0::2] = begins
        cuts[1::2] = begins + lengths
        pieces = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), self._data])
        found = pc.take(pieces, pa.array(np.arange(0, len(cuts) - 1, 2, dtype=np.int32), mask=missing))
        return found.cast(pa.string()) if is_text else found
