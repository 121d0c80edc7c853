"""Owns a Parquet file that is put together of small ones, each of one row group, made by other processes.

Law: pages are copied as they are; only what says where they stand is changed. (parquet-format/src/main/thrift/parquet.thrift)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from highwater.connectors.replay.thrift import I16, I64, LIST, STRUCT, Reader, Struct, written

_MAGIC = b"PAR1"
_LENGTH = struct.Struct("<I")
_TAIL_BYTES = _LENGTH.size + len(_MAGIC)
# FileMetaData
_NUM_ROWS, _ROW_GROUPS = 3, 4
# RowGroup
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 3, 5, 7
# ColumnChunk: where its metadata stood in older files, and its indexes; then within the metadata itself
_CHUNK_OFFSETS = (2, 4, 6)
_CHUNK_META = 3
_META_OFFSETS = (9, 10, 11, 14)  # data, index and dictionary pages, Bloom filter


class RowGroups:
    """The row groups of several files, one after the other, under one footer."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._footer: Struct = {}
        self._groups: list[Struct] = []

    def begin(self, start: bytes) -> None:
        """A file without rows: its schema is that of all."""
        self._footer = _footer_of(start)[0]
        self._put(_MAGIC)

    def add(self, piece: Iterator[bytes]) -> None:
        """Append the row groups of a file."""
        part = b"".join(piece)
        footer, footer_at = _footer_of(part)
        moved = self._at - len(_MAGIC)
        self._put(memoryview(part)[len(_MAGIC) : footer_at])
        for group in footer[_ROW_GROUPS][1][1]:
            _move(group, moved)
            group[_ORDINAL] = (I16, len(self._groups))
            if len(self._groups) >= 1 << 15:  # which a number of 16 bits does not hold; readers do without
                del group[_ORDINAL]
            self._groups.append(group)

    def close(self) -> None:
        """Write the footer."""
        rows = sum(group[_GROUP_ROWS][1] for group in self._groups)
        footer = written({**self._footer, _NUM_ROWS: (I64, rows), _ROW_GROUPS: (LIST, (STRUCT, self._groups))})
        self._put(footer)
        self._put(_LENGTH.pack(len(footer)))
        self._put(_MAGIC)

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._at += len(data)


def _footer_of(part: bytes) -> tuple[Struct, int]:
    """The footer of a file, and where it stands."""
    size = _LENGTH.unpack_from(part, len(part) - _TAIL_BYTES)[0]
    at = len(part) - _TAIL_BYTES - size
    return Reader(memoryview(part)[at:]).struct(), at


def _move(group: Struct, by: int) -> None:
    """Let everything that says where it stands say so `by` bytes further on; zero says nothing."""
    _move_fields(group, (_GROUP_OFFSET,), by)
    for chunk in group[_COLUMNS][1][1]:
        _move_fields(chunk, _CHUNK_OFFSETS, by)
        _move_fields(chunk[_CHUNK_META][1], _META_OFFSETS, by)


def _move_fields(fields: Struct, numbers: tuple[int, ...], by: int) -> None:
    for number in numbers:
        kind, at = fields.get(number, (I64, 0))
        if at > 0:
            fields[number] = (kind, at + by)
