"""The binary format of COPY, read back by its documentation."""

from __future__ import annotations

import struct

import pytest

from highwater.connectors.postgres.binary_copy import Columns


def fields(data: bytes) -> list[list[bytes | None]]:
    """The rows of what COPY is sent, each field as its bytes."""
    assert data[:19] == b"PGCOPY\n\xff\r\n\0" + bytes(8)
    at, rows = 19, []
    while (count := struct.unpack_from(">h", data, at)[0]) != -1:
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else data[at : at + length])
            at += max(0, length)
        rows.append(row)
    assert len(data) == at + 2
    return rows


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 600])
def test_columns_become_rows(count: int):
    """Numbers first, in their widths; null, empty and constant values; the last to be known before all."""
    columns = Columns(count, numbered="seq")
    columns.add_values("text", [b"x" * (i % 3) for i in range(count)])
    columns.add_constant("model", b"m")
    columns.add_numbers("partition", [-i for i in range(count)], width=4)
    columns.add_values("vector", [None if i % 2 else memoryview(bytes([i % 256] * 5)) for i in range(count)])
    columns.add_constant("next", None)
    columns.add_times("ts", [946_684_800_000 + i for i in range(count)])
    rows = columns.encoded()
    assert rows.names == ["seq", "partition", "ts", "text", "model", "vector", "next"]
    assert fields(bytes(rows.numbered([i << 40 for i in range(count)]))) == [
        [
            struct.pack(">q", i << 40),
            struct.pack(">i", -i),
            struct.pack(">q", i * 1_000),
            b"x" * (i % 3),
            b"m",
            None if i % 2 else bytes([i % 256] * 5),
            None,
        ]
        for i in range(count)
    ]


def test_rows_without_a_number_are_left_out():
    """The others keep their values and get their numbers, with any numbers given by an earlier call."""
    columns = Columns(5, numbered="seq")
    columns.add_values("text", [b"a", None, b"", b"dddd", b"e"])
    rows = columns.encoded()
    rows.numbered([1, 2, 3, 4, 5])
    texts: dict[int, bytes | None] = {-7: b"a", 8: b"", 9: b"dddd"}
    expected = [[struct.pack(">q", number), text] for number, text in texts.items()]
    assert fields(bytes(rows.numbered([-7, None, 8, 9, None]))) == expected
    assert fields(bytes(rows.numbered([None] * 5))) == []


def test_columns_of_different_lengths_are_refused():
    """A row is never made of parts of two."""
    columns = Columns(2, numbered="seq")
    with pytest.raises(ValueError, match="too short"):
        columns.add_values("text", [b"a"])


def test_numbers_past_their_width_are_refused():
    """A number that does not fit its column is an error, not another number."""
    columns = Columns(1, numbered="seq")
    with pytest.raises(OverflowError):
        columns.add_numbers("partition", [1 << 31], width=4)
