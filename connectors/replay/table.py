"""The Arrow table of a batch: the common columns of Parquet and CSV.

Invariant: every batch of a topic has the same Arrow schema.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.text import header_texts, key_column
from highwater.schemas.envelope import Headers

HEADERS = pa.map_(pa.string(), pa.string())


def table_schema(value: pa.StructType) -> pa.Schema:
    """Return the columns of a topic's records; `value` is the Arrow type of its events."""
    return pa.schema(
        [
            pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("key", pa.string()),
            pa.field("headers", HEADERS),
            pa.field("value", value),
            pa.field("undecodable", pa.string()),
            pa.field("bytes", pa.binary()),
        ]
    )


def table_of(decoded: Decoded) -> pa.Table:
    """Return the columns of a batch."""
    batch, count = decoded.batch, len(decoded)
    value = decoded.column  # first, because it may find more problems
    problems = decoded.problems
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([batch.topic])),
            pa.array(batch.partitions),
            pa.array(batch.offsets),
            pa.array(batch.times_ms).cast(pa.timestamp("ms", "UTC")),
            key_column(batch.keys),
            header_column(batch.headers),
            value,
            pa.array([problems.get(i) for i in range(count)], pa.string())
            if problems
            else pa.nulls(count, pa.string()),
            pa.array([batch.values[i] if i in problems else None for i in range(count)], pa.binary())
            if problems
            else pa.nulls(count, pa.binary()),
        ],
        schema=table_schema(decoded.arrow_type),
    )


def header_column(headers: list[Headers | None]) -> pa.Array:
    """Return headers as maps of text."""
    if not any(headers):
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(headers) + 1, np.int32)), empty, empty)
    return pa.array([list(header_texts(one).items()) for one in headers], HEADERS)
