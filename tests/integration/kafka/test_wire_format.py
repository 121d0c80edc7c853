"""The wire format as others see it: our bytes in strangers' clients, and strangers' bytes in ours."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from highwater.connectors.kafka.producer import AsyncProducer
from highwater.schemas.avro_files import examples, schema_text
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from tests.conftest import Stack
from tests.integration.connecting import fresh

# An external program: it cannot import the product.
READER = """
import json, sys
sys.path.append(sys.argv[4])  # the folder of packages, and not the .pth files in it
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
try:
    import highwater.schemas
    sys.exit("the product can be imported")
except ImportError:
    pass
kafka, registry, places = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
consumer = Consumer({"bootstrap.servers": kafka, "group.id": "stranger", "enable.auto.commit": False})
with SchemaRegistryClient({"url": registry}) as client:
    read = AvroDeserializer(client, conf={"subject.name.strategy.type": "TOPIC"})
    events = []
    for topic, partition, offset in places:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = consumer.poll(20)
        event = read(message.value(), SerializationContext(topic, MessageField.VALUE))
        events.append({"key": message.key().decode(), **event})
consumer.close()
print(json.dumps(events, default=lambda v: v.isoformat() if hasattr(v, "isoformat") else v.hex()))
"""


async def publish(stack: Stack, topic: str, value: bytes, key: str) -> Position:
    """One record by the product's producer."""
    producer = AsyncProducer(stack.settings().kafka_client(), client_id="test")
    try:
        return await producer.publish(topic, value, key=key, headers=[("ce_id", b"1")])
    finally:
        await producer.close()


def raw(stack: Stack, place: Position) -> tuple[bytes, bytes]:
    """Key and value of one record, as a plain consumer reads them."""
    config = {"bootstrap.servers": stack.kafka, "group.id": fresh("raw"), "enable.auto.commit": False}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(*place)])
    message = consumer.poll(20)
    consumer.close()
    return message.key(), message.value()


def test_strangers_read_every_event_of_ours(stack: Stack, codec: Codec, tmp_path: Path):
    """Confluent's own deserializer, in a program that cannot import ours, reads each example of each topic as it is."""
    user, channel = fresh("u"), fresh("c")
    topics = ["feeds.insight-retracted", "feeds.novelty", "cache.version-bumped", "feeds.user-changed"]
    wanted, places = [], []
    for topic in topics:
        for example in examples(TOPICS[topic].schema):
            own = {"user_id": user, "channel_id": channel, "insight_id": fresh("i"), "key": f"feed:{user}"}
            event = {**example, **{name: value for name, value in own.items() if name in example}}
            wanted.append({"key": user, **event})
            places.append(asyncio.run(publish(stack, topic, codec.encode(topic, event), user)))
    program = tmp_path / "reader.py"
    program.write_text(READER, encoding="utf-8")
    packages = sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", program, stack.kafka, stack.schema_registry, json.dumps(places), packages]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    times = {"ts", "bumped_at", "last_active_at"}
    assert [{k: v for k, v in e.items() if k not in times} for e in wanted] == [
        {k: v for k, v in e.items() if k not in times} for e in found
    ]
    assert found[0]["ts"].startswith("2026-")


def test_kcat_sees_magic_byte_and_schema_id(stack: Stack, codec: Codec):
    """The first five bytes are 0 and the id that the registry gave, big-endian, as kcat or a plain consumer prints them."""
    topic, user = "feeds.plan-changed", fresh("u")
    value = codec.encode(topic, {"user_id": user, "plan": "pro", "ts": 1})
    place = asyncio.run(publish(stack, topic, value, user))
    key, seen = raw(stack, place)
    if shutil.which("kcat"):
        where = ["-t", topic, "-p", str(place.partition), "-o", str(place.offset), "-c", "1", "-e", "-q"]
        command = ["kcat", "-b", stack.kafka, "-C", *where, "-D", "", "-f", "%k %s"]
        printed = subprocess.run(command, capture_output=True, timeout=30, check=True).stdout
        assert key + b" " + seen == printed
    with SchemaRegistryClient({"url": stack.schema_registry}) as client:
        schema_id = client.get_latest_version(f"{topic}-value").schema_id
    assert (user.encode(), value) == (key, seen)
    assert (0, schema_id) == struct.unpack_from(">bI", seen)


def test_strangers_events_are_read_by_us(stack: Stack, codec: Codec):
    """Our codec reads events that Confluent's own serializer writes under our schema."""
    topic = "feeds.insight-ingested"
    event = {
        **examples("feeds/InsightIngested.v1")[0],
        "insight_id": fresh("i"),
        "embedding": b"\x00\x01",
        "text": "é😀",
    }
    conf = {"auto.register.schemas": False, "subject.name.strategy.type": "TOPIC"}
    with SchemaRegistryClient({"url": stack.schema_registry}) as client:
        write = AvroSerializer(client, schema_text("feeds/InsightIngested.v1"), conf=conf)
        value = write(event, SerializationContext(topic, MessageField.VALUE))
    assert event == codec.decode(topic, value)
    assert value == codec.encode(topic, event)
