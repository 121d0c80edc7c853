"""How many dead letters are open, counted without reading them: those sent again and those dropped are not."""

from __future__ import annotations

import asyncio
import uuid

from confluent_kafka import Producer

from highwater.api.dead_letters.handling import Handler
from highwater.api.dead_letters.open_letters import OpenLetters
from highwater.api.dead_letters.reading import LetterBox, in_thread
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.schemas.topics import TOPICS, dead_letter_topic
from tests.conftest import Stack

TOPIC = "jobs.plan-changed"


def bury(stack: Stack, count: int) -> list[int]:
    """Put letters on the dead-letter topic; their offsets."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": stack.kafka})
    headers = [("dlq_reason", b"not_avro"), ("dlq_origin", f"{TOPIC}/5/0".encode())]
    for _ in range(count):
        producer.produce(
            f"{TOPIC}.dlq", b"\x01", uuid.uuid4().bytes, headers=headers,
            on_delivery=lambda _, message: offsets.append(message.offset()),
        )  # fmt: skip
    assert producer.flush(30) == 0
    return sorted(offsets)


async def test_what_was_handled_is_not_open(stack: Stack, context: ProcessContext):
    """Three come, one is sent again, then all are dropped; a count that begins later agrees."""
    settings = stack.settings()
    counting = OpenLetters(settings, context.admin)
    before = (await counting.count()).get(TOPIC, 0)
    offsets = bury(stack, 3)
    assert (await counting.count())[TOPIC] == before + 3

    box = LetterBox(context.client, context.registry)
    producer = AsyncProducer(context.client, client_id="test")
    try:
        partitions = await context.admin.partition_counts()
        handler = Handler(producer, context.codec, partitions, context.clock, by="a test")
        sent = await handler.redrive(in_thread(box.letters([TOPICS[TOPIC]], only=offsets[0])), again=False)
        assert len(sent.redriven) == 1
        assert (await counting.count())[TOPIC] == before + 2
        assert (await OpenLetters(settings, context.admin).count())[TOPIC] == before + 2
        ranges = await asyncio.to_thread(box.ranges, [dead_letter_topic(TOPICS[TOPIC])])
        await handler.drop(context.client, {place: held.high for place, held in ranges.items()}, ranges)
    finally:
        await producer.close()
    assert (await counting.count()).get(TOPIC, 0) == 0
