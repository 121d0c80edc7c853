"""The schema registry: schemas registered under FULL_TRANSITIVE, and what breaks them refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx2
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from highwater.connectors.kafka import registry as registry_module
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.avro_files import schema_text
from highwater.schemas.errors import CatalogueMismatchError, ConfigurationError, UnavailableError, UnknownSchemaError
from highwater.schemas.topics import TOPICS, Topic
from tests.conftest import Stack
from tests.integration.connecting import fresh

ACTIVE = "feeds/UserActive.v1"
FIELD_MORE = '"fields": [{"name": "more", "type": %s},'


@pytest.fixture
def registry(stack: Stack) -> Registry:
    """A client of the session's registry."""
    return Registry(stack.schema_registry)


@pytest.fixture
def stranger(stack: Stack) -> Iterator[SchemaRegistryClient]:
    """A foreign client."""
    with SchemaRegistryClient({"url": stack.schema_registry, "timeout": 10}) as client:
        yield client


@pytest.fixture
def topic(registry: Registry) -> Topic:
    """A subject of the test's own, registered."""
    made = Topic(fresh("test.registry"), ACTIVE, "user_id", ("test",), ("test",))
    asyncio.run(registry.register([made]))
    return made


def changed(name: str, old: str, new: str) -> str:
    """A schema with one change."""
    assert old in schema_text(name)
    return schema_text(name).replace(old, new, 1)


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_a_subject_is_full_transitive(stack: Stack, name: str):
    """Every topic's subject says FULL_TRANSITIVE and holds the schema of its Avro file."""
    config = httpx2.get(f"{stack.schema_registry}/config/{name}-value").json()
    assert config["compatibilityLevel"] == "FULL_TRANSITIVE"
    latest = httpx2.get(f"{stack.schema_registry}/subjects/{name}-value/versions/latest").json()
    assert json.loads(schema_text(TOPICS[name].schema)) == json.loads(latest["schema"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"fields": [', FIELD_MORE % '"string"'),
        ('"name": "ts"', '"name": "at"'),
        ('"type": "string"', '"type": "long"'),
        ('"name": "UserActive"', '"name": "UserWasActive"'),
    ],
    ids=["a required field more", "a field renamed", "a type changed", "the record renamed"],
)
def test_an_incompatible_change_is_refused(
    registry: Registry, topic: Topic, monkeypatch: pytest.MonkeyPatch, old: str, new: str
):
    """A change that would break a reader or a writer is a `CatalogueMismatchError` that names schema and subject."""
    text = changed(ACTIVE, old, new)
    monkeypatch.setattr(registry_module, "schema_text", lambda _: text)
    with pytest.raises(CatalogueMismatchError, match=rf"{ACTIVE} breaks FULL_TRANSITIVE of {topic.subject}"):
        asyncio.run(registry.register([topic]))


def test_an_optional_field_may_come(registry: Registry, topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """A field with a default is compatible both ways, and gets a new id."""
    (before,) = asyncio.run(registry.register([topic])).values()
    text = changed(ACTIVE, '"fields": [', FIELD_MORE % '["null", "string"], "default": null')
    monkeypatch.setattr(registry_module, "schema_text", lambda _: text)
    (after,) = asyncio.run(registry.register([topic])).values()
    assert after > before
    assert json.loads(text) == json.loads(asyncio.run(registry.text_of(after)))


def test_registering_again_gives_the_same_ids(registry: Registry):
    """Registration is idempotent, and the codec's ids are those of the registration."""
    first = asyncio.run(registry.register(TOPICS.values()))
    assert first == asyncio.run(registry.register(TOPICS.values()))
    assert first == asyncio.run(registry.codec())._current


def test_two_may_register_at_once(stack: Stack):
    """Two processes that start together both succeed, on subjects that are new to the registry too."""
    topics = [Topic(fresh("test.twice"), ACTIVE, "user_id", ("test",), ("test",)) for _ in range(5)]

    async def both() -> list[dict[str, int]]:
        return await asyncio.gather(*(Registry(stack.schema_registry).register(topics) for _ in range(2)))

    first, second = asyncio.run(both())
    assert first == second


@pytest.mark.parametrize("schema_id", [0, 999_999, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_id_that_was_never_given_is_unknown(registry: Registry, schema_id: int):
    """Any of the four-byte ids that the registry does not hold is an `UnknownSchemaError`, not a registry at fault."""
    with pytest.raises(UnknownSchemaError):
        asyncio.run(registry.text_of(schema_id))


def test_a_schema_that_is_not_avro_is_unknown(registry: Registry, stranger: SchemaRegistryClient):
    """A JSON schema's id names none of our events."""
    text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    schema_id = stranger.register_schema(fresh("json"), Schema(text, "JSON"))
    with pytest.raises(UnknownSchemaError):
        asyncio.run(registry.text_of(schema_id))


def test_a_schema_that_was_never_registered_is_a_configuration_error(registry: Registry):
    """A role that starts before `highwater init` says what to run."""
    with pytest.raises(ConfigurationError, match="highwater init"):
        asyncio.run(registry.codec([Topic(fresh("never"), ACTIVE, "user_id", (), ())]))


def test_a_registry_that_is_away_is_retriable():
    """Nothing listens: an `UnavailableError` in one line."""
    with pytest.raises(UnavailableError, match="registry does not answer"):
        asyncio.run(Registry("http://127.0.0.1:9").text_of(1))
    with pytest.raises(ConfigurationError):
        Registry(None)
