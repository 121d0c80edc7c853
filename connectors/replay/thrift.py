"""Owns Thrift's compact protocol, as far as the end of a Parquet file needs it.

Law: what is read and written again without a change has the same bytes. A struct is a dict of fields by number, each with its
type; numbers are written in as few bytes as they need. (thrift/doc/specs/thrift-compact-protocol.md)
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_NUMBERS = (I16, I32, I64)
# A list of more says its length after its type.
_SHORT_LIST_MAX = 14
_FIELD_STEP_MAX = 15

Value = tuple[int, Any]  # type, and a number, bytes, a Struct, or for a list the type of its elements and these
Struct = dict[int, Value]


class NotThriftError(Exception):
    """These bytes are not Thrift."""


class Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        """The fields up to the stop."""
        found: Struct = {}
        number = 0
        while head := self._byte():
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = (kind, self._value(kind))
        return found

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
        return found | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _taken(self, size: int) -> bytes:
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in _NUMBERS:
            return self._zigzag()
        if kind == BINARY:
            return self._taken(self._varint())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            head = self._byte()
            count = head >> 4 if head >> 4 <= _SHORT_LIST_MAX else self._varint()
            inner = head & 0x0F
            # In a list a truth is a byte of its own.
            read = self._byte if inner in (TRUE, FALSE, BYTE) else lambda: self._value(inner)
            return inner, [read() for _ in range(count)]
        if kind in (BYTE, DOUBLE):
            return self._taken(1 if kind == BYTE else 8)
        raise NotThriftError(f"type {kind}")


def written(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def _put_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(struct.items()):
        step = number - before
        if 0 < step <= _FIELD_STEP_MAX:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _put_varint(out, number << 1)
        if kind not in (TRUE, FALSE):
            _put(out, kind, value)
        before = number
    out.append(0)


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _NUMBERS:
        _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
    elif kind == BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (LIST, SET):
        inner, elements = value
        if len(elements) <= _SHORT_LIST_MAX:
            out.append(len(elements) << 4 | inner)
        else:
            out.append(0xF0 | inner)
            _put_varint(out, len(elements))
        for element in elements:
            if inner in (TRUE, FALSE, BYTE):
                out.append(element)
            else:
                _put(out, inner, element)
    else:
        out += value
