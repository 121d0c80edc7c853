"""The tables: the names of topics in SQL, the read models, and the columns of each with their types.

Invariant: nothing here loads Arrow or DuckDB, since the API lists tables in its own process; a test compares the list
with DuckDB's. `feeds.insight-ingested` is the table `feeds.insight_ingested`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from highwater.connectors.replay.subject import source_of
from highwater.connectors.sql.statements import QUERIES
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import Topic, all_topics

if TYPE_CHECKING:
    from highwater.connectors.postgres.pool import Connection

READ_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "models.channels": QUERIES["sql_channels"],
        "models.cluster_history": QUERIES["sql_cluster_history"],
        "models.insights": QUERIES["sql_insights"],
        "models.jobs": QUERIES["sql_jobs"],
        "models.matches": QUERIES["sql_matches"],
        "models.organizations": QUERIES["sql_organizations"],
        "models.queries": QUERIES["sql_queries"],
        "models.resource_versions": QUERIES["sql_resource_versions"],
        "models.subscriptions": QUERIES["sql_subscriptions"],
        "models.users": QUERIES["sql_users"],
    }
)
RECORD_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "_partition": "INTEGER",
        "_offset": "BIGINT",
        "_timestamp": "TIMESTAMP WITH TIME ZONE",
        "_key": "VARCHAR",
        "_headers": "MAP(VARCHAR, VARCHAR)",
        "_undecodable": "VARCHAR",
    }
)
_OF_AVRO = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BLOB",
    "string": "VARCHAR", "enum": "VARCHAR", "fixed": "BLOB", "record": "STRUCT", "null": "INTEGER",
}  # fmt: skip
_OF_POSTGRESQL = {
    "int4": "INTEGER", "int8": "BIGINT", "float8": "DOUBLE", "bool": "BOOLEAN", "timestamptz": "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
_NEAREST_MAX = 3


def table_name(topic: str) -> str:
    """Return the name of a topic in SQL: `schema.table`."""
    room, _, rest = topic.partition(".")
    return f"{room}.{rest.replace('-', '_').replace('.', '_')}"


def topics_by_table() -> dict[str, Topic]:
    """Return every topic, dead letters among them, by the name of its table."""
    return {table_name(topic.name): topic for topic in all_topics()}


def topic_columns(topic: Topic) -> dict[str, str]:
    """Return the columns of a topic's table by name, with their types; the registry may know fields of other versions."""
    fields = json.loads(schema_text(source_of(topic).schema))["fields"]
    return {**RECORD_TYPES, **{field["name"]: column_type(field["type"]) for field in fields}}


def column_type(avro: Any) -> str:
    """Return DuckDB's type of an Avro type; for a structure only that it is one."""
    if isinstance(avro, list):
        kinds = [kind for kind in avro if kind != "null"]
        return column_type(kinds[0]) if len(kinds) == 1 else "VARCHAR"
    if isinstance(avro, str):
        return _OF_AVRO.get(avro, "VARCHAR")
    kind = avro["type"]
    if kind in ("int", "long") and str(avro.get("logicalType")).startswith("timestamp-"):
        return "TIMESTAMP WITH TIME ZONE"
    if kind == "array":
        return f"{column_type(avro['items'])}[]"
    if kind == "map":
        return f"MAP(VARCHAR, {column_type(avro['values'])})"
    return _OF_AVRO.get(kind, "VARCHAR") if isinstance(kind, str) else column_type(kind)


async def read_model_columns(connection: Connection) -> dict[str, dict[str, str]]:
    """Return the columns of each read model by name, with their types."""
    found = {}
    for name, statement in READ_MODELS.items():
        attributes = (await connection.prepare(statement)).get_attributes()
        found[name] = {one.name: _OF_POSTGRESQL.get(one.type.name, "VARCHAR") for one in attributes}
    return found


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return full names of tables similar to this one, which may lack its schema; those of other applications' topics
    are in quotes.
    """
    known = {full.casefold().strip('"').replace("-", "_"): full for full in names}
    by_last: dict[str, list[str]] = {}
    for full in known:
        by_last.setdefault(full.rpartition(".")[2], []).append(full)
    wanted = name.casefold().replace("-", "_")
    last = wanted.rpartition(".")[2]
    found = by_last.get(last, []) or difflib.get_close_matches(wanted, known, n=_NEAREST_MAX, cutoff=0.6)
    if not found:
        found = [full for one in difflib.get_close_matches(last, by_last, n=_NEAREST_MAX) for full in by_last[one]]
    return [known[one] for one in found[:_NEAREST_MAX]]
