"""How SQL finds topics of other applications: their list, those that a query names, and the columns of each.

Invariants. Nothing here loads Arrow or DuckDB, since the API lists tables in its own process. A table has the topic's
own name, in quotes if SQL requires them; SQL ignores case and Kafka does not, so of two such topics the exact name
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from highwater.connectors.kafka.registry_http import ask
from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql.catalogue import RECORD_TYPES, column_type
from highwater.schemas.errors import HighwaterError
from highwater.schemas.logical_types import decimal_size
from highwater.schemas.topic_kinds import kind_of
from highwater.schemas.topics import foreign_topic
from highwater.streams.access import RegistryAccess

# Beside the columns of the record and the fields of a registered schema.
VALUE, VALUE_BYTES = "_value", "_value_bytes"
VALUE_TYPES: Mapping[str, str] = {VALUE: "JSON", VALUE_BYTES: "BLOB"}
# The schema of their tables; it is on the search path, so that its name can be left out.
SCHEMA = "topics"
# Subjects whose fields a list of tables shows: each is two requests to the registry and more.
SUBJECTS_LISTED_MAX = 200

# Of DuckDB's and Arrow's decimals; a longer one is bytes.
DECIMAL_DIGITS_MAX = 38

_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|([A-Za-z_][\w$]*)')


class AmbiguousTopicError(HighwaterError):
    """SQL takes two topics for one, because their names differ in capital letters alone. Write the name exactly as it is."""


class LogicalColumn(NamedTuple):
    """The type of a column in SQL; `decimal` has precision and scale of a decimal, None is a date."""

    sql: str
    decimal: tuple[int, int] | None


def foreign_names(on_broker: Iterable[str]) -> list[str]:
    """Return those of all topics that the catalogue does not have."""
    return sorted(name for name in on_broker if not foreign_topic(name).is_catalogued)


def listed_names(names: Iterable[str]) -> list[str]:
    """Return those topics of other applications that a list of tables shows: no changelogs, and no topics of Kafka's own."""
    return [name for name in names if kind_of(name) in ("events", "dead letters")]


def named_topics(names: Iterable[str], query: str) -> list[str]:
    """Return the topics that a query names as an identifier.

    Raises:
        AmbiguousTopicError: one name matches two.
    """
    written = {quoted.replace('""', '"') or bare for quoted, bare in _IDENTIFIER.findall(query)}
    folded = {one.casefold() for one in written}
    found: dict[str, list[str]] = {}
    for name in names:
        if name.casefold() in folded:
            found.setdefault(name.casefold(), []).append(name)
    chosen = []
    for same in found.values():
        exact = [name for name in same if name in written] or same
        if len(exact) > 1:
            raise AmbiguousTopicError(
                f"SQL does not distinguish capital letters, and the broker has {' and '.join(map(quoted_name, exact))};"
                " query one at a time, with its name as it is"
            )
        chosen += exact
    return chosen


def quoted_name(topic: str) -> str:
    """Return the table of a topic of another application, as a query names it."""
    return f'"{topic}"'


def foreign_fields(schema: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the fields of a registered schema that are columns: not those whose name is already a column."""
    taken = {name.casefold() for name in (*RECORD_TYPES, *VALUE_TYPES)}
    found = []
    for field in () if schema is None else schema["fields"]:
        if field["name"].casefold() not in taken:
            taken.add(field["name"].casefold())
            found.append(field)
    return found


def foreign_columns(schema: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the columns of a topic's table by name, with their types; `schema` None: the registry has none for it."""
    fields = {field["name"]: _type(field["type"]) for field in foreign_fields(schema)}
    return {**RECORD_TYPES, **VALUE_TYPES, **fields}


def logical_column(avro: Any) -> LogicalColumn | None:
    """Return what a field is in SQL if its logical type says more than its bytes or its number; None: it does not.

    A time of day stays a number, since DuckDB fails for one beyond 24 hours; the value as JSON has its text.
    """
    if isinstance(avro, list):
        kinds = [kind for kind in avro if kind != "null"]
        return logical_column(kinds[0]) if len(kinds) == 1 else None
    if not isinstance(avro, dict) or not isinstance(avro["type"], str):
        return logical_column(avro["type"]) if isinstance(avro, dict) else None
    if avro["type"] == "int" and avro.get("logicalType") == "date":
        return LogicalColumn("DATE", None)
    size = decimal_size(avro)
    return LogicalColumn(f"DECIMAL({size[0]},{size[1]})", size) if size and size[0] <= DECIMAL_DIGITS_MAX else None


def _type(avro: Any) -> str:
    logical = logical_column(avro)
    return column_type(avro) if logical is None else logical.sql


def fetch_foreign_schemas(names: Iterable[str], registry: RegistryAccess | None) -> dict[str, Mapping[str, Any] | None]:
    """Return the reader schema of the values of each topic, if the registry has one. Blocks.

    Raises:
        UnavailableError: the registry does not answer.
    """
    known = set() if registry is None else set(map(str, ask(registry, "GET", "subjects")))
    found: dict[str, Mapping[str, Any] | None] = {}
    asked = 0
    for name in names:
        topic = foreign_topic(name)
        subject = None
        if topic.subject in known and asked < SUBJECTS_LISTED_MAX:
            asked += 1
            subject = Subject.fetch_foreign(topic, registry)
        found[name] = None if subject is None else subject.schema
    return found
