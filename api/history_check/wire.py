"""A producer as any foreign program has it: Avro in the Confluent wire format, with a schema that the registry gave.

Invariant: it knows the outside contract alone. It uses librdkafka's own partitioner and no idempotence, so a repeat that
its client sends by itself is as foreign as one that the run sends.
"""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Mapping
from typing import Any

import httpx2
import orjson
from confluent_kafka import KafkaException, Message, Producer
from fastavro import parse_schema, schemaless_writer

from highwater.schemas.errors import ConfigurationError
from highwater.streams.access import RegistryAccess

_MAGIC = 0
_REGISTRY_SECONDS = 10.0
# A broker that is killed is there again within seconds; a write that waits longer counts as not answered.
_DELIVERY_MS = 8_000


class UnreachableError(ConfigurationError):
    """A service of the stack does not answer. Start the stack with `highwater up`, or name the right addresses."""


class ForeignProducer:
    """Sends records of one topic; safe to use from several threads."""

    def __init__(self, client: Mapping[str, str], topic: str, schema_id: int, schema: Any) -> None:
        self._topic = topic
        self._head = struct.pack(">bI", _MAGIC, schema_id)
        self._schema = parse_schema(schema)
        # A broker that does not answer is part of a run; the history shows which writes were not acknowledged.
        quiet = {"log_level": "0"}
        own = quiet | {
            "acks": "all",
            "enable.idempotence": "false",
            "delivery.timeout.ms": str(_DELIVERY_MS),
            "linger.ms": "0",
        }
        self._producer = Producer({**client, **own})

    def send(self, key: str, event: Mapping[str, Any]) -> str | None:
        """Send a record; return its position, or None if the broker did not acknowledge it. Blocking."""
        value = io.BytesIO()
        value.write(self._head)
        schemaless_writer(value, self._schema, event)
        delivered = threading.Event()
        position: list[str] = []

        def note(error: Any, message: Message) -> None:
            if error is None:
                position.append(f"{message.topic()}/{message.partition()}/{message.offset()}")
            delivered.set()

        try:
            self._producer.produce(self._topic, value.getvalue(), key.encode(), on_delivery=note)
        except (BufferError, KafkaException):
            return None
        while not delivered.is_set():  # librdkafka ends every delivery within its timeout
            self._producer.poll(0.05)
        return position[0] if position else None


def foreign_producer(client: Mapping[str, str], access: RegistryAccess, topic: str) -> ForeignProducer:
    """Return a producer of a topic, with the newest schema of its values.

    Raises:
        UnreachableError: the registry does not answer, or does not know the topic.
    """
    address = f"{access.url.rstrip('/')}/subjects/{topic}-value/versions/latest"
    try:
        answer = httpx2.get(address, timeout=_REGISTRY_SECONDS, **access.http_client())
        answer.raise_for_status()
        document = answer.json()
        return ForeignProducer(client, topic, int(document["id"]), orjson.loads(document["schema"]))
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        raise UnreachableError(f"the schema registry at {access.url} gave no schema of {topic}: {error}") from error
