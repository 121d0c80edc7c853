"""Topics and records of another application on the broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from highwater.connectors.kafka.registry_http import ask
from highwater.streams.access import RegistryAccess

# Records of its topic; its group has read two of them.
COUNT = 5
TEXT = {"name": "text", "type": "string"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


@contextlib.contextmanager
def foreign_topic(brokers: str, name: str) -> Iterator[str]:
    """A topic with `COUNT` records, and a group of the same name that has read two of them."""
    client = {"bootstrap.servers": brokers}
    admin = AdminClient(client)
    (made,) = admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "86400000"})]).values()
    made.result(30)
    producer = Producer(client)
    for number in range(COUNT):
        producer.produce(name, b'{"n": %d}' % number)
    producer.flush(30)
    consumer = Consumer({**client, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    consumer.close()
    yield name
    for future in admin.delete_topics([name]).values():
        future.result(30)


def schema(*fields: dict[str, Any]) -> str:
    """A record with these fields."""
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


def foreign_subject(registry: str, name: str) -> str:
    """A subject whose second version has one more field."""
    access = RegistryAccess.required(registry)
    ask(access, "PUT", f"config/{name}", {"compatibility": "FULL_TRANSITIVE"})
    for fields in ((TEXT,), (TEXT, NOTE)):
        ask(access, "POST", f"subjects/{name}/versions", {"schema": schema(*fields)})
    return name
