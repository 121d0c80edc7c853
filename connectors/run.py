"""The composition root of `highwater connect`: wires the named connectors and runs them until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from connectors.kafka.admin import Admin
from connectors.kafka.consumer import BatchConsumer, not_ready
from connectors.kafka.handler import Surroundings
from connectors.kafka.producer import AsyncProducer
from connectors.kafka.registry import Registry
from connectors.llm.calls import open_chat_port
from connectors.llm.chat import open_chat_model
from connectors.llm.cluster_titles import ClusterTitles
from connectors.llm.embeddings import RemoteEmbedder
from connectors.materializers.cache import CacheVersions
from connectors.materializers.documents import DocumentMaker
from connectors.materializers.league_documents import builders
from connectors.materializers.mirror import Mirror
from connectors.materializers.refreshes import Refreshes
from connectors.materializers.timeline import Timeline
from connectors.outbox import Relay
from connectors.patience import pause
from connectors.sinks.controls import ControlsSink
from connectors.sinks.fixtures import FixturesSink
from connectors.sinks.insights import InsightsSink
from connectors.sinks.posts import PostsSink
from connectors.sinks.queries import QueriesSink
from connectors.sinks.results import ResultsSink
from connectors.sinks.users import UsersSink
from connectors.sinks.votes import VotesSink
from connectors.stores.postgres import open_pool
from connectors.stores.redis import RedisLink, ResourceCache, open_redis
from connectors.stores.redis_keys import DOCUMENT
from connectors.stores.runs import Runs
from connectors.workers.alerts import open_alerts
from connectors.workers.embed import EmbedWorker
from connectors.workers.fanout import Fanout
from connectors.workers.pool import ClusterPool
from connectors.workers.queries.commands import StageCommands
from connectors.workers.queries.engine import Engine
from connectors.workers.queries.stages import Stages
from connectors.workers.queries.watch import Watch
from connectors.workers.ratings import RatingsWorker
from connectors.workers.rebuild import RebuildWorker
from schemas.errors import ConfigurationError, UnavailableError
from streams.clock import ProductClock, fresh_number
from streams.feeds.policy import load_policy
from streams.health import serve_health
from streams.heap import settle_heap
from streams.league.windows import window_options
from streams.queries.costs import parse_prices
from streams.retry import unavailable_seconds
from streams.settings import Settings
from streams.telemetry import get_log

# Connections of the engine of queries: one of each group commit, the watch, and reads of as many stages as have CPU.
_STAGES_POOL_SIZE = 8

T = TypeVar("T")

log = get_log("connect")


class Connector(Protocol):
    """Something that runs until stopped and says why it is not ready."""

    group: str

    @property
    def problem(self) -> str | None:
        """Why it is not ready; None when it is."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""


class WithWatch:
    """A connector with something beside it that runs as long."""

    def __init__(self, connector: Connector, watch: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self._connector = connector
        self._watch = watch
        self.group = connector.group

    @property
    def problem(self) -> str | None:
        """That of the connector."""
        return self._connector.problem

    async def run(self, stop: asyncio.Event) -> None:
        """Run both; the failure of one ends the other."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connector.run(stop))
            tasks.create_task(_awaited(self._watch(stop)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


class Wiring:
    """The parts that the connectors of one process share, made once."""

    def __init__(self, settings: Settings, around: Surroundings, resources: contextlib.AsyncExitStack) -> None:
        self.settings = settings
        self.around = around
        self._resources = resources
        self._producer: AsyncProducer | None = None
        self._redis: dict[str | None, RedisLink] = {}

    async def producer(self) -> AsyncProducer:
        """The process's one producer."""
        if self._producer is None:
            self._producer = AsyncProducer(self.settings.kafka_client(), client_id="highwater-connect")
            self._resources.push_async_callback(self._producer.close)
        return self._producer

    async def redis(self) -> RedisLink:
        """The process's one link to Redis."""
        return await self._link(self.settings.redis)

    async def redis_of_cache(self) -> RedisLink:
        """The link to the Redis of evictable keys, which may be the same."""
        return await self._link(self.settings.redis_cache or self.settings.redis)

    async def _link(self, url: str | None) -> RedisLink:
        if url not in self._redis:
            link = self._redis[url] = await open_redis(url)
            self._resources.push_async_callback(link.close)
        return self._redis[url]

    def titles(self) -> ClusterTitles:
        """The titles of clusters, by the configured model if there is one."""
        titles = ClusterTitles(open_chat_model(self.settings))
        self.close_at_end(titles.close)
        return titles

    def close_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something closed at the end."""
        self._resources.push_async_callback(close)

    async def keep(self, pool: AbstractAsyncContextManager[T]) -> T:
        """Have a pool, of processes or connections, closed at the end."""
        return await self._resources.enter_async_context(pool)


async def _insights(w: Wiring) -> Connector:
    dimensions = w.settings.embedding_dimensions
    sink = InsightsSink(w.around.codec, w.around.clock, w.around.pool, dimensions=dimensions)
    return BatchConsumer(sink, w.around)


async def _users(w: Wiring) -> Connector:
    sink = UsersSink(w.around.codec, w.around.clock, dimensions=w.settings.embedding_dimensions)
    return BatchConsumer(sink, w.around)


async def _fixtures(w: Wiring) -> Connector:
    return BatchConsumer(FixturesSink(w.around.codec, w.around.clock), w.around)


async def _results(w: Wiring) -> Connector:
    return BatchConsumer(ResultsSink(w.around), w.around)


async def _votes(w: Wiring) -> Connector:
    return BatchConsumer(VotesSink(w.around, window_seconds=w.settings.vote_window_seconds), w.around)


async def _posts(w: Wiring) -> Connector:
    return BatchConsumer(PostsSink(w.around), w.around)


async def _queries(w: Wiring) -> Connector:
    return BatchConsumer(QueriesSink(w.around), w.around)


async def _controls(w: Wiring) -> Connector:
    return BatchConsumer(ControlsSink(w.around), w.around)


async def _outbox(w: Wiring) -> Connector:
    if w.settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    return Relay(w.settings.database, await w.producer())


async def _fanout(w: Wiring) -> Connector:
    return BatchConsumer(Fanout(w.around.pool, await w.producer(), w.around.codec, w.around.clock), w.around)


async def _rebuild(w: Wiring) -> Connector:
    pool = await w.keep(
        ClusterPool(processes=w.settings.rebuild_processes, task_seconds_max=w.settings.rebuild_seconds_max)
    )
    policy, redis = load_policy(w.settings.policy_file), await w.redis()
    worker = RebuildWorker(w.around, w.settings, policy, redis, pool, w.titles())
    return BatchConsumer(worker, w.around)


async def _embed(w: Wiring) -> Connector:
    s = w.settings
    embedder = (
        RemoteEmbedder(s.embeddings_url, s.embeddings_key, model=s.embeddings_model, dimensions=s.embedding_dimensions)
        if s.embeddings_url
        else None
    )
    return EmbedWorker(w.around, embedder, wait_seconds=s.embed_wait_seconds)


async def _ratings(w: Wiring) -> Connector:
    return BatchConsumer(RatingsWorker(w.around.codec, w.around.clock), w.around)


async def _stages(w: Wiring) -> Connector:
    s, around = w.settings, w.around
    if s.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    if s.query_lease_seconds <= s.llm_timeout_seconds:
        raise ConfigurationError("HIGHWATER_QUERY_LEASE_SECONDS must be above HIGHWATER_LLM_TIMEOUT_SECONDS")
    pool = await w.keep(await open_pool(s.database, size_max=_STAGES_POOL_SIZE, is_cleaned=False))
    runs = Runs(pool, around.codec)
    stages = Stages(pool, model=s.llm_model, strong_model=s.llm_strong_model)
    engine = Engine(
        runs,
        stages,
        open_chat_port(s),
        parse_prices(s.llm_prices),
        around.clock,
        worker=fresh_number(),
        lease_ms=int(s.query_lease_seconds * 1000),
        slots=s.query_concurrency,
    )
    watch = Watch(s.database, runs, engine, around.clock)
    return WithWatch(BatchConsumer(StageCommands(engine, watch, around.clock), around), watch.run)


async def _alerts(w: Wiring) -> Connector:
    worker = open_alerts(w.around, w.settings)
    w.close_at_end(worker.close)
    return BatchConsumer(worker, w.around)


async def _mirror(w: Wiring) -> Connector:
    cache = ResourceCache(await w.redis_of_cache())
    mirror = Mirror(w.around.pool, await w.redis(), cache, w.around.clock, tick_seconds=w.settings.tick_seconds)
    return WithWatch(BatchConsumer(mirror, w.around), mirror.watch)


async def _cache(w: Wiring) -> Connector:
    return BatchConsumer(CacheVersions(ResourceCache(await w.redis_of_cache())), w.around)


async def _documents(w: Wiring) -> Connector:
    cache = ResourceCache(await w.redis_of_cache(), DOCUMENT)
    made = builders(window_options(w.settings))
    maker = DocumentMaker(made, lambda: w.around.codec, cache, w.around.clock)
    return BatchConsumer(Refreshes(maker, w.around.pool), w.around)


async def _timeline(w: Wiring) -> Connector:
    return BatchConsumer(Timeline(), w.around)


# Every connector by name; `connect` without names runs them all.
CONNECTORS: Mapping[str, Callable[[Wiring], Awaitable[Connector]]] = {
    "insights": _insights,
    "users": _users,
    "fixtures": _fixtures,
    "results": _results,
    "votes": _votes,
    "posts": _posts,
    "queries": _queries,
    "controls": _controls,
    "outbox": _outbox,
    "fanout": _fanout,
    "rebuild": _rebuild,
    "embed": _embed,
    "ratings": _ratings,
    "stages": _stages,
    "alerts": _alerts,
    "mirror": _mirror,
    "cache": _cache,
    "documents": _documents,
    "timeline": _timeline,
}
# Names for several at once.
CONNECTOR_GROUPS: Mapping[str, tuple[str, ...]] = {
    "sinks": ("insights", "users", "fixtures", "results", "votes", "posts", "queries", "controls"),
    "workers": ("fanout", "rebuild", "embed", "ratings", "stages", "alerts"),
    "materializers": ("mirror", "cache", "documents", "timeline"),
}


def resolve_names(names: Sequence[str]) -> list[str]:
    """The connectors meant by names and group names; none means all.

    Raises:
        ConfigurationError: a name is neither.
    """
    wanted: list[str] = []
    for name in names or CONNECTORS:
        members = CONNECTOR_GROUPS.get(name, (name,))
        if name not in CONNECTORS and name not in CONNECTOR_GROUPS:
            known = ", ".join((*CONNECTORS, *CONNECTOR_GROUPS))
            raise ConfigurationError(f"there is no connector {name!r}; there are {known}")
        wanted += [member for member in members if member not in wanted]
    return wanted


async def run_connectors(settings: Settings, names: Sequence[str]) -> None:
    """Run connectors until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: a name or an address is wrong.
        Exception: what ended a connector that should not have ended; the process must not go on without it.
    """
    wanted = resolve_names(names)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connectors: list[Connector] = []
    waiting: dict[str, str] = {"connect": "starting"}
    async with contextlib.AsyncExitStack() as resources:
        if settings.health_port:
            server = await serve_health(
                settings.host, settings.health_port, lambda: {**waiting, **not_ready(connectors)}
            )
            resources.push_async_callback(_close_server, server)
        around = await _surroundings(settings, waiting, stop, resources)
        if around is None:
            return
        wiring = Wiring(settings, around, resources)
        connectors += [await CONNECTORS[name](wiring) for name in wanted]
        waiting.clear()
        settle_heap()
        log.info("connectors_started", names=wanted)
        async with asyncio.TaskGroup() as tasks:
            for connector in connectors:
                tasks.create_task(connector.run(stop), name=connector.group)


async def _close_server(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


async def _surroundings(
    settings: Settings, waiting: dict[str, str], stop: asyncio.Event, resources: contextlib.AsyncExitStack
) -> Surroundings | None:
    """Open what all connectors need; a part that is away is waited for, and said once."""
    attempt = 0
    registry = Registry(settings.schema_registry)
    while not stop.is_set():
        try:
            codec = await registry.codec()
            pool = await resources.enter_async_context(await open_pool(settings.database, size_max=20))
        except UnavailableError as error:
            attempt += 1
            if waiting.get("connect") != str(error):
                log.warning("connect_waiting", reason=str(error))
            waiting["connect"] = str(error)
            await pause(stop, unavailable_seconds(attempt))
            continue
        client = settings.kafka_client()
        return Surroundings(pool, client, Admin(client), registry, codec, ProductClock(settings.clock_file))
    return None
