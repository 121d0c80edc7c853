"""The answer of a query as JSON lines, CSV or Parquet, batch by batch.

Invariant: JSON and CSV show values in the common form: times in ISO 8601, bytes in base64, nested values as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from highwater.connectors.replay.text import base64_of
from highwater.connectors.sql.query_task import InvalidQueryError

# JSON parsers read whole numbers of 53 bits, most of them of 64; larger ones are written as text.
_INT_MAX = 2**63 - 1


class Writer(Protocol):
    """Writes batches; the file is complete once it is closed."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    def close(self) -> None:
        """Write the buffered rows."""


def rows_of(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    """Yield the rows of a batch as values that JSON can write.

    Raises:
        InvalidQueryError: a value cannot be represented, such as a list of dates after the year 9999.
    """
    try:
        columns = [_values(column) for column in batch.columns]
    except (ValueError, OverflowError) as error:
        raise InvalidQueryError(f"a value cannot be shown: {error}; cast it to VARCHAR") from error
    for row in zip(*columns, strict=True):
        yield [_plain(value) for value in row]


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; times after the year 9999, as of a record in microseconds, in ms since 1970, and
    dates in days.
    """
    try:
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    except (ValueError, OverflowError):
        if not pa.types.is_timestamp(column.type) and not pa.types.is_date32(column.type):
            raise
        return [_time(one) for one in column]


def _time(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        is_date = pa.types.is_date32(scalar.type)
        return scalar.value if is_date else scalar.cast(pa.timestamp("ms", tz=scalar.type.tz)).value


def _plain(value: Any) -> Any:  # noqa: PLR0911 - a case for each kind of value
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _INT_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _plain(int(value)) if value.as_tuple().exponent == 0 else _fraction(value)
    if isinstance(value, datetime):
        is_fine = value.microsecond % 1_000
        text = value.isoformat(timespec="auto" if is_fine or not value.microsecond else "milliseconds")
        return text.removesuffix("+00:00") + "Z" if value.tzinfo is not None else text
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(one) for one in value]
    return base64_of(value) if isinstance(value, bytes) else str(value)


def _fraction(number: Decimal) -> float | str:
    """Return a decimal as a double; as text if that would change it."""
    double = float(number)
    return double if Decimal(repr(double)) == number else str(number)


# What a column of JSON says of itself, since to Arrow it is text.
JSON_TEXT = {"highwater": "json"}


class JsonLines:
    """One object a line; a value of JSON is part of it, not text."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names
        self._json = [place for place, field in enumerate(schema) if _is_json(field)]

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        for row in rows_of(batch):
            for place in self._json:
                row[place] = None if row[place] is None else orjson.Fragment(row[place])
            self._file.write(orjson.dumps(dict(zip(self._names, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Do nothing: no rows are buffered."""


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"highwater") == b"json"


class Csv:
    """A header and a line per row; text in quotes and a null empty, which distinguishes them."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._append([schema.names])

    def _append(self, rows: list[list[Any]]) -> None:
        self._file.write("".join(",".join(map(_quoted, row)) + "\n" for row in rows).encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._append([[cell(value) for value in row] for row in rows_of(batch)])

    def close(self) -> None:
        """Do nothing: no rows are buffered."""


def _quoted(value: Any) -> str:
    """Return a value of `cell` in CSV."""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return "" if value is None else str(value)


def cell(value: Any) -> Any:
    """Return a value of `rows_of` for a table: nested values as JSON, booleans as JSON writes them."""
    return orjson.dumps(value).decode() if isinstance(value, bool | dict | list) else value


class Parquet:
    """Row groups of a megabyte or so, as batches arrive."""

    _GROUP_BYTES = 8 << 20

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        try:
            self._writer = pq.ParquetWriter(file, schema, compression="zstd", compression_level=1)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise InvalidQueryError(f"Parquet does not hold every column: {error}; cast it to VARCHAR") from error
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch until there is a row group."""
        self._held.append(batch)
        if sum(one.nbytes for one in self._held) >= self._GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
        self._held = []

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()


WRITERS: Mapping[str, Callable[[BinaryIO, pa.Schema], Writer]] = MappingProxyType(
    {"jsonl": JsonLines, "csv": Csv, "parquet": Parquet}
)
