"""The columns of a topic's table as Arrow types.

Invariant: they are those of the record, with an underscore and otherwise named as in a replay's Parquet file, and the
fields of the events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from highwater.connectors.replay.columns import arrow_type_of
from highwater.connectors.replay.subject import source_of
from highwater.connectors.replay.table import HEADERS
from highwater.connectors.sql.foreign_topics import VALUE, VALUE_BYTES, foreign_fields, logical_column
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import Topic

# Times are in microseconds, the unit in which DuckDB compares: with another unit a condition would wrap the column in a
# cast, and Arrow could not derive the permitted times.
RECORD_COLUMNS = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_key", pa.string()),
        ("_headers", HEADERS),
        ("_undecodable", pa.string()),
    ]
)


def columns_of(events: pa.StructType) -> pa.Schema:
    """Return the columns of a topic's table; `events` is the Arrow type of its events."""
    return pa.schema([*RECORD_COLUMNS, *events])


def foreign_columns(schema: Mapping[str, Any] | None) -> pa.Schema:
    """Return the columns of another application's topic; `schema` None: the registry has none for it."""
    fields = [(field["name"], foreign_type(field["type"])) for field in foreign_fields(schema)]
    return columns_of(pa.struct([(VALUE, pa.string()), (VALUE_BYTES, pa.binary()), *fields]))


def foreign_type(avro: Any) -> pa.DataType:
    """Return the Arrow type of a column of another application's topic."""
    logical = logical_column(avro)
    if logical is None:
        return arrow_type_of(avro)
    return pa.date32() if logical.decimal is None else pa.decimal128(*logical.decimal)


def catalogued_columns(topic: Topic) -> pa.Schema:
    """Return the columns of the catalogue's schema; the registry may know fields of other versions."""
    return columns_of(arrow_type_of(json.loads(schema_text(source_of(topic).schema))))
