"""Owns how SQL finds topics of other applications: which there are, which a query names, and the columns of each.

Invariants. Nothing here loads Arrow or DuckDB, since the API lists tables in its own process. A name is a topic's own, in quotes
where SQL asks for them; SQL does not distinguish capital letters and Kafka does, so of two such topics the one that is written
exactly is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from highwater.connectors.kafka.registry_http import ask
from highwater.connectors.replay.subject import Subject
from highwater.connectors.sql.catalogue import RECORD_TYPES, column_type
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topic_kinds import kind_of
from highwater.schemas.topics import foreign_topic
from highwater.streams.access import RegistryAccess

# Beside the columns of the record and the fields of a registered schema.
VALUE, VALUE_BYTES = "_value", "_value_bytes"
VALUE_TYPES: Mapping[str, str] = {VALUE: "JSON", VALUE_BYTES: "BLOB"}
# The schema of their tables; it is searched, so that its name can be left out.
SCHEMA = "topics"
# Subjects whose fields a list of tables shows: each is two requests to the registry and more.
SUBJECTS_LISTED_MAX = 200

_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|([A-Za-z_][\w$]*)')


class AmbiguousTopicError(HighwaterError):
    """SQL takes two topics for one, because their names differ in capital letters alone. Write the name exactly as it is."""


def foreign_names(on_broker: Iterable[str]) -> list[str]:
    """Of all topics those that the catalogue does not have."""
    return sorted(name for name in on_broker if not foreign_topic(name).is_catalogued)


def listed_names(names: Iterable[str]) -> list[str]:
    """Of topics of other applications those that a list of tables shows: no changelogs, and nothing of Kafka's own."""
    return [name for name in names if kind_of(name) in ("events", "dead letters")]


def named_topics(names: Iterable[str], query: str) -> list[str]:
    """The topics whose name stands in a query as an identifier.

    Raises:
        AmbiguousTopicError: two are meant by one name.
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
    """The table of a topic of another application, as a query names it."""
    return f'"{topic}"'


def foreign_fields(schema: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The fields of a registered schema that are columns: not those whose name a column has already."""
    taken = {name.casefold() for name in (*RECORD_TYPES, *VALUE_TYPES)}
    found = []
    for field in () if schema is None else schema["fields"]:
        if field["name"].casefold() not in taken:
            taken.add(field["name"].casefold())
            found.append(field)
    return found


def foreign_columns(schema: Mapping[str, Any] | None) -> dict[str, str]:
    """The columns of a topic's table by name, with their types; `schema` None: the registry has none for it."""
    fields = {field["name"]: column_type(field["type"]) for field in foreign_fields(schema)}
    return {**RECORD_TYPES, **VALUE_TYPES, **fields}


def fetch_foreign_schemas(names: Iterable[str], registry: RegistryAccess | None) -> dict[str, Mapping[str, Any] | None]:
    """The schema that the values of each topic are read into, as far as the registry has one. Blocks.

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
