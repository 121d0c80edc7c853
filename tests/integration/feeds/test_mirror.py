"""The mirror in Redis: the keys as they are catalogued, and everything back after Redis was emptied or away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.connectors.feeds.mirror import Mirror
from highwater.connectors.kafka.handler import Surroundings
from highwater.connectors.pages.cache import CacheVersions
from highwater.connectors.redis.link import RedisLink, ResourceCache, open_redis
from highwater.streams.clock import to_datetime
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_transaction, until

NOW_MS = 1_790_000_000_000


@pytest.fixture
async def redis(stack: Stack, around: Surroundings) -> AsyncIterator[RedisLink]:
    """A link of the test's own."""
    link = await open_redis(stack.redis)
    # Channels of other tests that nobody was told of would fill the sweep.
    await around.pool.execute("UPDATE channels SET announced_seq = current_seq")
    await link.client.delete("dirty:channels")
    yield link
    await link.close()


def mirror(around: Surroundings, redis: RedisLink) -> Mirror:
    """A mirror that has not seen Redis yet."""
    return Mirror(around.pool, redis, ResourceCache(redis), lambda: NOW_MS, tick_seconds=1)


def advanced(channel: str) -> Any:
    """A channel-advanced."""
    return event("feeds.channel-advanced", {"channel_id": channel, "head": 1, "arrived_at": 1}, arrived_ms=NOW_MS)


def changed(user: str, **more: Any) -> Any:
    """A user-changed."""
    value = {"user_id": user, "erased": False, "subscribed": [], "unsubscribed": [], **more}
    return event("feeds.user-changed", value, arrived_ms=NOW_MS)


def tick() -> Any:
    """A tick."""
    return event("streams.tick", {"number": 1, "now": NOW_MS}, arrived_ms=NOW_MS)


async def channel(around: Surroundings, head: int, announced: int) -> str:
    """A stored channel."""
    name = fresh("mir")
    moment = to_datetime(NOW_MS)
    await around.pool.execute("INSERT INTO channels VALUES ($1, $2, $3, $3, $4)", name, head, moment, announced)
    return name


async def user_of(around: Surroundings, name: str) -> str:
    """A user who has read three of a channel's insights."""
    user = fresh("u")
    moment = to_datetime(NOW_MS)
    await around.pool.execute(
        "INSERT INTO user_stats (user_id, last_active_at, cluster_version, plan) VALUES ($1, $2, 4, 'pro')",
        user,
        moment,
    )
    await around.pool.execute("INSERT INTO subscriptions VALUES ($1, $2, true, 1)", user, name)
    await around.pool.execute("INSERT INTO user_cluster_hwm VALUES ($1, $2, 3)", user, name)
    return user


async def test_the_keys_are_as_catalogued(around: Surroundings, redis: RedisLink):
    """`ch:`, `us:`, `hwm:` and `dirty:channels` hold what PostgreSQL says, whatever the event said."""
    name = await channel(around, 10, 4)
    user = await user_of(around, name)
    await in_transaction(around, mirror(around, redis), [advanced(name), changed(user)])
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


async def test_a_tick_sweeps_what_was_announced(around: Surroundings, redis: RedisLink):
    """What its subscribers were told leaves `dirty:channels`; one that moved since stays."""
    told, moved = await channel(around, 10, 4), await channel(around, 10, 4)
    one = mirror(around, redis)
    await in_transaction(around, one, [advanced(told), advanced(moved)])
    await around.pool.execute("UPDATE channels SET announced_seq = 10 WHERE channel_id = $1", told)
    await in_transaction(around, one, [tick()])
    assert await redis.client.zscore("dirty:channels", told) is None
    assert await redis.client.zscore("dirty:channels", moved) == NOW_MS


async def test_flushall_is_noticed_and_rebuilt(around: Surroundings, redis: RedisLink):
    """After FLUSHALL the next event brings back every channel that nobody was told of."""
    dirty, other = await channel(around, 10, 4), await channel(around, 1, 0)
    one = mirror(around, redis)
    await in_transaction(around, one, [advanced(dirty)])
    await redis.client.flushall()
    await in_transaction(around, one, [tick()])
    assert await redis.client.zscore("dirty:channels", dirty) == NOW_MS
    assert await redis.client.zscore("dirty:channels", other) == NOW_MS
    assert await redis.client.exists("highwater:mirror-epoch") == 1


async def test_redis_stopped_and_started(stack: Stack, around: Surroundings, redis: RedisLink):
    """While Redis is away the mirror goes on without it; when it is back, what was missed is put right."""
    one = mirror(around, redis)
    before, missed = await channel(around, 1, 1), await channel(around, 10, 4)
    await in_transaction(around, one, [advanced(before)])
    await asyncio.to_thread(stack.local.stop_part, "redis")
    try:
        assert await in_transaction(around, one, [advanced(missed)]) == []
    finally:
        await asyncio.to_thread(stack.local.start_part, "redis")
    await until(lambda: redis.is_up, "the link is back")
    await in_transaction(around, one, [advanced(before)])
    assert await redis.client.zscore("dirty:channels", missed) == NOW_MS


async def test_an_erased_user_leaves_no_key(around: Surroundings, redis: RedisLink):
    """`us:`, `hwm:` and versions go; who came back in the same batch is there with what is stored now."""
    name = await channel(around, 10, 4)
    gone, back = await user_of(around, name), await user_of(around, name)
    one = mirror(around, redis)
    await in_transaction(around, one, [changed(gone), changed(back)])
    await around.pool.execute("DELETE FROM user_stats WHERE user_id = $1", gone)
    await around.pool.execute("DELETE FROM user_cluster_hwm WHERE user_id = ANY ($1::text[])", [gone, back])
    erased = [
        changed(gone, erased=True, unsubscribed=[name]),
        changed(back, erased=True, subscribed=[name], unsubscribed=[]),
    ]
    await in_transaction(around, one, erased)
    assert await redis.client.exists(f"us:{gone}", f"hwm:{gone}:{name}", f"hwm:{back}:{name}") == 0
    assert await redis.client.hget(f"us:{back}", "pending") == b"10"


async def test_versions_only_grow(around: Surroundings, redis: RedisLink):
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
    await in_transaction(around, cache, [bump(3), bump(5), bump(4)])
    await in_transaction(around, cache, [bump(2)])
    held = await redis.client.hgetall(f"__v:{resource}")
    assert (held[b"version"], held[b"etag"]) == (b"5", b"e-5")
