"""The composition root of `highwater connect`: wires the named connectors and runs them until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, TypeVar

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import BatchConsumer, not_ready
from highwater.connectors.kafka.handler import Surroundings
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.llm.calls import BUILT_IN, open_chat_port
from highwater.connectors.llm.chat import open_chat_model
from highwater.connectors.llm.cluster_titles import ClusterTitles
from highwater.connectors.llm.embeddings import open_embedder, open_remote_embedder
from highwater.connectors.materializers.cache import CacheVersions
from highwater.connectors.materializers.documents import DocumentMaker
from highwater.connectors.materializers.league_documents import builders
from highwater.connectors.materializers.mirror import Mirror
from highwater.connectors.materializers.progress import Progress
from highwater.connectors.materializers.refreshes import Refreshes
from highwater.connectors.materializers.timeline import Timeline
from highwater.connectors.outbox import Relay
from highwater.connectors.patience import pause
from highwater.connectors.sinks.chunks import ChunksSink
from highwater.connectors.sinks.controls import ControlsSink
from highwater.connectors.sinks.fixtures import FixturesSink
from highwater.connectors.sinks.ingests import IngestsSink
from highwater.connectors.sinks.insights import InsightsSink
from highwater.connectors.sinks.job_controls import JobControlsSink
from highwater.connectors.sinks.jobs import JobsSink
from highwater.connectors.sinks.namespaces import NamespacesSink, align
from highwater.connectors.sinks.organizations import OrganizationsSink
from highwater.connectors.sinks.posts import PostsSink
from highwater.connectors.sinks.queries import QueriesSink
from highwater.connectors.sinks.results import ResultsSink
from highwater.connectors.sinks.usage import UsageSink
from highwater.connectors.sinks.users import UsersSink
from highwater.connectors.sinks.views import ViewsSink
from highwater.connectors.sinks.votes import VotesSink
from highwater.connectors.stores.calls import Calls
from highwater.connectors.stores.jobs import Jobs
from highwater.connectors.stores.postgres import open_pool
from highwater.connectors.stores.redis import RedisLink, ResourceCache, open_redis
from highwater.connectors.stores.redis_keys import DOCUMENT
from highwater.connectors.stores.runs import Runs
from highwater.connectors.stores.semantic_cache import SemanticCache
from highwater.connectors.stores.views import ViewDeltas
from highwater.connectors.workers.alerts import open_alerts
from highwater.connectors.workers.backfill import Backfill
from highwater.connectors.workers.embed import EmbedWorker
from highwater.connectors.workers.fanout import Fanout
from highwater.connectors.workers.jobs.commands import JobCommands
from highwater.connectors.workers.jobs.engine import JobEngine
from highwater.connectors.workers.jobs.export import ExportSteps
from highwater.connectors.workers.jobs.generation import GenerationSteps
from highwater.connectors.workers.jobs.ingestion import IngestionSteps
from highwater.connectors.workers.jobs.steps import Steps
from highwater.connectors.workers.model_calls import ModelCalls
from highwater.connectors.workers.pool import ClusterPool
from highwater.connectors.workers.queries.commands import StageCommands
from highwater.connectors.workers.queries.engine import Engine
from highwater.connectors.workers.queries.stages import Stages
from highwater.connectors.workers.ratings import RatingsWorker
from highwater.connectors.workers.rebuild import RebuildWorker
from highwater.connectors.workers.watch import Watch
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.chunks.passports import load_passports
from highwater.streams.clock import ProductClock, fresh_number
from highwater.streams.feeds.policy import load_policy
from highwater.streams.health import serve_health
from highwater.streams.heap import settle_heap
from highwater.streams.jobs.plans import load_plans
from highwater.streams.jobs.states import Kind
from highwater.streams.league.windows import window_options
from highwater.streams.queries.costs import parse_prices
from highwater.streams.retry import unavailable_seconds
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# Connections of an engine: one of each group commit, the watch, and reads of as many stages or steps as have CPU.
_ENGINE_POOL_SIZE = 8

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

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


async def _jobs(w: Wiring) -> Connector:
    return BatchConsumer(JobsSink(w.around, load_plans(w.settings.plans_file)), w.around)


async def _job_controls(w: Wiring) -> Connector:
    return BatchConsumer(JobControlsSink(w.around), w.around)


async def _organizations(w: Wiring) -> Connector:
    sink = OrganizationsSink(w.around, await w.redis(), load_plans(w.settings.plans_file))
    return BatchConsumer(sink, w.around)


async def _usage(w: Wiring) -> Connector:
    return BatchConsumer(UsageSink(), w.around)


async def _views(w: Wiring) -> Connector:
    sink = ViewsSink(ViewDeltas(await w.redis()), window_seconds=w.settings.view_window_seconds)
    return BatchConsumer(sink, w.around)


async def _chunks(w: Wiring) -> Connector:
    return BatchConsumer(ChunksSink(w.around, load_passports(w.settings.namespaces_file)), w.around)


async def _ingests(w: Wiring) -> Connector:
    return BatchConsumer(IngestsSink(w.around), w.around)


async def _namespaces(w: Wiring) -> Connector:
    around = w.around
    await align(around.pool, around.codec, load_passports(w.settings.namespaces_file), around.clock())
    return BatchConsumer(NamespacesSink(around), around)


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
    return EmbedWorker(w.around, open_remote_embedder(w.settings), wait_seconds=w.settings.embed_wait_seconds)


async def _backfill(w: Wiring) -> Connector:
    if w.settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    return Backfill(w.settings.database, w.around, open_embedder(w.settings))


async def _ratings(w: Wiring) -> Connector:
    return BatchConsumer(RatingsWorker(w.around.codec, w.around.clock), w.around)


async def _stages(w: Wiring) -> Connector:
    s, around = w.settings, w.around
    if s.query_lease_seconds <= s.llm_timeout_seconds:
        raise ConfigurationError("HIGHWATER_QUERY_LEASE_SECONDS must be above HIGHWATER_LLM_TIMEOUT_SECONDS")
    pool = await _pool_of_engine(w)
    runs = Runs(pool, around.codec)
    stages = Stages(pool, model=s.llm_model, strong_model=s.llm_strong_model, embedder=open_embedder(s))
    engine = Engine(
        runs,
        stages,
        ModelCalls(Calls(pool), open_chat_port(s), parse_prices(s.llm_prices), around.clock),
        around.clock,
        worker=fresh_number(),
        lease_ms=int(s.query_lease_seconds * 1000),
        slots=s.query_concurrency,
    )
    watch = Watch(s.database or "", runs, engine, around.clock)
    return WithWatch(BatchConsumer(StageCommands(engine, watch, around.clock), around), watch.run)


async def _generation(w: Wiring) -> Connector:
    s, clock = w.settings, w.around.clock
    if s.job_lease_seconds <= s.llm_timeout_seconds:
        raise ConfigurationError("HIGHWATER_JOB_LEASE_SECONDS must be above HIGHWATER_LLM_TIMEOUT_SECONDS")
    pool = await _pool_of_engine(w)
    embedder = open_embedder(s)
    cache = SemanticCache(pool, await w.redis_of_cache(), embedder)
    model = s.llm_model if s.llm_url else BUILT_IN
    steps = GenerationSteps(pool, cache, clock, model=model, embedder=embedder)
    calls = ModelCalls(Calls(pool), open_chat_port(s), parse_prices(s.llm_prices), clock)
    return _worker(w, Kind.GENERATION, pool, steps, calls)


async def _ingestion(w: Wiring) -> Connector:
    pool = await _pool_of_engine(w)
    return _worker(w, Kind.INGESTION, pool, IngestionSteps(pool, w.around.clock))


async def _export(w: Wiring) -> Connector:
    pool = await _pool_of_engine(w)
    return _worker(w, Kind.EXPORT, pool, ExportSteps(pool, w.around.clock))


def _worker(w: Wiring, kind: Kind, pool: Pool, steps: Steps, calls: ModelCalls | None = None) -> Connector:
    """The consumer of one kind of job with its engine and watch."""
    s, around = w.settings, w.around
    jobs = Jobs(pool, around.codec, kind)
    lease_ms = int(s.job_lease_seconds * 1000)
    engine = JobEngine(
        jobs, steps, calls, around.clock, worker=fresh_number(), lease_ms=lease_ms, slots=s.job_concurrency
    )
    watch = Watch(s.database or "", jobs, engine, around.clock)
    return WithWatch(BatchConsumer(JobCommands(engine, watch, around.clock), around), watch.run)


async def _pool_of_engine(w: Wiring) -> Pool:
    if w.settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    return await w.keep(await open_pool(w.settings.database, size_max=_ENGINE_POOL_SIZE, is_cleaned=False))


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


async def _progress(w: Wiring) -> Connector:
    return BatchConsumer(Progress(w.around.pool, await w.redis()), w.around)


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
    "jobs": _jobs,
    "jobcontrols": _job_controls,
    "organizations": _organizations,
    "usage": _usage,
    "views": _views,
    "chunks": _chunks,
    "ingests": _ingests,
    "namespaces": _namespaces,
    "outbox": _outbox,
    "fanout": _fanout,
    "rebuild": _rebuild,
    "embed": _embed,
    "backfill": _backfill,
    "ratings": _ratings,
    "stages": _stages,
    "generation": _generation,
    "ingestion": _ingestion,
    "export": _export,
    "alerts": _alerts,
    "mirror": _mirror,
    "cache": _cache,
    "documents": _documents,
    "timeline": _timeline,
    "progress": _progress,
}
# Names for several at once.
CONNECTOR_GROUPS: Mapping[str, tuple[str, ...]] = {
    "sinks": (
        *("insights", "users", "fixtures", "results", "votes", "posts", "queries", "controls"),
        *("jobs", "jobcontrols", "organizations", "usage", "views"),
        *("chunks", "ingests", "namespaces"),
    ),
    "workers": (
        *("fanout", "rebuild", "embed", "backfill", "ratings", "stages", "alerts"),
        *("generation", "ingestion", "export"),
    ),
    "materializers": ("mirror", "cache", "documents", "timeline", "progress"),
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
