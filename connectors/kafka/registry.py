"""The schema registry: registers the catalogue's schemas under FULL_TRANSITIVE and tells the codec of ids."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from typing import Any

from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, SchemaRegistryClient, ServerConfig
from confluent_kafka.schema_registry.error import SchemaRegistryError

try:  # the client prefers httpx2 where it is installed, whose errors are not those of httpx
    from confluent_kafka.schema_registry.common._httpx_compat import httpx
except ImportError:  # a client from before it had a choice
    import httpx

from highwater.schemas.avro_files import schema_text
from highwater.schemas.codec import Codec
from highwater.schemas.errors import (
    AccessRefusedError,
    CatalogueMismatchError,
    ConfigurationError,
    UnavailableError,
    UnknownSchemaError,
)
from highwater.schemas.topics import TOPICS, Topic
from highwater.streams.access import (
    REGISTRY_CREDENTIALS,
    REGISTRY_REFUSED,
    RegistryAccess,
    registry_untrusted,
    tls_refusal,
)

COMPATIBILITY = ConfigCompatibilityLevel.FULL_TRANSITIVE
# The registry answers in milliseconds; a caller waits this long for one that is stuck.
REQUEST_SECONDS = 5
_NOT_FOUND = 404
_CONFLICT = 409


class Registry:
    """A client of a registry with the Confluent API. Calls block, so each runs in a thread."""

    def __init__(self, address: RegistryAccess | str | None) -> None:
        self.access = RegistryAccess.required(address)
        options = self.access.confluent()
        self._client = SchemaRegistryClient({**options, "timeout": REQUEST_SECONDS, "max.retries": 0})
        weakref.finalize(self, self._client.close)  # its connections end with it, wherever it was made

    async def register(self, topics: Iterable[Topic]) -> dict[str, int]:
        """Register each topic's schema, compatibility set first; returns topic -> schema id.

        Raises:
            CatalogueMismatchError: a schema is not compatible with all earlier versions of its subject.
            UnavailableError: the registry does not answer.
        """
        return {topic.name: await self._call(self._register, topic) for topic in topics if topic.schema}

    def _register(self, topic: Topic) -> int:
        try:
            self._set_compatibility(topic.subject)
        except SchemaRegistryError as error:
            if error.http_status_code != _CONFLICT:
                raise
            self._set_compatibility(topic.subject)  # another process made the rule at the same moment; now it is there
        try:
            return int(self._client.register_schema(topic.subject, Schema(schema_text(topic.schema), "AVRO")))
        except SchemaRegistryError as error:
            if error.http_status_code == _CONFLICT:
                raise CatalogueMismatchError(
                    f"{topic.schema} breaks {COMPATIBILITY.value} of {topic.subject}: {error.error_message}"
                ) from error
            raise

    def _set_compatibility(self, subject: str) -> None:
        self._client.set_config(subject_name=subject, config=ServerConfig(compatibility=COMPATIBILITY))

    async def codec(self, topics: Iterable[Topic] = tuple(TOPICS.values())) -> Codec:
        """A codec that writes the catalogue's schemas under the ids they were registered with.

        Raises:
            ConfigurationError: a schema was never registered; run `highwater init`.
            UnavailableError: the registry does not answer.
        """
        return Codec({topic.name: await self._call(self._id_of, topic) for topic in topics})

    def _id_of(self, topic: Topic) -> int:
        try:
            found = self._client.lookup_schema(topic.subject, Schema(schema_text(topic.schema), "AVRO"))
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                raise ConfigurationError(f"{topic.schema} is not registered; run `highwater init`") from error
            raise
        return int(found.schema_id)

    async def text_of(self, schema_id: int) -> str:
        """The schema under an id, whatever subject it belongs to.

        Raises:
            UnknownSchemaError: there is none.
            UnavailableError: the registry does not answer.
        """
        return str(await self._call(self._text_of, schema_id))

    def _text_of(self, schema_id: int) -> str:
        try:
            found = self._client.get_schema(schema_id)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                raise UnknownSchemaError(schema_id) from error
            raise
        if found.schema_type != "AVRO":
            raise UnknownSchemaError(schema_id)
        return str(found.schema_str)

    async def versions_of(self, topic: Topic) -> list[tuple[int, int, str]]:
        """The versions of a topic's subject, in order: version, id and schema; none where it was never registered.

        Raises:
            UnavailableError: the registry does not answer.
        """
        found: list[tuple[int, int, str]] = await self._call(self._versions_of, topic)
        return found

    def _versions_of(self, topic: Topic) -> list[tuple[int, int, str]]:
        try:
            versions = self._client.get_versions(topic.subject)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return []
            raise
        held = [self._client.get_version(topic.subject, version) for version in versions]
        return [(one.version, int(one.schema_id), str(one.schema.schema_str)) for one in held]

    async def is_compatible(self, topic: Topic) -> bool:
        """Whether a topic's schema may be registered beside every version of its subject; True where there is none.

        Raises:
            UnavailableError: the registry does not answer.
        """
        return bool(await self._call(self._is_compatible, topic))

    def _is_compatible(self, topic: Topic) -> bool:
        try:
            return bool(self._client.test_compatibility(topic.subject, Schema(schema_text(topic.schema), "AVRO")))
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return True
            raise

    async def register_text(self, topic: Topic, text: str) -> int:
        """Register a version of a topic's subject as it is given; returns its id.

        Raises:
            UnavailableError: the registry does not answer, or refuses it.
        """

        def register(_topic: Topic) -> int:
            self._set_compatibility(topic.subject)
            return int(self._client.register_schema(topic.subject, Schema(text, "AVRO")))

        return int(await self._call(register, topic))

    @staticmethod
    async def _call(function: Any, argument: Any) -> Any:
        try:
            return await asyncio.to_thread(function, argument)
        except (httpx.HTTPError, OSError) as error:
            refusal = tls_refusal(error)
            if refusal is not None:
                raise AccessRefusedError(registry_untrusted(refusal)) from error
            raise UnavailableError(
                f"the schema registry does not answer: {str(error) or type(error).__name__}"
            ) from error
        except SchemaRegistryError as error:
            if error.http_status_code in REGISTRY_REFUSED:  # which comes without a message of the registry's own
                told = f"the schema registry refuses: status {error.http_status_code}; {REGISTRY_CREDENTIALS}"
                raise AccessRefusedError(told) from error
            raise UnavailableError(f"the schema registry refuses: {error.error_message}") from error
