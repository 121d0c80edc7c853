"""The link to Redis under cancellation, and over a network that carries nothing."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from highwater.api.chaos.plan import Kind
from highwater.api.chaos.proxy import Proxies
from highwater.connectors.jobs.streams import JobStreams
from highwater.connectors.redis.link import RedisAwayError, open_redis
from tests.integration.connecting import free_port, until

# Moments of the first milliseconds of a subscription, in s: before it connects, while it does, and after.
MOMENTS = (0, 0, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.05)


async def test_who_is_cancelled_while_it_subscribes_ends_and_leaves_no_connection(redis_url: str):
    """At any moment; a watcher of jobs that came and went would else take one of the few connections with it."""
    link = await open_redis(redis_url)
    streams = JobStreams(link)

    async def hear() -> None:
        async with contextlib.aclosing(streams.wakes()) as wakes:
            async for _ in wakes:
                pass

    for moment in MOMENTS:
        hearing = asyncio.create_task(hear())
        await asyncio.sleep(moment)
        hearing.cancel()
        ended, _ = await asyncio.wait([hearing], timeout=5)
        assert ended, moment
        pool = link.client.connection_pool
        await until(
            lambda pool=pool: not pool._in_use_connections, "a connection is kept"
        )  # a probe may have one for a moment
    await link.close()


async def test_pipelines_with_scripts_that_get_no_answer_leave_no_connection(redis_url: str):
    """More of them than there are connections: else every later call would find all in use."""
    port = free_port()
    server = urlsplit(redis_url).port
    assert server is not None
    with Proxies() as proxies:
        proxies.add("redis", port, server)
        link = await open_redis(redis_url.replace(f":{server}/", f":{port}/"), connections_max=2)
        script = link.script("return redis.call('GET', KEYS[1])")
        proxies.begin("redis", Kind.HALF_OPEN)
        for _ in range(3):
            pipe = link.client.pipeline(transaction=False)
            await script(keys=["nothing"], args=[], client=pipe)
            with contextlib.suppress(RedisAwayError):
                await link.run(pipe.execute())
            del pipe
        proxies.end("redis")
        pool = link.client.connection_pool
        await until(lambda: not pool._in_use_connections, "a connection is kept")
        await until(link.probe, "Redis is not found again")
        pipe = link.client.pipeline(transaction=False)
        await script(keys=["nothing"], args=[], client=pipe)
        assert await link.run(pipe.execute()) == [None]
        await link.close()
