"""Writes CSV files of a topic: a column for each field of the event (`value.text`); nested values as JSON, bytes as
base64.

Invariant: text is quoted and a null is empty, so that an empty text and a null differ.
"""

from __future__ import annotations

from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv

from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.table import table_of
from highwater.connectors.replay.text import base64_of, is_millis, iso_times
from highwater.schemas.envelope import headers_of
from highwater.schemas.exact_json import write_json

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


class CsvFile:
    """Writes a header and one line per record."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        self._kinds = list(decoder.arrow_type)
        names = [f"value.{field.name}" for field in self._kinds]
        kinds = [field.type if _is_number(field.type) else pa.string() for field in self._kinds]
        self._schema = pa.schema(
            [
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.string()),
                ("key", pa.string()),
                ("headers", pa.string()),
                *zip(names, kinds, strict=True),
                ("undecodable", pa.string()),
                ("bytes_base64", pa.string()),
            ]
        )
        self._writer = pacsv.CSVWriter(file, self._schema)

    def write(self, decoded: Decoded) -> None:
        """Append a batch."""
        table, batch = table_of(decoded), decoded.batch
        value = decoded.column
        columns = [
            table["topic"].cast(pa.string()),
            table["partition"],
            table["offset"],
            iso_times(batch.times_ms),
            table["key"],
            pa.array([orjson.dumps(headers_of(one)).decode() for one in batch.headers], pa.string()),
            *(_flat(value.field(i)) for i in range(len(self._kinds))),
            table["undecodable"],
            pa.array([None if raw is None else base64_of(raw) for raw in table["bytes"].to_pylist()], pa.string()),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Flush."""
        self._writer.close()

    def abandon(self) -> None:
        """Stop; the library holds nothing that could still be written."""


def _is_number(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _NUMBERS)


def _flat(column: pa.Array) -> pa.Array:
    """Return one field as CSV shows it."""
    kind = column.type
    if pa.types.is_string(kind) or _is_number(kind):
        return column
    if is_millis(kind):
        numbers = column.cast(pa.int64())
        texts = iso_times(numbers.fill_null(0).to_numpy(zero_copy_only=False))
        return pa.array(
            [
                text if held else None
                for text, held in zip(texts.to_pylist(), numbers.is_valid().to_pylist(), strict=True)
            ],
            pa.string(),
        )
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    make = base64_of if is_bytes else _json
    return pa.array([None if one is None else make(_as_object(one, kind)) for one in plain.to_pylist()], pa.string())


def _as_object(value: object, kind: pa.DataType) -> object:
    return dict(value) if pa.types.is_map(kind) else value  # type: ignore[call-overload]


def _json(value: object) -> str:
    return write_json(value).decode()
