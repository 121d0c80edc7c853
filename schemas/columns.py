"""Decodes many events of one flat schema at once: field by field over all of them, instead of event by event.

Invariant: the result equals that of `Reading.read`. An event that is not plainly well-formed (a length past its end, a
number of ten bytes, a branch that the union does not have, text that is not UTF-8) is left to it, which reads or
refuses it.

The bytes of all events are concatenated in one array; `_Cursor` holds where each of them is read next, so that one
array operation reads a field of thousands. Source: Apache Avro 1.12 specification, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Sequence[Sequence[Any]]

_NUMBERS, _TEXTS = ("int", "long"), ("string", "bytes")
# Nine bytes hold 63 bits; a number with a tenth is left to the other reader.
_VARINT_BYTES_MAX = 9
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Field:
    """`kind` is an Avro type; `null_branch` the index of null in the union, None if the field is not a union."""

    name: str
    kind: str
    null_branch: int | None


class ColumnReader:
    """Decodes events of a schema whose fields are numbers, texts, bytes, or a union of one of them with null."""

    def __init__(self, fields: Sequence[_Field], prefix: bytes) -> None:
        self._fields = fields
        self._names = tuple(field.name for field in fields)
        self._prefix = prefix

    def read(self, values: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
        """Return the event in each value; None for a value that is left to the other reader."""
        cursor = _Cursor([value or b"" for value in values], self._prefix)
        try:
            columns = [_read_field(cursor, field) for field in self._fields]
        except UnicodeDecodeError:
            return [None] * len(values)
        events: list[dict[str, Any] | None] = list(
            map(dict, map(partial(zip, self._names), zip(*columns, strict=True)))
        )
        for i in np.flatnonzero(~cursor.is_whole()).tolist():
            events[i] = None
        return events


def column_reader(parsed: Any, prefix: bytes) -> ColumnReader | None:
    """Return the reader of a parsed schema's events; None for a schema with other fields. `prefix` precedes each event."""
    fields = [_field_of(one["name"], one["type"]) for one in parsed["fields"]]
    known = [field for field in fields if field is not None]
    return ColumnReader(known, prefix) if known and len(known) == len(fields) else None


def _field_of(name: str, parsed: Any) -> _Field | None:
    branches = list(parsed) if isinstance(parsed, list) else [parsed]
    kinds: list[str] = [branch["type"] if isinstance(branch, dict) else str(branch) for branch in branches]
    others = [kind for kind in kinds if kind != "null"]
    is_known = len(others) == 1 and len(kinds) <= 2 and others[0] in (*_NUMBERS, *_TEXTS)
    return _Field(name, others[0], kinds.index("null") if len(kinds) == 2 else None) if is_known else None


class _Cursor:
    """Where each event is read next. A doubtful event stops and no longer counts."""

    def __init__(self, values: Sequence[bytes], prefix: bytes) -> None:
        lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        self._ends = np.cumsum(lengths)
        begins = self._ends - lengths
        # After the last event as many zeros as one number reads ahead.
        self.joined = b"".join((*values, bytes(_VARINT_BYTES_MAX + len(prefix))))
        self._bytes = np.frombuffer(self.joined, dtype=np.uint8)
        head = self._bytes[begins[:, None] + np.arange(len(prefix))]
        self._is_sound: Flags = (head == np.frombuffer(prefix, dtype=np.uint8)).all(axis=1) & (lengths >= len(prefix))
        self._at = np.where(self._is_sound, begins + len(prefix), self._ends)

    def is_whole(self) -> Flags:
        """Return which events were read to their last byte without doubt."""
        is_read: Flags = self._at == self._ends
        return self._is_sound & is_read

    def doubt(self, is_doubtful: Flags) -> None:
        """Leave events to the other reader."""
        self._is_sound &= ~is_doubtful

    def numbers(self, where: Flags | None = None) -> Numbers:
        """Return a zig-zag varint of each event, 0 where `where` is False."""
        found = np.zeros(len(self._at), dtype=np.int64)
        left = np.flatnonzero(self._is_sound if where is None else self._is_sound & where)
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self._bytes[self._at[left]].astype(np.int64)
            found[left] |= (byte & 0x7F) << shift
            self._at[left] += 1
            left = left[byte > 0x7F]
            if not len(left):
                break
        self._is_sound[left] = False
        self.doubt(self._at > self._ends)
        np.minimum(self._at, self._ends, out=self._at)
        return (found >> 1) ^ -(found & 1)

    def spans(self, where: Flags | None = None) -> tuple[Numbers, Numbers]:
        """Return begin and end of a length-prefixed run of bytes of each event; empty where `where` is False."""
        length = self.numbers(where)
        self.doubt((length < 0) | (length > self._ends - self._at))
        begin = self._at
        self._at = np.where(self._is_sound, begin + length, begin)
        return begin, self._at


def _read_field(cursor: _Cursor, field: _Field) -> Sequence[Any]:
    where = None
    if field.null_branch is not None:
        branch = cursor.numbers()
        cursor.doubt((branch < 0) | (branch > 1))
        where = branch != field.null_branch
        if not where.any():
            return list(repeat(None, len(where)))
    if field.kind in _NUMBERS:
        numbers = cursor.numbers(where)
        if field.kind == "int":
            cursor.doubt((numbers > _INT_MAX) | (numbers < ~_INT_MAX))
        column: list[Any] = numbers.tolist()
    else:
        begin, end = cursor.spans(where)
        make: Callable[[bytes], Any] = bytes.decode if field.kind == "string" else bytes
        joined = cursor.joined
        column = [make(joined[i:j]) for i, j in zip(begin.tolist(), end.tolist(), strict=True)]
    if where is not None and not where.all():
        for i in np.flatnonzero(~where).tolist():
            column[i] = None
    return column
