"""The formats of a replay: JSON lines, CSV, Parquet and Avro, each fed batch by batch.

Invariant: a writer holds at most one row group; every format has the same columns: topic, partition, offset, timestamp,
key, headers, value, and `undecodable` with `bytes` if a value is not an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.text import json_lines


class Writer(Protocol):
    """Writes batches; the file is complete once it is closed."""

    def write(self, decoded: Decoded) -> None:
        """Append a batch."""

    def close(self) -> None:
        """Write held data and the file's end."""

    def abandon(self) -> None:
        """Stop writing."""


class JsonLines:
    """One JSON document per line."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        del decoder
        self._file = file

    def write(self, decoded: Decoded) -> None:
        """Append a batch."""
        self._file.write(json_lines(decoded))

    def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""


def _csv(file: BinaryIO, decoder: Decoder) -> Writer:
    from highwater.connectors.replay.csv_file import CsvFile  # noqa: PLC0415 - a format is loaded when it is wanted

    return CsvFile(file, decoder)


def _parquet(file: BinaryIO, decoder: Decoder) -> Writer:
    from highwater.connectors.replay.parquet_file import ParquetFile  # noqa: PLC0415 - as above

    return ParquetFile(file, decoder)


def _avro(file: BinaryIO, decoder: Decoder) -> Writer:
    from highwater.connectors.replay.avro_file import AvroFile  # noqa: PLC0415 - as above

    return AvroFile(file, decoder)


def part_writer(kind: str, file: BinaryIO, decoder: Decoder) -> Writer:
    """Return a writer whose pieces another process combines: each call of `write` or `close` writes one, or none."""
    if kind == "parquet":
        from highwater.connectors.replay.parquet_file import TablePieces  # noqa: PLC0415 - as above

        return TablePieces(file, decoder)
    return FORMATS[kind](file, decoder)


Open = Callable[[Any, Decoder], Writer]

FORMATS: Mapping[str, Open] = MappingProxyType({"jsonl": JsonLines, "csv": _csv, "parquet": _parquet, "avro": _avro})


@contextmanager
def writer_of(kind: str, file: BinaryIO, decoder: Decoder) -> Iterator[Writer]:
    """Yield a writer, closed when the block succeeds and abandoned otherwise."""
    writer = FORMATS[kind](file, decoder)
    try:
        yield writer
        writer.close()
    except BaseException:
        writer.abandon()
        raise
