"""Shared parts of the tests of connectors: the context of a consumer, a foreign producer, and waiting with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import asyncpg
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import open_pool
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.streams.clock import ProductClock
from tests.conftest import Stack

WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.03


def free_port() -> int:
    """A free port below those that the kernel assigns by itself (from 32768 on Linux).

    So it stays free in the seconds until a process of the test listens there.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def fresh(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{uuid.uuid4().hex[:10]}"


async def until(look: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """The first true answer; `look` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(_LOOK_SECONDS)


# Answers that three hundred tests would each request from the registry sixty times, by its address: no id of the catalogue's
# schemas changes.
_SCHEMA_IDS: dict[str, dict[str, int]] = {}


@asynccontextmanager
async def surroundings(stack: Stack) -> AsyncIterator[ProcessContext]:
    """The shared resources of the consumers of a process, on the session's services."""
    settings = stack.settings()
    client = settings.kafka_client()
    async with await open_pool(settings.database, size_max=20) as pool:
        yield await context_of(stack, pool, Admin(client))


async def context_of(stack: Stack, pool: asyncpg.Pool[asyncpg.Record], admin: Admin) -> ProcessContext:
    """The same with a pool and a client of the caller's."""
    settings = stack.settings()
    registry = Registry(settings.registry_access())
    return ProcessContext(pool, settings.kafka_client(), admin, registry, await codec_of(stack), ProductClock())


async def codec_of(stack: Stack) -> Codec:
    """The codec of the log; it knows no schema that another one was taught."""
    if stack.schema_registry not in _SCHEMA_IDS:
        asked = await Registry(stack.settings().registry_access()).codec()
        _SCHEMA_IDS[stack.schema_registry] = dict(asked._current)
    return Codec(_SCHEMA_IDS[stack.schema_registry])


@asynccontextmanager
async def running(*connectors: Any) -> AsyncIterator[None]:
    """Run connectors, wait until they are ready, and stop them afterwards; one that raised fails the test."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(connector.run(stop), name=connector.group) for connector in connectors]
    try:
        for connector, task in zip(connectors, tasks, strict=True):
            await until(lambda c=connector, t=task: t.done() or c.problem is None, f"{connector.group} is ready")
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def send(kafka: str, topic: str, records: Sequence[tuple[Any, ...]], **config: Any) -> list[Position]:
    """Send (key, value[, headers[, partition]]) as a stranger would, with librdkafka's own partitioner."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 1, "message.max.bytes": 100_000_000, **config})
    places: list[Any] = [None] * len(records)

    def delivered(number: int) -> Callable[[Any, Message], None]:
        def note(error: Any, message: Message) -> None:
            places[number] = error or Position(message.topic(), message.partition(), message.offset())

        return note

    for number, record in enumerate(records):
        key, value, headers, partition = (*record, None, None)[:4]
        place = {} if partition is None else {"partition": partition}
        producer.produce(topic, value, key, headers=headers, on_delivery=delivered(number), **place)
        producer.poll(0)
    assert producer.flush(20) == 0
    assert all(isinstance(place, Position) for place in places), places
    return places


@dataclass
class Reader:
    """Everything in a topic from now on, or from its beginning."""

    kafka: str
    topic: str
    from_end: bool = True
    messages: list[Message] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._consumer = Consumer(
            {"bootstrap.servers": self.kafka, "group.id": fresh("reader"), "enable.auto.commit": False}
        )
        partitions = self._consumer.list_topics(self.topic, timeout=10).topics[self.topic].partitions
        places = []
        for number in partitions:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=10)
            places.append(TopicPartition(self.topic, number, high if self.from_end else low))
        self._consumer.assign(places)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> list[Message]:
        """Return the messages so far."""
        new = self._consumer.consume(1_000, timeout=0.05)
        self.messages += [message for message in new if message.error() is None]
        return self.messages

    async def until(self, wanted: Callable[[Message], bool], count: int, what: str) -> list[Message]:
        """The requested messages, once there are enough."""

        async def look() -> list[Message] | None:
            await asyncio.to_thread(self.read)
            found = [message for message in self.messages if wanted(message)]
            return found if len(found) >= count else None

        return list(await until(look, what)) if count else []


def event(topic: str, value: dict[str, Any], *, partition: int = 0, offset: int = 0, arrived_ms: int = 1) -> Event:
    """An event as a handler is given it."""
    return Event(Record(topic, partition, offset, arrived_ms, b"", b"", []), value)


async def in_transaction(context: ProcessContext, handler: Any, events: Sequence[Event]) -> Any:
    """One batch through a handler, without a consumer; returns its dead letters."""
    prepared = await handler.prepare(events)
    try:
        async with context.pool.acquire() as tx, tx.transaction():
            return await handler.apply(tx, events, prepared)
    finally:
        await handler.settle(prepared)


async def in_outbox(context: ProcessContext, topic: str, key: str | None = None) -> list[Any]:
    """The unpublished events of a topic, under one key or under any, in order; None for a tombstone."""
    query = "SELECT value FROM outbox WHERE topic = $1 AND ($2::bytea IS NULL OR key = $2) ORDER BY id"
    rows = await context.pool.fetch(query, topic, None if key is None else key.encode())
    return [None if row["value"] is None else context.codec.decode(topic, row["value"]) for row in rows]


class Speaker:
    """Creates events of one producer, and passes them to the sink of their topic."""

    def __init__(self, context: ProcessContext, sinks: Mapping[str, Any]) -> None:
        self.context = context
        self._sinks = sinks
        self._at = 1_000

    def says(self, topic: str, value: dict[str, Any], *, partition: int = 0, at: int | None = None) -> Event:
        """An event; broker time and offset advance by one."""
        self._at += 1
        at = self._at if at is None else at
        return event(topic, value, partition=partition, offset=at, arrived_ms=at)

    async def stores(self, *events: Event) -> list[str]:
        """One batch through the sink that reads these events; why events were refused."""
        dead = await in_transaction(self.context, self._sinks[events[0].record.topic], events)
        return [letter.reason for letter in dead]
