"""Encodes rows for PostgreSQL's binary COPY from columns: numbers by arrays, the rest by joining bytes.

The driver's `copy_records_to_table` encodes value by value and takes three times as long. Rows are encoded before the
transaction that stores them, complete except for one number each, which is only known under its locks
(`Rows.numbered`). Source: PostgreSQL 18 documentation, COPY, "Binary Format".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import chain, repeat
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from highwater.connectors.postgres.pool import Connection

Values: TypeAlias = Sequence[bytes | memoryview | None]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
# 2000-01-01, PostgreSQL's epoch, in ms since 1970.
_EPOCH_MS = 946_684_800_000
# Before the first number of a row: the count of its fields, and the length of the number.
_BEFORE_FIRST = 2 + 4


class Rows:
    """Encoded rows of one table, complete except for a `bigint` of each: the first of `names`."""

    def __init__(self, names: Sequence[str], encoded: bytearray, lengths: NDArray[np.int64]) -> None:
        """`encoded` is the COPY data, `lengths` the bytes of each row in it."""
        self.names = names
        self._encoded = encoded
        self._ends = len(_HEADER) + np.cumsum(lengths)
        self._starts = self._ends - lengths

    def __len__(self) -> int:
        return len(self._starts)

    async def copy_into(self, tx: Connection, table: str, numbers: Sequence[int | None]) -> None:
        """Store the rows with their numbers; a row whose number is None is left out."""
        await tx.copy_to_table(table, source=_in_one_piece(self.numbered(numbers)), columns=self.names, format="binary")

    def numbered(self, numbers: Sequence[int | None]) -> bytearray:
        """Return the COPY data. The next call changes it."""
        kept = [i for i, number in enumerate(numbers) if number is not None]
        found = np.array([number for number in numbers if number is not None], dtype=">i8")
        places = (self._starts[kept] + _BEFORE_FIRST)[:, None] + np.arange(found.itemsize)
        np.frombuffer(self._encoded, dtype=np.uint8)[places] = found.view(np.uint8).reshape(places.shape)
        if len(kept) == len(self):
            return self._encoded
        whole = memoryview(self._encoded)
        spans = zip(self._starts[kept].tolist(), self._ends[kept].tolist(), strict=True)
        return bytearray().join((_HEADER, *(whole[start:end] for start, end in spans), _TRAILER))


class Columns:
    """Columns of one table, all of the same length."""

    def __init__(self, rows: int, numbered: str) -> None:
        """`numbered` is the `bigint` column for the number of a row."""
        self._rows = rows
        self._numbers: list[tuple[str, str, NDArray[np.int64]]] = []
        self._values: list[tuple[str, Iterable[bytes], Iterable[bytes | memoryview]]] = []
        self._lengths = np.zeros(rows, dtype=np.int64)  # of the values and their own lengths
        self.add_numbers(numbered, [0] * rows, width=8)

    @property
    def names(self) -> list[str]:
        """Return the columns in the order of the rows."""
        return [name for name, *_ in self._numbers] + [name for name, *_ in self._values]

    def add_numbers(self, name: str, numbers: Sequence[int], *, width: int) -> None:
        """Add a column of `int` (`width` 4) or `bigint` (8).

        Raises:
            OverflowError: a number does not fit.
        """
        found = np.array(numbers, dtype=np.int64)
        bits = 8 * width - 1
        if len(found) and not -(1 << bits) <= int(found.min()) <= int(found.max()) < 1 << bits:
            raise OverflowError(f"a number of column {name} does not fit {width} bytes")
        self._numbers.append((name, f">i{width}", found))

    def add_times(self, name: str, times_ms: Sequence[int]) -> None:
        """Add a column of `timestamptz`, from milliseconds since 1970."""
        self._numbers.append((name, ">i8", (np.array(times_ms, dtype=np.int64) - _EPOCH_MS) * 1_000))

    def add_values(self, name: str, values: Values) -> None:
        """Add a column of `text` (in UTF-8) or `bytea`; None is null."""
        lengths = np.fromiter((-1 if value is None else len(value) for value in values), dtype=">i4", count=self._rows)
        raw = lengths.tobytes()
        self._values.append((name, [raw[i : i + 4] for i in range(0, len(raw), 4)], [value or b"" for value in values]))
        self._lengths += 4 + np.maximum(lengths, 0)

    def add_constant(self, name: str, value: bytes | None) -> None:
        """Add a column with one text or `bytea` in every row."""
        whole = _NULL if value is None else len(value).to_bytes(4, "big") + value
        self._values.append((name, repeat(whole, self._rows), repeat(b"", self._rows)))
        self._lengths += len(whole)

    def encoded(self) -> Rows:
        """Return the rows, each with the number 0."""
        heads, width = self._heads()
        rows = zip(heads, *chain.from_iterable(pair for _, *pair in self._values), strict=True)
        encoded = bytearray().join(chain((_HEADER,), chain.from_iterable(rows), (_TRAILER,)))
        return Rows(self.names, encoded, self._lengths + width)

    def _heads(self) -> tuple[list[memoryview], int]:
        """Return, for each row, the count of its fields and its numbers, each after its length; and the bytes of one."""
        layout = [("count", ">i2")]
        for i, (_, kind, _) in enumerate(self._numbers):
            layout += [(f"length{i}", ">i4"), (f"number{i}", kind)]
        head = np.zeros(self._rows, dtype=layout)
        head["count"] = len(self._numbers) + len(self._values)
        for i, (_, kind, numbers) in enumerate(self._numbers):
            head[f"length{i}"], head[f"number{i}"] = np.dtype(kind).itemsize, numbers
        raw, width = memoryview(head.tobytes()), head.dtype.itemsize
        return [raw[i : i + width] for i in range(0, len(raw), width)], width


async def _in_one_piece(encoded: bytearray) -> AsyncIterator[bytes]:
    """Yield everything at once: the loop (uvloop) passes it to the socket as that empties, without the interpreter.

    With many pieces each would wait for the interpreter while another thread prepares the next rows, and PostgreSQL for
    the piece.
    """
    yield cast("bytes", encoded)  # the driver copies from any buffer
