"""The outbox on real parts: order per key over two relays, nothing lost with Kafka away, a repeat has the same id."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Message

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.outbox import OutboxRow, Relay
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.feeds import CHANNEL_ADVANCED as ADVANCED
from highwater.schemas.feeds import ChannelAdvanced
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from tests.conftest import Stack
from tests.integration.children import child
from tests.integration.connecting import Reader, fresh, running, until
from tests.integration.kafka.stopped_relay import LEASE_SECONDS

TOPIC = "feeds.plan-changed"


@pytest.fixture
async def producer(context: ProcessContext) -> AsyncIterator[AsyncProducer]:
    """A producer of the product."""
    made = AsyncProducer(context.client, client_id="test")
    yield made
    await made.close()


async def add(context: ProcessContext, users: Sequence[str], plan: str) -> None:
    """One row a user in one transaction."""
    cause = Position("feeds.user-active", 1, 2)
    rows = [
        outbox.event_row(
            context.codec, TOPIC, {"user_id": user, "plan": plan, "ts": 1}, source="/test", now_ms=0, caused_by=cause
        )
        for user in users
    ]
    async with context.pool.acquire() as tx, tx.transaction():
        await outbox.add(tx, rows)


def plans(context: ProcessContext, messages: Sequence[Message], users: Sequence[str]) -> dict[str, list[str]]:
    """Plans by user in the order of the log."""
    found: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        user = (message.key() or b"").decode()
        if user in users:
            found[user].append(context.codec.decode(TOPIC, message.value())["plan"])
    return dict(found)


async def left(context: ProcessContext, users: Sequence[str]) -> int:
    """Rows not yet published."""
    keys = [user.encode() for user in users]
    return int(await context.pool.fetchval("SELECT count(*) FROM outbox WHERE key = ANY ($1::bytea[])", keys))


async def test_two_relays_keep_the_order_of_a_key(stack: Stack, context: ProcessContext, producer: AsyncProducer):
    """With two relays running, and one of them ended in between, each key's events come in the order they were written."""
    users = [fresh("u") for _ in range(10)]
    with Reader(stack.kafka, TOPIC) as reader:
        async with running(Relay(stack.database, producer)):
            async with running(Relay(stack.database, producer)):
                for number in range(40):
                    await add(context, users, str(number))
            for number in range(40, 60):
                await add(context, users, str(number))
            messages = await reader.until(lambda m: (m.key() or b"").decode() in users, 600, "all events")
    assert {user: [str(n) for n in range(60)] for user in users} == plans(context, messages, users)
    places = {(m.key(), m.partition()) for m in messages}
    assert {(u.encode(), murmur2_partition(u.encode(), TOPICS[TOPIC].partitions)) for u in users} == places
    assert await left(context, users) == 0


async def test_one_relay_holds_each_shard(stack: Stack, context: ProcessContext, producer: AsyncProducer):
    """Two relays never hold the same shard and come to equal shares, and one that ends leaves its shards to the other."""
    first, second = Relay(stack.database, producer), Relay(stack.database, producer)
    async with running(second):
        async with running(first):
            assert set() == first.shards & second.shards
            half = outbox.SHARDS // 2
            await until(lambda: (len(first.shards), len(second.shards)) == (half, half), "they have equal shares")
            assert set() == first.shards & second.shards
        await until(lambda: len(second.shards) == outbox.SHARDS, "the other has all")


async def test_headers_say_who_and_why(stack: Stack, context: ProcessContext, producer: AsyncProducer):
    """Every event carries an id, its type and source, and the position of its cause; the ids of rows differ."""
    users = [fresh("u") for _ in range(3)]
    await add(context, users, "pro")
    with Reader(stack.kafka, TOPIC, from_end=False) as reader:
        async with running(Relay(stack.database, producer)):
            found = await reader.until(lambda m: (m.key() or b"").decode() in users, 3, "the events")
    headers = [dict(message.headers()) for message in found]
    assert {(TOPIC.encode(), b"/test", b"feeds.user-active/1/2")} == {
        (h["ce_type"], h["ce_source"], h["ce_causedby"]) for h in headers
    }
    assert len({h["ce_id"] for h in headers}) == 3


async def test_a_relay_killed_before_the_deletion_repeats_with_the_same_id(
    stack: Stack, context: ProcessContext, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
):
    """Between the broker's acknowledgement and the deletion a relay ends: the next sends the rows again, ids unchanged."""
    user = fresh("u")
    sent = asyncio.Event()

    class Dying(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> str:
            if name == "outbox_delete":
                sent.set()
                raise asyncio.CancelledError
            return str(super().__getitem__(name))

    await add(context, [user], "pro")
    with Reader(stack.kafka, TOPIC, from_end=False) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "QUERIES", Dying(outbox.QUERIES))
            task = asyncio.create_task(Relay(stack.database, producer).run(asyncio.Event()))
            await asyncio.wait_for(sent.wait(), 30)
            await asyncio.gather(task, return_exceptions=True)
        assert await left(context, [user]) == 1
        async with running(Relay(stack.database, producer)):
            found = await reader.until(lambda m: m.key() == user.encode(), 2, "both")
    assert len({dict(message.headers())["ce_id"] for message in found}) == 1
    assert await left(context, [user]) == 0


async def add_heads(context: ProcessContext, channel: str, heads: Sequence[int]) -> None:
    """One row a head, in one transaction."""
    rows = [
        outbox.event_row(
            context.codec, ADVANCED, {"channel_id": channel, "head": head, "arrived_at": 1, "retractions": 0},
            source="/test", now_ms=0, caused_by=None,
        )
        for head in heads
    ]  # fmt: skip
    async with context.pool.acquire() as tx, tx.transaction():
        await outbox.add(tx, rows)


class Heads(Handler[ChannelAdvanced, None]):
    """Remembers the heads of a channel."""

    topics = (ADVANCED,)
    batch_max = 100

    def __init__(self, channel: str) -> None:
        self.group = fresh("heads")
        self.channel = channel
        self.heads: list[int] = []

    async def prepare(self, events: Sequence[Event[ChannelAdvanced]]) -> None:
        """Remember."""
        self.heads += [event.value["head"] for event in events if event.value["channel_id"] == self.channel]

    async def apply(self, tx: object, events: object, prepared: None) -> Sequence[DeadLetter]:
        """Only the positions move."""
        return []


async def test_a_relay_that_was_stopped_brings_nothing_old_back(
    stack: Stack, context: ProcessContext, producer: AsyncProducer, tmp_path: Path
):
    """A relay is stopped with a batch in hand; another follows within the lease and publishes it and newer rows. When the
    first continues, it publishes its batch behind that: a consumer processes none of it, also one that restarts in between.
    """
    channel = fresh("c")
    handler = Heads(channel)
    with (
        Reader(stack.kafka, ADVANCED) as reader,
        child(stack, "tests.integration.kafka.stopped_relay", channel, str(tmp_path), folder=tmp_path) as process,
    ):
        await until((tmp_path / "running").exists, "the first holds shards")
        await add_heads(context, channel, [1, 2, 3])
        await until(lambda: "T (stopped)" in Path(f"/proc/{process.pid}/status").read_text(), "it is stopped")
        async with running(
            Relay(stack.database, producer, lease_seconds=LEASE_SECONDS), BatchConsumer(handler, context)
        ):
            await until(lambda: handler.heads == [1, 2, 3], "the next relay publishes what the first had in hand", 10)
            await add_heads(context, channel, [4, 5])
            await until(lambda: handler.heads == [1, 2, 3, 4, 5], "and what is newer")
        async with running(BatchConsumer(handler, context)):
            process.send_signal(signal.SIGCONT)
            of_channel = await reader.until(lambda m: m.key() == channel.encode(), 8, "what the first had in hand too")
            last = of_channel[-1]
            query = 'SELECT next FROM positions WHERE "group" = $1 AND topic = $2 AND partition = $3'

            async def is_past() -> bool:
                at = await context.pool.fetchval(query, handler.group, ADVANCED, last.partition())
                return bool(at > (last.offset() or 0))

            await until(is_past, "the consumer has read all of it")
    heads = [context.codec.decode(ADVANCED, m.value())["head"] for m in of_channel]
    assert (handler.heads, heads) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 1, 2, 3])
    assert await left(context, [channel]) == 0


async def test_kafka_away_keeps_the_rows(stack: Stack, context: ProcessContext, monkeypatch: pytest.MonkeyPatch):
    """While Kafka is unavailable rows stay and the relay is unready; after its recovery they are published."""
    monkeypatch.setattr("highwater.connectors.kafka.producer.DELIVERY_MS_MAX", 2_000)
    producer = AsyncProducer(context.client, client_id="test")
    users = [fresh("u") for _ in range(5)]
    relay = Relay(stack.database, producer)
    async with running(relay):
        await asyncio.to_thread(stack.local.stop_part, "kafka")
        try:
            await add(context, users, "pro")
            await until(lambda: relay.problem, "it says so")
            assert "Kafka did not take the event" in (relay.problem or "")
            assert await left(context, users) == 5
        finally:
            await asyncio.to_thread(stack.local.start_part, "kafka")

        async def gone() -> bool:
            return await left(context, users) == 0

        await until(gone, "all are published")
        await until(lambda: relay.problem is None, "ready again")
    await producer.close()


async def test_rows_of_a_rolled_back_transaction_are_never_published(context: ProcessContext):
    """No effect, no event."""
    user = fresh("u")
    async with context.pool.acquire() as tx:
        open_tx = tx.transaction()
        await open_tx.start()
        await outbox.add(tx, [OutboxRow(TOPIC, user.encode(), b"", [])])
        await open_tx.rollback()
    assert await left(context, [user]) == 0
