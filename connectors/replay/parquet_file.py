"""Writes Parquet files of a topic with Avro's types (times in ms UTC, bytes, arrays, maps, records as structs).

If several processes work on one file, each sends tables in Arrow's stream format, and the owner of the file writes it.
"""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa

from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.row_groups import RowGroups, Tables
from highwater.connectors.replay.table import table_of, table_schema

# The size of a piece that one of several processes sends: each holds that much, and the file's owner one piece beside
# its row group.
_PIECE_BYTES = 2 << 20


class ParquetFile:
    """Writes a file alone."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        self._groups = RowGroups(file, table_schema(decoder.arrow_type))

    def write(self, decoded: Decoded) -> None:
        """Hold a batch until there is a row group."""
        self._groups.add(table_of(decoded))

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._groups.close()

    def abandon(self) -> None:
        """Write no footer."""
        self._groups.abandon()


class TablePieces:
    """Sends rows to the process that writes them to a Parquet file (`ParquetOfPieces`); first an empty table, for the columns."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        self._file = file
        schema = table_schema(decoder.arrow_type)
        self._group = Tables(_PIECE_BYTES)
        self._send(schema.empty_table())

    def write(self, decoded: Decoded) -> None:
        """Hold a batch until there is a piece."""
        if self._group.add(table_of(decoded)):
            self._send(self._group.taken())

    def _send(self, table: pa.Table) -> None:
        with pa.ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)

    def close(self) -> None:
        """Write the last piece."""
        if self._group.is_begun:
            self._send(self._group.taken())

    def abandon(self) -> None:
        """Do nothing: nothing is written without a call."""
