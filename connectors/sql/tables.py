"""Owns what a topic is called in SQL, and the columns of its table.

Invariant: `feeds.insight-ingested` is the table `feeds.insight_ingested`. Its columns are those of the record, which begin with
an underscore and are otherwise called as in a replay's Parquet file, and the fields of the events.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from highwater.connectors.replay.columns import arrow_type_of
from highwater.connectors.replay.subject import source_of
from highwater.connectors.replay.table import HEADERS
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import Topic, all_topics

# Times are in microseconds, because that is what DuckDB compares in: of another unit a condition would wrap the column in a cast,
# and Arrow could not tell which times it allows.
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
_NEAREST_MAX = 3


def table_name(topic: str) -> str:
    """What a topic is called in SQL: `schema.table`."""
    room, _, rest = topic.partition(".")
    return f"{room}.{rest.replace('-', '_').replace('.', '_')}"


def topics_by_table() -> dict[str, Topic]:
    """Every topic, dead letters among them, by the name of its table."""
    return {table_name(topic.name): topic for topic in all_topics()}


def columns_of(events: pa.StructType) -> pa.Schema:
    """The columns of a topic's table; `events` is the Arrow type of its events."""
    return pa.schema([*RECORD_COLUMNS, *events])


def catalogued_columns(topic: Topic) -> pa.Schema:
    """The columns as the catalogue's schema has them; the registry may know fields of other versions."""
    document: Mapping[str, Any] = json.loads(schema_text(source_of(topic).schema))
    return columns_of(arrow_type_of(document))


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Full names of tables like this one, which may lack its schema."""
    known = {full.casefold(): full for full in names}
    by_last: dict[str, list[str]] = {}
    for full in known:
        by_last.setdefault(full.rpartition(".")[2], []).append(full)
    wanted = name.casefold().replace("-", "_")
    last = wanted.rpartition(".")[2]
    found = by_last.get(last, []) or difflib.get_close_matches(wanted, known, n=_NEAREST_MAX, cutoff=0.6)
    if not found:
        found = [full for one in difflib.get_close_matches(last, by_last, n=_NEAREST_MAX) for full in by_last[one]]
    return [known[one] for one in found[:_NEAREST_MAX]]
