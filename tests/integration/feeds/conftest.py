"""Shared parts of the tests of feeds: services on a stopped clock, and models that misbehave on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisLink, open_redis
from tests.conftest import Stack
from tests.integration.feeds.embedding_server import Service
from tests.integration.feeds.making import NOW_MS
from tests.integration.models.chat_server import ChatServer


@pytest.fixture(scope="module")
async def shared(stack: Stack, context: ProcessContext) -> AsyncIterator[tuple[ProcessContext, RedisLink, ClusterPool]]:
    """Parts for the module, on a clock that stands still."""
    async with ClusterPool() as pool:
        redis = await open_redis(stack.redis)
        yield replace(context, clock=lambda: NOW_MS), redis, pool
        await redis.close()


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    """A language model that misbehaves on order."""
    server = ChatServer()
    yield server
    server.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The service, listening."""
    made = Service()
    server = await asyncio.start_server(made, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield made
    server.close()
