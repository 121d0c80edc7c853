"""The smallest handler there is: one row an event. Run as a program it is a consumer that a test can stop or kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from highwater.connectors.kafka import consumer
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.feeds import UserActive
from highwater.schemas.topics import TOPICS, Topic, dead_letter_topic
from highwater.streams.telemetry import configure_logging

TABLE = 'CREATE TABLE IF NOT EXISTS tally ("group" text, topic text, partition int, "offset" bigint, id text, who text)'
INSERT = 'INSERT INTO tally ("group", topic, partition, "offset", id, who) VALUES ($1, $2, $3, $4, $5, $6)'
IDS = 'SELECT id FROM tally WHERE "group" = $1 ORDER BY id'

Hook = Callable[[Sequence[Event[UserActive]]], Awaitable[None]]


async def nothing(_: Sequence[Event[UserActive]]) -> None:
    """No hook."""


@dataclass
class Tally(Handler[UserActive, None]):
    """Counts `feeds.user-active` events by their user. The hooks run in `prepare`, and in `apply` after the rows."""

    group: str
    topics: tuple[str, ...]
    who: str = "test"
    batch_max: int = 100
    on_prepare: Hook = nothing
    on_apply: Hook = nothing
    prepares_ahead: bool = True  # the harder case for any fault
    batches: list[int] = field(default_factory=list)

    async def prepare(self, events: Sequence[Event[UserActive]]) -> None:
        """Note the size of the batch."""
        self.batches.append(len(events))
        await self.on_prepare(events)

    async def apply(self, tx: Any, events: Sequence[Event[UserActive]], prepared: None) -> Sequence[DeadLetter]:
        """Store a row an event."""
        rows = [(self.group, *e.record.position, e.value["user_id"], self.who) for e in events]
        await tx.executemany(INSERT, rows)
        await self.on_apply(events)
        return []


def declare(name: str, partitions: int = 2) -> Topic:
    """A topic of a test's own, with the schema of `feeds.user-active`."""
    made = Topic(name, "feeds/UserActive.v1", "user_id", ("test",), ("test",), fixed_partitions=partitions)
    TOPICS[name] = made  # type: ignore[index]
    return made


@asynccontextmanager
async def own_topic(context: ProcessContext, name: str, partitions: int = 2) -> AsyncIterator[ProcessContext]:
    """Declare it, create it with its dead-letter topic, and give a context whose codec knows it."""
    topic = declare(name, partitions)
    try:
        await context.registry.register([topic])
        await context.admin.ensure_topics([topic, dead_letter_topic(topic)], replication_factor=1)
        async with context.pool.acquire() as tx:
            await tx.execute(TABLE)
        yield replace(context, codec=await context.registry.codec(tuple(TOPICS.values())))
    finally:
        del TOPICS[name]  # type: ignore[attr-defined]


async def main(group: str, topic: str, folder: Path, where: str) -> None:
    """Consume; at the first batch say so by a file `held`, and hold it there until there is a file `go`."""
    from highwater.streams.settings import read_settings
    from tests.conftest import Stack
    from tests.integration.connecting import running, surroundings, until

    names = ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL")
    declare(topic)
    consumer.SESSION_MS = int(os.environ["SESSION_MS"])
    settings = read_settings({name: os.environ[name] for name in names})
    configure_logging("info", "json")

    async def hold(_: Sequence[Event[UserActive]]) -> None:
        (folder / "held").touch()
        await until((folder / "go").exists, "go", 120)

    async with surroundings(Stack(*(os.environ[name] for name in names), local=None)) as context:  # type: ignore[arg-type]
        assert settings.kafka is not None
        hooks = {where: hold} if where else {}
        tally = Tally(group, (topic,), who=f"child-{os.getpid()}", **hooks)  # type: ignore[arg-type]
        async with running(BatchConsumer(tally, context)):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
