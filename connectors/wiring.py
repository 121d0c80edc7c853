"""The parts of every slice's wiring: a connector, the resources that the connectors of one process share, and a slice.

A slice declares what it adds to `highwater connect`, each connector by its name, and its step in a user's erasure.
`connectors/slices.py` lists the slices; `connectors/run.py` runs the named connectors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import asyncpg

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.backlog import Reading
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.truncation import look
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.connectors.remaking import Remake
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.settings import Settings

# Connections of an engine: one for each group commit, the watch, and reads of as many stages or steps as have CPU.
_ENGINE_POOL_SIZE = 8

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

T = TypeVar("T")


class Connector(Protocol):
    """Runs until stopped and reports why it is not ready."""

    group: str

    @property
    def problem(self) -> str | None:
        """Return why it is not ready; None if it is. What it waits for while the rest of the process works is `degraded`."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""


class WithWatch:
    """A connector with a companion that runs as long."""

    def __init__(self, connector: Connector, watch: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self._connector = connector
        self._watch = watch
        self.group = connector.group

    @property
    def problem(self) -> str | None:
        """Return the problem of the connector."""
        return self._connector.problem

    @property
    def degraded(self) -> str | None:
        """Return what does not run while the rest does."""
        return getattr(self._connector, "degraded", None)

    @property
    def readings(self) -> Mapping[Place, Reading]:
        """Return the places of the connector, if it is a consumer."""
        return getattr(self._connector, "readings", {})

    async def run(self, stop: asyncio.Event) -> None:
        """Run both; a failure of one ends the other."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connector.run(stop))
            tasks.create_task(_awaited(self._watch(stop)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


class Wiring:
    """The resources that the connectors of one process share, created once."""

    def __init__(self, settings: Settings, context: ProcessContext, resources: contextlib.AsyncExitStack) -> None:
        self.settings = settings
        self.context = context
        self._resources = resources
        self._producer: AsyncProducer | None = None
        self._noting: set[asyncio.Task[None]] = set()
        self._redis: dict[str | None, RedisLink] = {}

    async def producer(self) -> AsyncProducer:
        """Return the process's one producer."""
        if self._producer is None:
            self._producer = AsyncProducer(
                self.settings.kafka_client(), client_id="highwater-connect", on_given_again=self._note_given_again
            )
            self._resources.push_async_callback(self._producer.close)
        return self._producer

    def _note_given_again(self, place: Place, again: LogRange, given: Mapping[Place, int]) -> None:
        """Store that a log gave offsets a second time. Of a topic without readers, or with the worker alone, only this process
        notices it; what other partitions lost that this process wrote to is stored as well.
        """
        task = asyncio.create_task(self._note({place: again}, given), name="given-again")
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _note(self, again: Mapping[Place, LogRange], given: Mapping[Place, int]) -> None:
        context = self.context
        with contextlib.suppress(UnavailableError):  # what is refused is published again, and then it is noted
            await look(context.admin, context.pool, "connect", context.clock(), given, given_again=again)

    async def redis(self) -> RedisLink:
        """Open the Redis link that the whole process shares, or return it if it is open."""
        return await self._link(self.settings.redis)

    async def redis_of_cache(self) -> RedisLink:
        """Return the link to the Redis of evictable keys, which may be the same."""
        if self.settings.redis_cache is None:
            return await self.redis()
        return await self._link(self.settings.redis_cache, "REDIS_CACHE_URL")

    async def _link(self, url: str | None, setting: str = "REDIS_URL") -> RedisLink:
        if url not in self._redis:
            link = self._redis[url] = await open_redis(url, setting, connections_max=self.settings.redis_connections)
            self._resources.push_async_callback(link.close)
        return self._redis[url]

    def database(self) -> str:
        """Return the address of PostgreSQL.

        Raises:
            ConfigurationError: none is known.
        """
        if self.settings.database is None:
            raise ConfigurationError("DATABASE_URL is not set")
        return self.settings.database

    async def pool_of_engine(self) -> Pool:
        """Return a pool for one engine, on which everything is done in transactions."""
        return await self.keep(await open_pool(self.database(), size_max=_ENGINE_POOL_SIZE, is_cleaned=False))

    def close_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close something at the end."""
        self._resources.push_async_callback(close)

    async def keep(self, pool: AbstractAsyncContextManager[T]) -> T:
        """Close a pool, of processes or connections, at the end."""
        return await self._resources.enter_async_context(pool)


Make: TypeAlias = Callable[[Wiring], Awaitable[Connector]]


@dataclass(frozen=True, slots=True)
class Slice:
    """What a slice adds: its connectors by name and kind, its step of an erasure, and how events of its topics are recreated."""

    sinks: Mapping[str, Make] = field(default_factory=dict)
    workers: Mapping[str, Make] = field(default_factory=dict)
    materializers: Mapping[str, Make] = field(default_factory=dict)
    erasure: ErasureStep | None = None
    remakes: Mapping[str, Remake] = field(default_factory=dict)
