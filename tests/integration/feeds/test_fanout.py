"""The fan-out on real parts: every subscriber hears of a head once, at the right partition, in records that are bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Message

from highwater.connectors.feeds.worker_fanout import Fanout
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.schemas.envelope import caused_by, header
from highwater.schemas.feeds import CHANNEL_DIRTY, NOVELTY, USER_CHANGED
from highwater.schemas.topics import PARTITIONS
from tests.conftest import Stack
from tests.integration.connecting import Reader, event, fresh, in_transaction

RECORD_BYTES_MAX = 256_000


@pytest.fixture(scope="module")
async def fanout(context: ProcessContext) -> AsyncIterator[Fanout]:
    """The worker, driven batch by batch."""
    producer = AsyncProducer(context.client, client_id="test")
    yield Fanout(context.pool, producer, context.codec, context.clock)
    await producer.close()


async def channel_with(context: ProcessContext, head: int, users: list[str]) -> str:
    """A channel with a head and subscribers."""
    channel = fresh("fan")
    await context.pool.execute("INSERT INTO channels (channel_id, current_seq) VALUES ($1, $2)", channel, head)
    await context.pool.executemany(
        "INSERT INTO subscriptions VALUES ($1, $2, true, 1)", [(user, channel) for user in users]
    )
    return channel


def dirty(channel: str, offset: int = 5) -> Any:
    """A channel-dirty."""
    return event(
        CHANNEL_DIRTY, {"channel_id": channel, "head": 1, "dirty_since": 1, "tick": 1, "now": 1}, offset=offset
    )


def subscribed(user: str, channels: list[str]) -> Any:
    """A user-changed."""
    return event(USER_CHANGED, {"user_id": user, "subscribed": channels, "unsubscribed": []}, partition=2, offset=9)


def heads(context: ProcessContext, message: Message) -> list[dict[str, Any]]:
    """The heads in a record."""
    return list(context.codec.decode(NOVELTY, message.value())["heads"])


async def published(context: ProcessContext, reader: Reader, channel: str, count: int) -> list[Message]:
    """The records about a channel, once this many users were notified."""
    from tests.integration.connecting import until

    def look() -> list[Message] | None:
        about = [m for m in reader.read() if any(h["channel_id"] == channel for h in heads(context, m))]
        heard = sum(len(h["users"]) for m in about for h in heads(context, m) if h["channel_id"] == channel)
        return about if heard >= count else None

    return list(await until(look, f"{count} heard of {channel}"))


async def test_ten_thousand_subscribers(stack: Stack, context: ProcessContext, fanout: Fanout):
    """Each of 10,000 hears of the head exactly once, at the partition of its key, in records of at most 256 KB."""
    users = [f"{fresh('s')}{'x' * 200}" for _ in range(10_000)]
    channel = await channel_with(context, 42, users)
    with Reader(stack.kafka, NOVELTY) as reader:
        await in_transaction(context, fanout, [dirty(channel, 5), dirty(channel, 6)])
        records = await published(context, reader, channel, 10_000)
    heard = Counter(user for m in records for h in heads(context, m) for user in h["users"])
    assert Counter(users) == heard
    assert {42} == {h["head"] for m in records for h in heads(context, m)}
    for message in records:
        members = [user for h in heads(context, message) for user in h["users"]]
        assert {message.partition()} == {murmur2_partition(user.encode(), PARTITIONS) for user in members}
        assert len(message.value()) <= RECORD_BYTES_MAX
        assert f"{CHANNEL_DIRTY}/0/6" == str(caused_by(message.headers()))
    announced = await context.pool.fetchval("SELECT announced_seq FROM channels WHERE channel_id = $1", channel)
    assert announced == 42


async def test_a_channel_without_subscribers_is_announced(context: ProcessContext, fanout: Fanout):
    """Without subscribers the channel is still no longer dirty, and a missing one stops nothing."""
    channel = await channel_with(context, 7, [])
    assert await in_transaction(context, fanout, [dirty(channel), dirty(fresh("nowhere"))]) == []
    query = "SELECT announced_seq FROM channels WHERE channel_id = $1"
    assert await context.pool.fetchval(query, channel) == 7


async def test_a_subscription_to_a_quiet_channel_is_answered(stack: Stack, context: ProcessContext, fanout: Fanout):
    """A subscriber gets the head at once; a channel without insights has none."""
    user, quiet, empty = fresh("u"), await channel_with(context, 9, []), await channel_with(context, 0, [])
    with Reader(stack.kafka, NOVELTY) as reader:
        await in_transaction(context, fanout, [subscribed(user, [quiet, empty, fresh("unknown")])])
        (record,) = await published(context, reader, quiet, 1)
    assert [{"channel_id": quiet, "head": 9, "users": [user], "retractions": 0}] == heads(context, record)
    assert murmur2_partition(user.encode(), PARTITIONS) == record.partition()
    assert f"{USER_CHANGED}/2/9" == str(caused_by(record.headers()))


async def test_a_thousand_long_channels_take_several_records(stack: Stack, context: ProcessContext, fanout: Fanout):
    """A user with the maximum number of channels, and ids of maximum length, gets records of at most 256 KB."""
    user = f"{fresh('u')}{'u' * 480}"
    channels = [f"{fresh('long')}{'c' * 480}" for _ in range(1_000)]
    await context.pool.executemany(
        "INSERT INTO channels (channel_id, current_seq) VALUES ($1, 1)", [(c,) for c in channels]
    )
    with Reader(stack.kafka, NOVELTY) as reader:
        await in_transaction(context, fanout, [subscribed(user, channels)])
        await published(context, reader, channels[-1], 1)
        records = [m for m in reader.messages if heads(context, m)[0]["users"] == [user]]
    assert channels == [h["channel_id"] for m in records for h in heads(context, m)]
    assert max(len(message.value()) for message in records) <= RECORD_BYTES_MAX
    assert len({header(message.headers(), "ce_id") for message in records}) == len(records) > 1


async def test_a_repeat_has_the_same_ids(stack: Stack, context: ProcessContext, fanout: Fanout):
    """A batch that is repeated after a crash sends the same records under the same ids."""
    channel = await channel_with(context, 3, [fresh("u") for _ in range(20)])
    with Reader(stack.kafka, NOVELTY) as reader:
        for _ in range(2):
            await in_transaction(context, fanout, [dirty(channel)])
        records = await published(context, reader, channel, 40)
    ids = Counter(header(message.headers(), "ce_id") for message in records)
    assert {2} == set(ids.values())
