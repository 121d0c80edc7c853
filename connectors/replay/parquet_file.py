"""Owns Parquet files of a topic: Avro's types kept (times in ms UTC, bytes, arrays, maps, records as structs)."""

from __future__ import annotations

import io
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.table import table_of, table_schema

# A row group of 100,000 rows is what readers skip by well; of longer texts, 8 MiB come first and bound the memory.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 8 << 20
# Where several processes make them at a time.
_PART_GROUP_BYTES = 2 << 20


class _Group:
    """Tables held until there is a row group."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    @property
    def is_begun(self) -> bool:
        """Whether anything is held."""
        return bool(self._held)

    def add(self, table: pa.Table) -> bool:
        """Hold a table; whether there is a row group."""
        self._held.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        return self._rows >= _GROUP_ROWS or self._bytes >= self._bytes_max

    def move_to(self, writer: pq.ParquetWriter) -> None:
        """Write what is held, if anything, as one row group."""
        if self._held:
            writer.write_table(pa.concat_tables(self._held), row_group_size=self._rows)
        self._held, self._rows, self._bytes = [], 0, 0


class ParquetFile:
    """Writes row groups as they fill."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        self._writer = _writer(file, table_schema(decoder.arrow_type))
        self._group = _Group(_GROUP_BYTES)

    def write(self, decoded: Decoded) -> None:
        """Hold a batch until there is a row group."""
        if self._group.add(table_of(decoded)):
            self._group.move_to(self._writer)

    def close(self) -> None:
        """The last row group and the footer."""
        self._group.move_to(self._writer)
        self._writer.close()

    def abandon(self) -> None:
        """Write no footer: the library would, when the writer goes, into a file that is no more."""
        self._writer.is_open = False


class ParquetParts:
    """Writes each row group as a file of its own, to be put together by `connectors.replay.row_groups`; first an empty one."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        self._file = file
        self._schema = table_schema(decoder.arrow_type)
        self._group = _Group(_PART_GROUP_BYTES)
        self._flush()

    def write(self, decoded: Decoded) -> None:
        """Hold a batch until there is a row group."""
        if self._group.add(table_of(decoded)):
            self._flush()

    def _flush(self) -> None:
        made = io.BytesIO()
        with _writer(made, self._schema) as writer:
            self._group.move_to(writer)
        self._file.write(made.getbuffer())

    def close(self) -> None:
        """The last row group."""
        if self._group.is_begun:
            self._flush()

    def abandon(self) -> None:
        """Nothing is written unless it is asked for."""


def _writer(file: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    # zstd's first level: as fast as snappy within a tenth of the whole, and a third smaller.
    return pq.ParquetWriter(file, schema, compression="zstd", compression_level=1)
