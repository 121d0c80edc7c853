"""The mirror in Redis: the keys as they are catalogued, and everything back after Redis was emptied or away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.connectors.feeds.mirror import Mirror
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.pages.cache import CacheVersions
from highwater.connectors.redis.keys import RESOURCE_VERSION, resource_key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.streams.clock import to_datetime
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_transaction, until
from tests.integration.databases import own_database

NOW_MS = 1_790_000_000_000


@pytest.fixture(scope="module")
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """An empty database: of all positions of the mirror these tests alone know."""
    async with own_database(stack) as made:
        yield made


@pytest.fixture
async def redis(context: ProcessContext, link: RedisLink) -> RedisLink:
    """An empty Redis, and a log of which nothing was mirrored."""
    await context.pool.execute("DELETE FROM positions")
    await context.pool.execute("TRUNCATE channels, user_stats, subscriptions, user_cluster_hwm")
    return link


async def mirrored(context: ProcessContext, one: Mirror, *events: Any) -> None:
    """A batch through the mirror as by the consumer: the positions are committed after the prepared writes."""
    await in_transaction(context, one, events)
    for said in events:
        await context.pool.execute(
            'INSERT INTO positions ("group", topic, partition, topic_id, next) VALUES ($1, $2, $3, $4, $5) '
            'ON CONFLICT ("group", topic, partition) DO UPDATE SET next = excluded.next',
            "mirror", said.record.topic, said.record.partition, "x", said.record.offset + 1,
        )  # fmt: skip


async def rewritten(one: Mirror) -> None:
    """Let the mirror look, as it does each second, until it has written everything again."""
    stop = asyncio.Event()
    watching = asyncio.create_task(one.watch(stop))
    await until(lambda: one.is_rewritten, "all is written again")
    stop.set()
    await watching


def mirror(context: ProcessContext, redis: RedisLink) -> Mirror:
    """A mirror that has not seen Redis yet."""
    return Mirror(context.pool, redis, ResourceCache(redis), lambda: NOW_MS, tick_seconds=1)


def advanced(channel: str) -> Any:
    """A channel-advanced."""
    return event("feeds.channel-advanced", {"channel_id": channel, "head": 1, "arrived_at": 1}, arrived_ms=NOW_MS)


def changed(user: str, *, offset: int = 0, **more: Any) -> Any:
    """A user-changed."""
    value = {"user_id": user, "erased": False, "subscribed": [], "unsubscribed": [], **more}
    return event("feeds.user-changed", value, offset=offset, arrived_ms=NOW_MS)


def tick() -> Any:
    """A tick."""
    return event("streams.tick", {"number": 1, "now": NOW_MS}, arrived_ms=NOW_MS)


async def channel(context: ProcessContext, head: int, announced: int) -> str:
    """A stored channel."""
    name = fresh("mir")
    moment = to_datetime(NOW_MS)
    await context.pool.execute("INSERT INTO channels VALUES ($1, $2, $3, $3, $4)", name, head, moment, announced)
    return name


async def user_of(context: ProcessContext, name: str) -> str:
    """A user who has read three of a channel's insights."""
    user = fresh("u")
    moment = to_datetime(NOW_MS)
    await context.pool.execute(
        "INSERT INTO user_stats (user_id, last_active_at, cluster_version, plan) VALUES ($1, $2, 4, 'pro')",
        user,
        moment,
    )
    await context.pool.execute("INSERT INTO subscriptions VALUES ($1, $2, true, 1)", user, name)
    await context.pool.execute("INSERT INTO user_cluster_hwm VALUES ($1, $2, 3)", user, name)
    return user


@pytest.mark.requirement("R0.22", "R0.23", "R0.24", "R0.25")
async def test_the_keys_are_as_catalogued(context: ProcessContext, redis: RedisLink):
    """`ch:`, `us:`, `hwm:` and `dirty:channels` have the values of PostgreSQL, for any values in the event."""
    name = await channel(context, 10, 4)
    user = await user_of(context, name)
    await mirrored(context, mirror(context, redis), advanced(name), changed(user))
    client = redis.client
    assert await client.hgetall(f"ch:{name}") == {b"current_seq": b"10", b"last_ts": b"2026-09-21T14:13:20Z"}
    assert await client.hgetall(f"hwm:{user}:{name}") == {b"last_seq": b"3"}
    assert await client.hgetall(f"us:{user}") == {
        b"pending": b"7",
        b"last_clustered_at": b"",
        b"last_active_at": b"2026-09-21T14:13:20Z",
        b"cluster_version": b"4",
        b"plan": b"pro",
        b"last_enqueued_at": b"",
    }
    assert await client.zscore("dirty:channels", name) == NOW_MS


def novelty(name: str, *users: str) -> Any:
    """A feeds.novelty for subscribers of a channel."""
    heads = [{"channel_id": name, "head": 1, "users": list(users), "retractions": 0}]
    return event("feeds.novelty", {"heads": heads}, arrived_ms=NOW_MS)


@pytest.mark.requirement("R0.24")
async def test_what_waits_for_a_user_follows_its_channels(
    context: ProcessContext, redis: RedisLink, monkeypatch: pytest.MonkeyPatch
):
    """`us:` counts the new insights of a channel for each subscriber, also in several steps; who has no row gets no key."""
    monkeypatch.setattr("highwater.connectors.feeds.mirror._SUBSCRIBERS_AT_ONCE", 2)
    name = await channel(context, 3, 3)
    users = [await user_of(context, name) for _ in range(5)]
    one = mirror(context, redis)
    await mirrored(context, one, *(changed(user) for user in users))
    client = redis.require()
    assert [await client.hget(f"us:{user}", "pending") for user in users] == [b"0"] * 5
    await context.pool.execute("UPDATE channels SET current_seq = 16 WHERE channel_id = $1", name)
    stranger = fresh("u")
    await mirrored(context, one, novelty(name, *users, stranger))
    assert [await client.hget(f"us:{user}", "pending") for user in users] == [b"13"] * 5
    assert not await client.exists(f"us:{stranger}")


async def test_a_tick_sweeps_what_was_announced(context: ProcessContext, redis: RedisLink):
    """A channel whose subscribers were notified leaves `dirty:channels`; one that moved since stays."""
    told, moved = await channel(context, 10, 4), await channel(context, 10, 4)
    one = mirror(context, redis)
    await mirrored(context, one, advanced(told), advanced(moved))
    await context.pool.execute("UPDATE channels SET announced_seq = 10 WHERE channel_id = $1", told)
    await mirrored(context, one, tick())
    assert await redis.client.zscore("dirty:channels", told) is None
    assert await redis.client.zscore("dirty:channels", moved) == NOW_MS


@pytest.mark.requirement("R0.43")
async def test_an_emptied_redis_is_noticed_and_written_again(context: ProcessContext, redis: RedisLink):
    """After FLUSHDB the next event restores every unpublished channel, and then all the other keys."""
    dirty, other = await channel(context, 10, 4), await channel(context, 1, 0)
    user = await user_of(context, other)
    one = mirror(context, redis)
    await mirrored(context, one, advanced(dirty))
    await redis.client.flushdb()
    await mirrored(context, one, tick())
    assert await redis.client.zscore("dirty:channels", dirty) == NOW_MS
    assert await redis.client.zscore("dirty:channels", other) == NOW_MS
    await rewritten(one)
    assert await redis.client.hget(f"ch:{dirty}", "current_seq") == b"10"
    assert await redis.client.hget(f"us:{user}", "plan") == b"pro"
    assert await redis.client.hget(f"hwm:{user}:{other}", "last_seq") == b"3"


async def test_a_redis_that_lost_its_last_writes_is_noticed(context: ProcessContext, redis: RedisLink):
    """It exists and has keys of an earlier position: they are dropped, also those of users erased since."""
    name = await channel(context, 10, 4)
    gone, stays = await user_of(context, name), await user_of(context, name)
    one = mirror(context, redis)
    await mirrored(context, one, changed(gone), changed(stays))
    before = await dumped(redis)
    await context.pool.execute("DELETE FROM user_stats WHERE user_id = $1", gone)
    await context.pool.execute("DELETE FROM user_cluster_hwm WHERE user_id = $1", gone)
    await context.pool.execute("UPDATE user_stats SET cluster_version = 9 WHERE user_id = $1", stays)
    await mirrored(context, one, changed(gone, erased=True, unsubscribed=[name], offset=1), changed(stays, offset=2))
    assert await redis.client.hget(f"us:{stays}", "cluster_version") == b"9"
    await redis.client.flushdb()
    for key, value in before.items():
        await redis.client.restore(key, 0, value)
    assert await redis.client.exists(f"us:{gone}") == 1
    await mirrored(context, one, tick())
    assert await redis.client.exists(f"us:{gone}", f"hwm:{gone}:{name}") == 0
    await rewritten(one)
    assert await redis.client.hget(f"us:{stays}", "cluster_version") == b"9"


async def dumped(redis: RedisLink) -> dict[bytes, bytes]:
    """All that Redis holds, as a snapshot of it would be restored."""
    return {name: await redis.client.dump(name) for name in await redis.client.keys("*")}


async def test_events_wait_while_redis_is_away(stack: Stack, context: ProcessContext, redis: RedisLink):
    """Events meanwhile, an erasure too, are mirrored when Redis has recovered with its data, and nothing is dropped for it."""
    one = mirror(context, redis)
    name = await channel(context, 10, 4)
    gone, stays = await user_of(context, name), await user_of(context, name)
    await mirrored(context, one, changed(gone), changed(stays))
    await rewritten(one)
    await context.pool.execute("DELETE FROM user_stats WHERE user_id = $1", gone)
    await context.pool.execute("DELETE FROM user_cluster_hwm WHERE user_id = $1", gone)
    erased = changed(gone, erased=True, unsubscribed=[name], offset=1)
    await asyncio.to_thread(stack.local.stop_part, "redis")
    try:
        with pytest.raises(RedisAwayError):
            await mirrored(context, one, erased)
    finally:
        await asyncio.to_thread(stack.local.start_part, "redis")
    await until(lambda: redis.is_up, "the link is back")
    await mirrored(context, one, erased)
    assert one.is_rewritten
    assert await redis.client.exists(f"us:{gone}", f"hwm:{gone}:{name}") == 0
    assert await redis.client.hget(f"us:{stays}", "plan") == b"pro"


async def test_an_erased_user_leaves_no_key(context: ProcessContext, redis: RedisLink):
    """`us:`, `hwm:` and versions are removed; a user who returns in the same batch has the stored values."""
    name = await channel(context, 10, 4)
    gone, back = await user_of(context, name), await user_of(context, name)
    one = mirror(context, redis)
    await mirrored(context, one, changed(gone), changed(back))
    await context.pool.execute("DELETE FROM user_stats WHERE user_id = $1", gone)
    await context.pool.execute("DELETE FROM user_cluster_hwm WHERE user_id = ANY ($1::text[])", [gone, back])
    erased = [
        changed(gone, erased=True, unsubscribed=[name], offset=1),
        changed(back, erased=True, subscribed=[name], unsubscribed=[], offset=2),
    ]
    await mirrored(context, one, *erased)
    assert await redis.client.exists(f"us:{gone}", f"hwm:{gone}:{name}", f"hwm:{back}:{name}") == 0
    assert await redis.client.hget(f"us:{back}", "pending") == b"10"


async def test_versions_only_grow(context: ProcessContext, redis: RedisLink):
    """A bump that comes late or twice never takes a version back; order does not matter."""
    resource = f"clusters:{fresh('u')}"

    def bump(version: int) -> Any:
        value = {
            "key": resource,
            "version": version,
            "etag": f"e-{version}",
            "caused_by": "t/0/1",
            "bumped_at": version,
        }
        return event("cache.version-bumped", value)

    cache = CacheVersions(ResourceCache(redis))
    await in_transaction(context, cache, [bump(3), bump(5), bump(4)])
    await in_transaction(context, cache, [bump(2)])
    held = await redis.client.hgetall(resource_key(RESOURCE_VERSION, resource, is_cluster=False))
    assert (held[b"version"], held[b"etag"]) == (b"5", b"e-5")
