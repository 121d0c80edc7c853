"""Owns Parquet files of a topic: Avro's types kept (times in ms UTC, bytes, arrays, maps, records as structs)."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.replay.decoding import Decoded, Decoder
from connectors.replay.table import table_of, table_schema

# A row group of 100,000 rows is what readers skip by well; of longer texts, 8 MiB come first and bound the memory.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 8 << 20


class ParquetFile:
    """Writes row groups as they fill."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        # zstd's first level: as fast as snappy within a tenth of the whole, and a third smaller.
        self._writer = pq.ParquetWriter(file, table_schema(decoder.arrow_type), compression="zstd", compression_level=1)
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0

    def write(self, decoded: Decoded) -> None:
        """Hold a batch until there is a row group."""
        table = table_of(decoded)
        self._held.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=self._rows)
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """The last row group and the footer."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Write no footer: the library would, when the writer goes, into a file that is no more."""
        self._writer.is_open = False
