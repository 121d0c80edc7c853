"""The registry as a backup and an upgrade ask it: every version under its id, and whether a schema fits beside them."""

from __future__ import annotations

import json
from dataclasses import replace

from highwater.connectors.kafka.registry import Registry
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import TOPICS
from tests.conftest import Stack
from tests.integration.connecting import fresh

KNOWN = TOPICS["feeds.user-active"]


async def test_versions_are_listed_under_their_ids(stack: Stack) -> None:
    """A subject that was never registered has none; a registered schema is found with the id that records carry."""
    registry = Registry(stack.schema_registry)
    topic = replace(KNOWN, name=fresh("versions"))
    assert await registry.versions_of(topic) == []
    text = schema_text(topic.schema)
    schema_id = await registry.register_text(topic, text)
    ((version, found_id, found),) = await registry.versions_of(topic)
    assert (version, found_id, json.loads(found)) == (1, schema_id, json.loads(text))
    assert await registry.register_text(topic, text) == schema_id


async def test_a_schema_that_breaks_is_known_before_it_is_registered(stack: Stack) -> None:
    """Beside a version with a field more that has no default it is not FULL_TRANSITIVE; beside none, and beside itself, it is."""
    registry = Registry(stack.schema_registry)
    topic = replace(KNOWN, name=fresh("compatible"))
    assert await registry.is_compatible(topic)
    assert await registry.is_compatible(KNOWN)
    schema = json.loads(schema_text(topic.schema))
    schema["fields"].append({"name": "more", "type": "string"})
    await registry.register_text(topic, json.dumps(schema))
    assert not await registry.is_compatible(topic)
