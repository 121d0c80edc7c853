"""Rows as PostgreSQL's binary COPY takes them, made of columns: numbers by arrays, the rest by joining bytes.

The driver's `copy_records_to_table` encodes value by value, for three times as long.
Source: PostgreSQL 18 documentation, COPY, "Binary Format".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import chain, islice, repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from highwater.connectors.postgres.pool import Connection

Values: TypeAlias = Sequence[bytes | memoryview | None]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
# 2000-01-01, from which PostgreSQL counts, in ms since 1970.
_EPOCH_MS = 946_684_800_000
# A message holds some 400 KB of rows of insights: PostgreSQL stores one while the next is sent.
_ROWS_PER_MESSAGE = 256


class Columns:
    """Columns of one table, all of the same length."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._numbers: list[tuple[str, str, NDArray[np.int64]]] = []
        self._values: list[tuple[str, Iterable[bytes], Iterable[bytes | memoryview]]] = []

    @property
    def names(self) -> list[str]:
        """The columns in the order in which `messages` has them."""
        return [name for name, *_ in self._numbers] + [name for name, *_ in self._values]

    def add_numbers(self, name: str, numbers: Sequence[int], *, width: int) -> None:
        """A column of `int` (`width` 4) or `bigint` (8).

        Raises:
            OverflowError: a number does not fit.
        """
        found = np.array(numbers, dtype=np.int64)
        bits = 8 * width - 1
        if len(found) and not -(1 << bits) <= int(found.min()) <= int(found.max()) < 1 << bits:
            raise OverflowError(f"a number of column {name} does not fit {width} bytes")
        self._numbers.append((name, f">i{width}", found))

    def add_times(self, name: str, times_ms: Sequence[int]) -> None:
        """A column of `timestamptz`, from milliseconds since 1970."""
        self._numbers.append((name, ">i8", (np.array(times_ms, dtype=np.int64) - _EPOCH_MS) * 1_000))

    def add_values(self, name: str, values: Values) -> None:
        """A column of `text` (in UTF-8) or `bytea`; None is null."""
        lengths = np.fromiter((-1 if value is None else len(value) for value in values), dtype=">i4", count=self._rows)
        raw = lengths.tobytes()
        self._values.append((name, [raw[i : i + 4] for i in range(0, len(raw), 4)], [value or b"" for value in values]))

    def add_constant(self, name: str, value: bytes | None) -> None:
        """A column of one text or `bytea` in every row."""
        whole = _NULL if value is None else len(value).to_bytes(4, "big") + value
        self._values.append((name, repeat(whole, self._rows), repeat(b"", self._rows)))

    async def copy_into(self, tx: Connection, table: str) -> None:
        """Store the rows in a table."""
        await tx.copy_to_table(table, source=self._messages(), columns=self.names, format="binary")

    async def _messages(self) -> AsyncIterator[bytes]:
        for message in self.messages():
            yield message

    def messages(self) -> Iterable[bytes]:
        """The parts of what COPY is sent."""
        yield _HEADER
        rows = zip(self._heads(), *chain.from_iterable(pair for _, *pair in self._values), strict=True)
        for _ in range(0, self._rows, _ROWS_PER_MESSAGE):
            yield b"".join(chain.from_iterable(islice(rows, _ROWS_PER_MESSAGE)))
        yield _TRAILER

    def _heads(self) -> list[memoryview]:
        """Of each row the count of its fields, and its numbers, each after its length."""
        layout = [("count", ">i2")]
        for i, (_, kind, _) in enumerate(self._numbers):
            layout += [(f"length{i}", ">i4"), (f"number{i}", kind)]
        head = np.zeros(self._rows, dtype=layout)
        head["count"] = len(self._numbers) + len(self._values)
        for i, (_, kind, numbers) in enumerate(self._numbers):
            head[f"length{i}"], head[f"number{i}"] = np.dtype(kind).itemsize, numbers
        raw, width = memoryview(head.tobytes()), head.dtype.itemsize
        return [raw[i : i + width] for i in range(0, len(raw), width)]
