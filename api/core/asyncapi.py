"""`/asyncapi.json`: every topic, its events and who publishes and reads them, as AsyncAPI 3.0; for tools, as
`/openapi.json` is.

Invariant: a function of the catalogue of topics and of the Avro files. It takes the point of view of Highwater: `send`
is what Highwater publishes, `receive` what it reads. It names no broker, since a client knows its own.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from highwater.api.core.access import PUBLIC, declared
from highwater.api.core.plain_pages import HEADERS
from highwater.schemas.avro_files import examples, schema_text
from highwater.schemas.topics import TOPICS, Topic, keyed_partitions

router = APIRouter(include_in_schema=False)

MEDIA_TYPE = "application/vnd.aai.asyncapi+json;version=3.0.0"
# The producers and consumers that are not part of Highwater.
_OUTSIDE = frozenset({"outside", "operator"})
_KAFKA = "0.5.0"  # the version of AsyncAPI's Kafka bindings
_REQUIREMENTS = re.compile(r" \(R\d\.\d++[^()]*+\)")
_HEADERS: dict[str, str] = {
    "ce_specversion": "The version of CloudEvents.",
    "ce_id": "The id of the event; a repetition has the same.",
    "ce_type": "The topic.",
    "ce_source": "Who published it, as a URI reference.",
    "ce_time": "When it was published.",
    "ce_causedby": "The position of the event that caused it: `topic/partition/offset`.",
    "ce_origintime": "When the first event of its chain reached the broker.",
    "ce_traceparent": "The trace that it belongs to (W3C Trace Context).",
    "ce_tracestate": "State of that trace.",
    "ce_relayepoch": "The relay that published it: `shard/epoch`. Skip a record of a lower epoch than one read before it.",
}
_ABOUT = (
    "Avro in the Confluent wire format, with headers of CloudEvents 1.0 (Kafka binding, binary mode). `receive` is what Highwater"
    " reads, `send` what it publishes. A client may publish to topics that are tagged `outside`, with any partitioner; `POST"
    " /api/events/{topic}` does the same over HTTP. Beside each topic is its dead-letter topic."
)


@router.get("/asyncapi.json")
@declared(PUBLIC)
async def asyncapi(request: Request) -> Response:
    """Serve the AsyncAPI document of this version."""
    return Response(
        orjson.dumps(document(request.app.version)),
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": HEADERS["Cache-Control"]},
    )


def document(version: str) -> dict[str, Any]:
    """Return the document of a version of Highwater; the caller must not change it."""
    return _document(version, keyed_partitions())


@functools.cache
def _document(version: str, _partitions: int) -> dict[str, Any]:
    return {
        "asyncapi": "3.0.0",
        "id": "urn:highwater",
        "info": {
            "title": "Highwater events",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
            "tags": [{"name": one} for one in sorted({name.partition(".")[0] for name in TOPICS})],
        },
        "defaultContentType": "application/avro",
        "channels": {name: _channel(topic) for name, topic in TOPICS.items()},
        "operations": {name: one for topic in TOPICS.values() for name, one in _operations(topic)},
        "components": {
            "messages": {message_name(topic): _message(topic) for topic in TOPICS.values()},
            "messageTraits": {"cloudevent": {"headers": _headers()}},
        },
    }


def message_name(topic: Topic) -> str:
    """The name of a topic's message, `feeds.InsightIngested`."""
    subsystem, _, event = topic.schema.partition("/")
    return f"{subsystem}.{event.partition('.')[0]}"


def describe(topic: Topic) -> str:
    """Describe a topic's events, key, producers and consumers in sentences."""
    key = f"Keyed by `{topic.key}`." if topic.key else "Without a key; published to each partition."
    publishers = " and ".join("any client" if name == "outside" else f"`{name}`" for name in topic.producers)
    readers = " and ".join(f"`{name}`" for name in topic.consumers) or "analysts only"
    return f"{topic.about[0].upper()}{topic.about[1:]}. {key} Published by {publishers}; read by {readers}."


def _channel(topic: Topic) -> dict[str, Any]:
    config = topic.config()
    return {
        "address": topic.name,
        "description": describe(topic),
        "messages": {message_name(topic): {"$ref": f"#/components/messages/{message_name(topic)}"}},
        "tags": [{"name": topic.name.partition(".")[0]}, *([{"name": "outside"}] if topic.outsider else [])],
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": [config["cleanup.policy"]],
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.message_bytes_max,
                },
                "bindingVersion": _KAFKA,
            }
        },
        "x-dead-letter-topic": topic.dead_letter,
    }


def _operations(topic: Topic) -> list[tuple[str, dict[str, Any]]]:
    """Return Highwater's operations on a topic: one for each component that publishes or reads it."""
    found = [("send", producer) for producer in topic.producers] + [
        ("receive", consumer) for consumer in topic.consumers
    ]
    return [
        (f"{who}.{action}.{topic.name}", _operation(action, who, topic)) for action, who in found if who not in _OUTSIDE
    ]


def _operation(action: str, who: str, topic: Topic) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "summary": f"{who} {'publishes' if action == 'send' else 'reads'} {topic.name}",
        "tags": [{"name": who}],
    }
    if action == "receive" and who not in {"worker", "api"}:
        group = {"type": "string", "enum": [f"highwater-{who}"]}
        operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": _KAFKA}}
    return operation


def _message(topic: Topic) -> dict[str, Any]:
    schema = _plain(json.loads(schema_text(topic.schema)))
    key = (
        f"The value of {' and of '.join(topic.key.split('|'))}."
        if topic.key
        else "None: the partition says whom it concerns."
    )
    return {
        "name": schema["name"],
        "title": schema["name"],
        "summary": schema["doc"],
        "payload": {"schemaFormat": "application/vnd.apache.avro+json;version=1.9.0", "schema": schema},
        "traits": [{"$ref": "#/components/messageTraits/cloudevent"}],
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": key},
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "schemaLookupStrategy": "TopicNameStrategy",
                "bindingVersion": _KAFKA,
            }
        },
        "examples": [{"payload": one} for one in examples(topic.schema)],
    }


def _plain(node: Any) -> Any:
    """Return a schema without requirement numbers in its docs: its readers do not have the specification."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if isinstance(node, dict):
        return {
            name: _REQUIREMENTS.sub("", value) if name == "doc" and isinstance(value, str) else _plain(value)
            for name, value in node.items()
        }
    return node


def _headers() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": about} for name, about in _HEADERS.items()},
    }
