"""`/asyncapi.json` says what the catalogue of topics and the Avro files say, and everything that it names is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from highwater import __version__
from highwater.api.app import create_app
from highwater.api.core.asyncapi import MEDIA_TYPE, document, message_name
from highwater.connectors.run import CONNECTORS
from highwater.schemas.avro_files import schema_text
from highwater.schemas.topics import TOPICS
from highwater.streams.settings import read_settings
from tests.last_release import without_docs

DOCUMENT = document(__version__)


def references(node: Any) -> Iterator[str]:
    """Every `$ref` at any depth."""
    if isinstance(node, list):
        for one in node:
            yield from references(one)
    elif isinstance(node, dict):
        for name, one in node.items():
            if name == "$ref":
                yield one
            else:
                yield from references(one)


async def test_it_is_served_without_a_key():
    """As AsyncAPI 3.0 in JSON, by the version of the product; `/docs` leads to it."""
    app = create_app(read_settings({}))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.get("/asyncapi.json")
        assert (answer.status_code, answer.headers["content-type"]) == (200, MEDIA_TYPE)
        assert answer.json() == json.loads(json.dumps(DOCUMENT))
        assert (answer.json()["asyncapi"], answer.json()["info"]["version"]) == ("3.0.0", __version__)
        assert 'href="/asyncapi.json"' in (await http.get("/docs")).text


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_a_channel_is_what_the_catalogue_says_of_its_topic(name: str):
    """Address, message, partitions, retention, key, whether outsiders write it, and who publishes and reads it."""
    topic, channel = TOPICS[name], DOCUMENT["channels"][name]
    kafka = channel["bindings"]["kafka"]
    kept = kafka["topicConfiguration"]
    assert (channel["address"], kafka["topic"], kafka["partitions"]) == (name, name, topic.partitions)
    assert (kept["cleanup.policy"], str(kept["retention.ms"])) == ([topic.cleanup], topic.config()["retention.ms"])
    assert ({"name": "outside"} in channel["tags"]) is topic.outsider
    assert channel["x-dead-letter-topic"] == topic.dead_letter
    assert list(channel["messages"]) == [message_name(topic)]
    message = DOCUMENT["components"]["messages"][message_name(topic)]
    assert all(part in message["bindings"]["kafka"]["key"]["description"] for part in topic.key.split("|"))
    assert without_docs(message["payload"]["schema"]) == without_docs(json.loads(schema_text(topic.schema)))
    assert len(message["examples"]) > 0
    found = {
        (one["action"], one["tags"][0]["name"])
        for one in DOCUMENT["operations"].values()
        if one["channel"]["$ref"] == f"#/channels/{name}"
    }
    ours = {*CONNECTORS, "api", "worker"}
    sent = {("send", who) for who in topic.producers if who in ours}
    assert found == sent | {("receive", who) for who in topic.consumers if who in ours}


def test_nothing_else_is_in_it():
    """Channels are the topics, messages their schemas, and each reference leads to a part of the document."""
    assert set(DOCUMENT["channels"]) == set(TOPICS)
    assert set(DOCUMENT["components"]["messages"]) == {message_name(topic) for topic in TOPICS.values()}
    for reference in set(references(DOCUMENT)):
        node: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        assert isinstance(node, dict)


def test_its_texts_name_no_requirement():
    """Readers of the document do not have the specification."""
    assert re.findall(r"\bR\d\.\d+", json.dumps(DOCUMENT)) == []
    assert "servers" not in DOCUMENT
