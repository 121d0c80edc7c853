"""The schema registry: registers the schemas of the catalogue under FULL_TRANSITIVE and passes their ids to the codec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import quote
from uuid import UUID

from highwater.connectors.kafka.registry_http import CONFLICT, RegistryConnection, RegistryRefusedError
from highwater.schemas.avro_files import schema_text
from highwater.schemas.codec import Codec
from highwater.schemas.errors import (
    CatalogueMismatchError,
    ConfigurationError,
    UnknownSchemaError,
    UnknownSchemaGuidError,
)
from highwater.schemas.references import REFERENCES_MAX, with_references
from highwater.schemas.shapes import UnsafeSchemaError
from highwater.schemas.topics import TOPICS, Topic
from highwater.streams.access import RegistryAccess

COMPATIBILITY = "FULL_TRANSITIVE"

T = TypeVar("T")


class Registry:
    """A client of a registry with the Confluent API. Calls block, so each runs in a thread, over one connection."""

    def __init__(self, address: RegistryAccess | str | None) -> None:
        self.access = RegistryAccess.required(address)

    async def register(self, topics: Iterable[Topic]) -> dict[str, int]:
        """Register each topic's schema, compatibility set first; returns topic -> schema id.

        Raises:
            CatalogueMismatchError: a schema is not compatible with all earlier versions of its subject.
            UnavailableError: the registry does not answer.
        """
        return await self._call(
            lambda registry: {topic.name: _register(registry, topic) for topic in topics if topic.schema}
        )

    async def missing(self, topics: Iterable[Topic]) -> list[Topic]:
        """Return the topics whose current schema the registry does not have; each registered one has its compatibility
        set.

        Raises:
            UnavailableError: the registry does not answer.
        """
        return await self._call(lambda registry: [topic for topic in topics if not _has(registry, topic)])

    async def codec(self, topics: Iterable[Topic] = tuple(TOPICS.values())) -> Codec:
        """Return a codec that writes the catalogue's schemas under their registered ids.

        Raises:
            ConfigurationError: a schema was never registered; run `highwater init`.
            UnavailableError: the registry does not answer.
        """
        return Codec(await self._call(lambda registry: {topic.name: _id_of(registry, topic) for topic in topics}))

    async def text_of(self, schema: int | UUID) -> str:
        """Return the schema with an id or a GUID, from any subject.

        Raises:
            UnknownSchemaError: the registry has no such schema; `UnknownSchemaGuidError` for a GUID.
            UnavailableError: the registry does not answer.
        """
        return await self._call(lambda registry: _text_of(registry, schema))

    async def versions_of(self, topic: Topic) -> list[tuple[int, int, str]]:
        """Return the versions of a topic's subject, in order: version, id and schema; none if it was never registered.

        Raises:
            UnavailableError: the registry does not answer.
        """
        return await self._call(lambda registry: _versions_of(registry, topic))

    async def is_compatible(self, topic: Topic) -> bool:
        """Return whether a topic's schema is compatible with every version of its subject; True if there is no version.

        Raises:
            UnavailableError: the registry does not answer.
        """
        return await self._call(lambda registry: _is_compatible(registry, topic))

    async def register_text(self, topic: Topic, text: str) -> int:
        """Register a version of a topic's subject unchanged; return its id.

        Raises:
            UnavailableError: the registry does not answer, or refuses it.
        """

        def register(registry: RegistryConnection) -> int:
            _set_compatibility(registry, topic.subject)
            return _add(registry, topic, text)

        return await self._call(register)

    async def _call(self, function: Callable[[RegistryConnection], T]) -> T:
        def call() -> T:
            with RegistryConnection(self.access) as registry:
                return function(registry)

        return await asyncio.to_thread(call)


def _has(registry: RegistryConnection, topic: Topic) -> bool:
    try:
        _id_of(registry, topic)
    except ConfigurationError:
        return False
    return True


def _register(registry: RegistryConnection, topic: Topic) -> int:
    try:
        _set_compatibility(registry, topic.subject)
    except RegistryRefusedError as error:
        if error.status != CONFLICT:
            raise
        _set_compatibility(registry, topic.subject)  # another process created the rule concurrently; now it exists
    try:
        return _add(registry, topic, schema_text(topic.schema))
    except RegistryRefusedError as error:
        if error.status == CONFLICT:
            raise CatalogueMismatchError(
                f"{topic.schema} breaks {COMPATIBILITY} of {topic.subject}: {error.told}"
            ) from error
        raise


def _set_compatibility(registry: RegistryConnection, subject: str) -> None:
    registry.ask("PUT", f"config/{_quoted(subject)}", {"compatibility": COMPATIBILITY})


def _add(registry: RegistryConnection, topic: Topic, text: str) -> int:
    return int(registry.ask("POST", f"subjects/{_quoted(topic.subject)}/versions", _written(text))["id"])


def _id_of(registry: RegistryConnection, topic: Topic) -> int:
    found = registry.find("POST", f"subjects/{_quoted(topic.subject)}", _written(schema_text(topic.schema)))
    if found is None:
        raise ConfigurationError(f"{topic.schema} is not registered; run `highwater init`")
    return int(found["id"])


def unknown_schema(schema: int | UUID) -> UnknownSchemaError | UnknownSchemaGuidError:
    """Return the error of a schema that is not in the registry."""
    return UnknownSchemaGuidError() if isinstance(schema, UUID) else UnknownSchemaError(schema)


def _text_of(registry: RegistryConnection, schema: int | UUID) -> str:
    found = registry.find("GET", f"schemas/{'guids' if isinstance(schema, UUID) else 'ids'}/{schema}")
    if found is None or found.get("schemaType", "AVRO") != "AVRO":
        raise unknown_schema(schema)
    referenced: dict[str, str] = {}
    waiting = list(found.get("references") or ())
    while waiting:
        one = waiting.pop()
        if one["name"] in referenced:
            continue
        if len(referenced) == REFERENCES_MAX:
            raise UnsafeSchemaError(f"the schema refers to more than {REFERENCES_MAX} others")
        other = registry.find("GET", f"subjects/{_quoted(one['subject'])}/versions/{int(one['version'])}")
        if other is None:
            raise unknown_schema(schema)
        referenced[one["name"]] = str(other["schema"])
        waiting += other.get("references") or ()
    return with_references(str(found["schema"]), referenced)


def _versions_of(registry: RegistryConnection, topic: Topic) -> list[tuple[int, int, str]]:
    held = registry.versions_of(topic.subject)
    return [(int(one["version"]), int(one["id"]), str(one["schema"])) for one in held]


def _is_compatible(registry: RegistryConnection, topic: Topic) -> bool:
    path = f"compatibility/subjects/{_quoted(topic.subject)}/versions/latest"
    found = registry.find("POST", path, _written(schema_text(topic.schema)))
    return found is None or bool(found["is_compatible"])


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _written(text: str) -> dict[str, str]:
    """Return a schema as the registry accepts it."""
    return {"schema": text, "schemaType": "AVRO"}
