"""Owns the schema that a topic's events are read into: every field that any registered version of it ever had.

Law: nothing that a writer wrote is left out. The catalogue's fields come first, in its order; those of other versions follow
and take their default where an event has none (FULL_TRANSITIVE gives each one).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.avro_files import schema_text
from schemas.errors import ConfigurationError, UnavailableError, UnknownSchemaError
from schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic

_NOT_FOUND = 404


def source_of(topic: Topic) -> Topic:
    """The topic whose schema the values have: of a dead-letter topic the one that its letters came from."""
    return TOPICS[topic.name.removesuffix(DEAD_LETTER_SUFFIX)]


def merged_schema(own: str, versions: Iterable[str]) -> dict[str, Any]:
    """The schema to read into: `own` and the further fields of the versions (Avro texts, the newest last)."""
    merged: dict[str, Any] = json.loads(own)
    known = {field["name"] for field in merged["fields"]}
    for version in reversed([json.loads(text) for text in versions]):
        for field in version.get("fields", ()) if isinstance(version, dict) else ():
            if field["name"] not in known and "default" in field:
                known.add(field["name"])
                merged["fields"].append(field)
    return merged


class Subject:
    """The schemas of one topic's values: what they are read into, and those they were written with, by id."""

    def __init__(self, topic: Topic, versions: Mapping[int, str], url: str | None = None) -> None:
        """`versions` are those known so far; the registry at `url`, if any, is asked for others."""
        self.topic = source_of(topic)
        self.schema = merged_schema(schema_text(self.topic.schema), versions.values())
        self.versions = dict(versions)
        self._url = url

    @classmethod
    def fetch(cls, topic: Topic, url: str | None) -> Subject:
        """The subject as the registry has it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        # Its client takes 25 MB, which a process that is given the schemas does without.
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        from connectors.kafka.registry import REQUEST_SECONDS  # noqa: PLC0415

        if url is None:
            raise ConfigurationError("SCHEMA_REGISTRY_URL is not set; `highwater up` sets it for its own processes")
        source = source_of(topic)
        client = SchemaRegistryClient({"url": url, "timeout": REQUEST_SECONDS, "max.retries": 0})
        try:
            found = [client.get_version(source.subject, number) for number in client.get_versions(source.subject)]
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise UnavailableError(f"the schema registry refuses: {error.error_message}") from error
            found = []
        except Exception as error:  # the client lets its HTTP library's errors through, and chooses that library itself
            raise UnavailableError(f"the schema registry does not answer: {error or type(error).__name__}") from error
        finally:
            client.close()
        return cls(source, {one.schema_id: str(one.schema.schema_str) for one in found}, url)

    def text_of(self, schema_id: int) -> str:
        """The schema under an id.

        Raises:
            UnknownSchemaError: there is none.
            UnavailableError: the registry does not answer.
        """
        if schema_id not in self.versions:
            if self._url is None:
                raise UnknownSchemaError(schema_id)
            import asyncio  # noqa: PLC0415

            from connectors.kafka.registry import Registry  # noqa: PLC0415 - as in `fetch`

            self.versions[schema_id] = asyncio.run(Registry(self._url).text_of(schema_id))
        return self.versions[schema_id]
