"""The schema that a topic's events are read into: every field that any registered version of it ever had.

Invariant: nothing that a producer wrote is left out. The catalogue's fields come first, in its order; those of other
versions follow and take their default if an event has none (FULL_TRANSITIVE gives each one).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from highwater.connectors.kafka.registry_http import NOT_FOUND, RegistryRefusedError, ask
from highwater.schemas.avro_files import schema_text
from highwater.schemas.bounds import bounds_of
from highwater.schemas.errors import UnavailableError, UnknownSchemaError
from highwater.schemas.readable import readable
from highwater.schemas.shapes import UnsafeSchemaError, clean_schema
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic
from highwater.streams.access import RegistryAccess

# Fields of one version that conflict with the others, such as two types of one name; each costs another check of the
# whole.
_MISFITS_MAX = 3


def source_of(topic: Topic) -> Topic:
    """Return the topic whose schema the values have: for a dead-letter topic the original one; for a foreign topic itself."""
    return topic if not topic.is_catalogued else TOPICS[topic.name.removesuffix(DEAD_LETTER_SUFFIX)]


def merged_schema(own: str, versions: Iterable[str]) -> dict[str, Any]:
    """Return the schema to read into: `own` and the further fields of the versions (Avro texts, newest last).

    A version that cannot be decoded (`schemas/readable.py`) adds nothing, nor does a field with which the whole could
    not be.
    """
    merged: dict[str, Any] = json.loads(own)
    for text in reversed(list(versions)):
        if text == own:
            continue
        known = {field["name"] for field in merged["fields"]}
        further = [one for one in _fields_with_default(text) if one["name"] not in known]
        merged["fields"] += _fitting(merged, further)
    return merged


def _fitting(merged: dict[str, Any], further: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the further fields with which the whole can still be decoded; misfits are skipped."""
    found: list[dict[str, Any]] = []
    for _ in range(1 + _MISFITS_MAX):
        is_overfull = partial(_is_overfull, merged, merged["fields"] + found, further)
        too_many = bisect_left(range(1, len(further) + 1), True, key=is_overfull)
        found += further[:too_many]
        further = further[too_many + 1 :]
        if not further:
            break
    return found


def _fields_with_default(text: str) -> list[dict[str, Any]]:
    try:
        if not readable(text).is_record:
            return []
    except UnsafeSchemaError:
        return []
    return [one for one in clean_schema(text, keeps_logical_types=True).document["fields"] if "default" in one]


def _is_overfull(
    merged: dict[str, Any], so_far: list[dict[str, Any]], further: list[dict[str, Any]], count: int
) -> bool:
    """Return whether the whole can no longer be decoded with this many of the further fields."""
    try:
        bounds_of(clean_schema(json.dumps({**merged, "fields": so_far + further[:count]})).shape)
    except UnsafeSchemaError:
        return True
    return False


def newest_record(versions: Mapping[int, str]) -> str | None:
    """Return the newest of the schemas, oldest first, that is an Avro record and can be decoded; None if there is none."""
    for text in reversed(list(versions.values())):
        try:
            if readable(text).is_record:
                return text
        except UnsafeSchemaError:  # of another kind (JSON Schema, Protocol Buffers), or one that is not decoded
            continue
    return None


class Subject:
    """The schemas of one topic's values: the one they are read into, and those they were written with, by id."""

    def __init__(
        self,
        topic: Topic,
        versions: Mapping[int, str],
        registry: RegistryAccess | str | None = None,
        *,
        own: str | None = None,
    ) -> None:
        """`versions` are those known so far; others are read from the registry, if any. `own`: the reader schema, for a
        topic that the catalogue does not have.
        """
        self.topic = source_of(topic)
        self.schema = merged_schema(schema_text(self.topic.schema) if own is None else own, versions.values())
        self.versions = dict(versions)
        self._registry = registry

    @classmethod
    def fetch(cls, topic: Topic, registry: RegistryAccess | str | None) -> Subject:
        """Return the subject as the registry has it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        access = RegistryAccess.required(registry)
        source = source_of(topic)
        return cls(source, _versions(access, source.subject), access)

    @classmethod
    def fetch_foreign(cls, topic: Topic, registry: RegistryAccess | None) -> Subject | None:
        """Return the subject of a topic that the catalogue does not have; None: the registry has no Avro record for it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        versions = {} if registry is None else _versions(registry, topic.subject)
        own = newest_record(versions)
        return None if own is None else cls(topic, versions, registry, own=own)

    def text_of(self, schema_id: int) -> str:
        """Return the schema of an id.

        Raises:
            UnknownSchemaError: there is none.
            UnavailableError: the registry does not answer.
        """
        if schema_id not in self.versions:
            if self._registry is None:
                raise UnknownSchemaError(schema_id)
            import asyncio  # noqa: PLC0415

            from highwater.connectors.kafka.registry import Registry  # noqa: PLC0415 - as in `fetch`

            self.versions[schema_id] = asyncio.run(Registry(self._registry).text_of(schema_id))
        return self.versions[schema_id]


def _versions(registry: RegistryAccess, subject: str) -> dict[int, str]:
    """Return every schema of a subject by id, oldest first; none if the registry does not know it.

    Raises:
        UnavailableError: the registry does not answer.
    """
    path = f"subjects/{quote(subject, safe='')}/versions"
    try:
        found = [ask(registry, "GET", f"{path}/{number}") for number in ask(registry, "GET", path)]
    except RegistryRefusedError as error:
        if error.status == NOT_FOUND:
            return {}
        raise
    except TypeError as error:
        raise _odd(error) from error
    try:
        return {int(one["id"]): str(one["schema"]) for one in found}
    except (ValueError, KeyError, TypeError) as error:
        raise _odd(error) from error


def _odd(error: Exception) -> UnavailableError:
    return UnavailableError(f"the schema registry does not answer: {str(error) or type(error).__name__}")
