"""Row groups of a Parquet file, and a file whose rows several processes send.

Invariant: a row group is written once it is full, and only one is held. This module loads only Arrow: the owner of the
file decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

# A row group of 100,000 rows lets readers skip well; with longer texts 8 MiB come first and limit the memory.
GROUP_ROWS = 100_000
_GROUP_BYTES = 8 << 20


class Tables:
    """Tables held until there are enough: a row group, or a piece of one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    @property
    def is_begun(self) -> bool:
        """Return whether anything is held."""
        return bool(self._held)

    def add(self, table: pa.Table) -> bool:
        """Hold a table; return whether there are enough."""
        self._held.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        return self._rows >= GROUP_ROWS or self._bytes >= self._bytes_max

    def taken(self) -> pa.Table:
        """Return the held tables and release them; there must be some."""
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        return pa.concat_tables(held)


class RowGroups:
    """Writes row groups as they fill."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        # zstd level 1: as fast as snappy within a tenth of the total, and a third smaller.
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", compression_level=1)
        self._group = Tables(_GROUP_BYTES)

    def add(self, table: pa.Table) -> None:
        """Hold a table until there is a row group."""
        if self._group.add(table):
            self._flush()

    def close(self) -> None:
        """Write the last row group and the footer."""
        if self._group.is_begun:
            self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Write no footer: the library would, when the writer is deleted, into a closed file."""
        self._writer.is_open = False

    def _flush(self) -> None:
        table = self._group.taken()
        self._writer.write_table(table, row_group_size=table.num_rows)


class ParquetOfPieces:
    """Writes the rows that several processes send (`TablePieces`) into one file."""

    def __init__(self, file: BinaryIO) -> None:
        # Arrow's own pool releases nothing.
        pa.set_memory_pool(pa.system_memory_pool())
        self._file = file
        self._groups: RowGroups | None = None

    def begin(self, start: bytes) -> None:
        """Read a table without rows, for the columns."""
        self._groups = RowGroups(self._file, _table(start).schema)

    def add(self, piece: Iterator[bytes]) -> None:
        """Hold the rows of a piece until there is a row group."""
        assert self._groups is not None  # a process begins before it sends rows
        self._groups.add(_table(b"".join(piece)))

    def close(self) -> None:
        """Write the last row group and the footer."""
        assert self._groups is not None
        self._groups.close()

    def abandon(self) -> None:
        """Write no footer."""
        if self._groups is not None:
            self._groups.abandon()


def _table(piece: bytes) -> pa.Table:
    with pa.ipc.open_stream(piece) as stream:
        return stream.read_all()
