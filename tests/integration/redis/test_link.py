"""The link to Redis under cancellation."""

from __future__ import annotations

import asyncio
import contextlib

from highwater.connectors.jobs.streams import JobStreams
from highwater.connectors.redis.link import open_redis
from tests.integration.connecting import until

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
