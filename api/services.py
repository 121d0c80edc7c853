"""What the routes stand on, wired once: parts, cache, sessions, publisher, watcher, feed builder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import asyncpg
from fastapi import Depends, Request

from highwater.api.chunks.query_vectors import QueryVectors
from highwater.api.chunks.served import ServedSearches
from highwater.api.core.activity import ActivityNotes
from highwater.api.core.auth import ROLES, Authenticator, Principal, parse_api_keys
from highwater.api.core.changes import ChangeFeed
from highwater.api.core.freshness import PositionWatcher, wait_until_fresh
from highwater.api.core.limits import LiveLimit, LocalRequests, parse_networks
from highwater.api.core.parts import Part
from highwater.api.core.publishing import Publisher
from highwater.api.core.rate_limits import RateLimiter
from highwater.api.jobs.stream import JobHub
from highwater.api.jobs.uploads import Uploads
from highwater.api.league.matches import MatchDocuments
from highwater.api.league.monitor import Monitor
from highwater.api.queries.stream import QueryHub
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.feeds.documents import FeedBuilder
from highwater.connectors.feeds.items import FeedWriter
from highwater.connectors.identity.organizations import Organizations
from highwater.connectors.identity.rate_limits import RateLimits
from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.jobs import read_model as job_reads
from highwater.connectors.jobs.streams import JobStreams
from highwater.connectors.jobs.views import ViewDeltas
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.league.documents import builders
from highwater.connectors.league.live_requests import LiveRequests
from highwater.connectors.models.chat import open_chat_model
from highwater.connectors.models.embeddings import open_embedder
from highwater.connectors.pages.copies import Copies
from highwater.connectors.pages.leases import CopyLease
from highwater.connectors.pages.maker import Builder, DocumentMaker
from highwater.connectors.pages.reads import Documents
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.postgres.pool import AWAY, open_pool
from highwater.connectors.postgres.shared_reads import SharedReads
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.link import Head, RedisLink, ResourceCache
from highwater.schemas.chunks import QUERIES_SERVED
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError
from highwater.streams.chunks.passports import Passports, load_passports
from highwater.streams.clock import Clock, fresh_id
from highwater.streams.feeds.policy import Policy, load_policy
from highwater.streams.identity.plans import load_plans
from highwater.streams.league.resources import LEAGUE_RULES
from highwater.streams.league.windows import window_options
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# A metadata request a second would be a burden with many API processes; a lost broker also shows in failed writes.
KAFKA_CHECK_SECONDS = 3.0
CHECK_SECONDS_MAX = 2.0
# Requests that read at once; more wait up to `postgres.ACQUIRE_SECONDS`.
POOL_SIZE = 16

_log = get_log("api")

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True)
class Services:
    """Everything that a route may use."""

    settings: Settings
    clock: Clock
    policy: Policy
    database: Part[Pool]
    kafka: Part[AsyncProducer]
    registry: Part[Codec]
    admin: Admin
    link: RedisLink
    cache: ResourceCache
    sessions: SessionStore
    authenticator: Authenticator
    activity: ActivityNotes
    watcher: PositionWatcher
    publisher: Publisher
    feeds: FeedBuilder
    changes: ChangeFeed
    clusters_heads: SharedReads[Head]
    documents: Documents
    matches: MatchDocuments
    build_window: Builder
    live: LiveLimit
    monitor: Monitor
    cache_link: RedisLink
    sockets: QueryHub
    organizations: Organizations
    rate_limiter: RateLimiter
    uploads: Uploads
    views: ViewDeltas
    watchers: JobHub
    passports: Passports
    query_vectors: QueryVectors
    served: ServedSearches

    async def fresh(self, request: Request, fed_by: frozenset[str]) -> bool:
        """Wait for what `X-Min-Position` names; whether it names anything."""
        return await wait_until_fresh(
            request, fed_by=fed_by, watcher=self.watcher, read_positions=self.read_positions, admin=lambda: self.admin
        )

    async def read_positions(self, asked: Sequence[tuple[str, str, int]]) -> Mapping[tuple[str, str, int], int]:
        """Where the sinks stand."""
        return await feeds_reads.next_offsets(self.database.require(), asked)

    def not_ready(self) -> dict[str, str]:
        """Each part that is not ready, with the reason."""
        reasons = {part.name: part.reason for part in (self.database, self.kafka, self.registry) if not part.ready}
        if not self.link.is_up:
            reasons["redis"] = self.link.reason
        if not self.cache_link.is_up and self.cache_link is not self.link:
            reasons["redis_cache"] = self.cache_link.reason
        return reasons

    async def start(self) -> None:
        """Begin to reach the parts; none of them has to be there."""
        for part in (self.database, self.kafka, self.registry):
            part.start()
        await self.link.probe()
        if self.cache_link is not self.link:
            await self.cache_link.probe()
        self.documents.start()
        self.monitor.start()

    async def close(self) -> None:
        """Let go of everything, in the order of use."""
        await self.changes.close()
        await self.sockets.close()
        await self.watchers.close()
        await self.monitor.close()
        await self.documents.close()
        await self.activity.close()
        await self.served.close()
        await self.feeds.close()
        await self.watcher.close()
        for part in (self.kafka, self.registry, self.database):
            await part.close()
        await self.link.close()
        if self.cache_link is not self.link:
            await self.cache_link.close()


async def _check_database(pool: Pool) -> None:
    try:
        await pool.fetchval("SELECT 1", timeout=CHECK_SECONDS_MAX)
    except AWAY as error:
        raise UnavailableError(f"PostgreSQL does not answer: {error or type(error).__name__}") from error


async def _close_pool(pool: Pool) -> None:
    try:
        await asyncio.wait_for(pool.close(), CHECK_SECONDS_MAX)
    except (*AWAY, TimeoutError):
        pool.terminate()


async def _nothing(_value: Any) -> None:
    """A part that needs no check, or no closing."""


class KafkaCheck:
    """Asks the broker for its topics; one question at a time, since each holds a thread until librdkafka gives up."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._asking: asyncio.Task[dict[str, int]] | None = None

    async def __call__(self, _producer: AsyncProducer) -> None:
        """Raise `UnavailableError` or `TimeoutError` when the broker does not answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._admin.partition_counts(), name="kafka-check")
        try:
            await asyncio.wait_for(asyncio.shield(self._asking), CHECK_SECONDS_MAX)
        except TimeoutError:
            raise UnavailableError(f"Kafka does not answer within {CHECK_SECONDS_MAX} s") from None


def make_services(settings: Settings, clock: Clock) -> Services:
    """Wire everything; called on the running loop, reaches for nothing.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    client = settings.kafka_client()
    admin = Admin(client)

    async def open_producer() -> AsyncProducer:
        return AsyncProducer(client, client_id="highwater-api")

    database = Part("database", lambda: open_pool(settings.database, size_max=POOL_SIZE), _check_database, _close_pool)
    kafka = Part("kafka", open_producer, KafkaCheck(admin), AsyncProducer.close, KAFKA_CHECK_SECONDS)
    registry = Part("schema_registry", lambda: Registry(settings.schema_registry).codec(), _nothing, _nothing)
    link = RedisLink(settings.redis)
    sessions = SessionStore(link, database.require)
    watcher = PositionWatcher(lambda asked: feeds_reads.next_offsets(database.require(), asked))
    publisher = Publisher(kafka, registry, watcher, clock, settings.embedding_dimensions)

    async def publish_activity(user_id: str, now_ms: int) -> None:
        await publisher.one("feeds.user-active", {"user_id": user_id, "ts": now_ms})

    async def publish_served(events: Sequence[Mapping[str, Any]]) -> None:
        await publisher.commands(QUERIES_SERVED, events, sink_wait_ms=0)

    async def read_session(session_id: str) -> Principal | None:
        session = await sessions.read(session_id, clock())
        if session is None:
            return None
        organization_id = session.organization_id or None
        role = ROLES[session.role]
        return Principal(role, session.user_id, session_id, plan=session.plan, organization_id=organization_id)

    _carry_over_when_back(link, sessions, clock)
    cache_link = link if settings.redis_cache is None else RedisLink(settings.redis_cache)
    cache = ResourceCache(cache_link)
    league_builders = builders(window_options(settings))
    documents = _make_documents(settings, clock, database, registry, cache_link, league_builders)
    plans = load_plans(settings.plans_file)
    organizations = Organizations(link, database.require, plans)
    return Services(
        settings=settings,
        clock=clock,
        policy=load_policy(settings.policy_file),
        database=database,
        kafka=kafka,
        registry=registry,
        admin=admin,
        link=link,
        cache=cache,
        sessions=sessions,
        authenticator=Authenticator(parse_api_keys(settings.api_keys), read_session),
        activity=ActivityNotes(clock, link, publish_activity),
        watcher=watcher,
        publisher=publisher,
        feeds=FeedBuilder(
            pool=database.require,
            codec=registry.require,
            cache=cache,
            writer=FeedWriter(open_chat_model(settings)),
            clock=clock,
            ttl_seconds=settings.feed_ttl_seconds,
            database_url=settings.database,
        ),
        changes=ChangeFeed(client, admin),
        clusters_heads=SharedReads(),
        documents=documents,
        matches=MatchDocuments(documents, database.require),
        build_window=league_builders["match_window"],
        live=LiveLimit(
            LiveRequests(link, settings.live_requests_max),
            LocalRequests(settings.live_requests_max),
            clock,
            parse_networks(settings.trusted_proxies),
        ),
        monitor=Monitor(cache_link, database.require, clock),
        cache_link=cache_link,
        sockets=_make_sockets(settings, client, admin, database, registry),
        organizations=organizations,
        rate_limiter=RateLimiter(RateLimits(link), organizations.read_limits, plans, clock),
        uploads=Uploads(),
        views=ViewDeltas(link),
        watchers=_make_watchers(clock, database, link),
        passports=load_passports(settings.namespaces_file),
        query_vectors=QueryVectors(open_embedder(settings)),
        served=ServedSearches(clock, publish_served),
    )


def _make_watchers(clock: Clock, database: Part[Pool], link: RedisLink) -> JobHub:
    async def read_jobs(job_ids: Sequence[str]) -> Mapping[str, job_reads.JobRead]:
        return await job_reads.jobs(database.require(), job_ids)

    return JobHub(JobStreams(link), read_jobs, clock, server_id=fresh_id())


def _make_sockets(
    settings: Settings, client: Mapping[str, str], admin: Admin, database: Part[Pool], registry: Part[Codec]
) -> QueryHub:
    async def learn(codec: Codec, schema_id: int) -> None:
        codec.teach(schema_id, await Registry(settings.schema_registry).text_of(schema_id))

    async def read_answers(request_ids: Sequence[str]) -> Mapping[str, query_reads.Answer]:
        return await query_reads.answers(database.require(), request_ids)

    return QueryHub(client, admin, registry.require, learn, read_answers)


def _carry_over_when_back(link: RedisLink, sessions: SessionStore, clock: Clock) -> None:
    """Tell Redis of the revocations that it missed as soon as it is back."""

    async def carry_over() -> None:
        try:
            await sessions.carry_over(clock())
        except UnavailableError as error:
            _log.warning("revocations are carried over at the next session read", reason=str(error))

    carrying: set[asyncio.Task[None]] = set()

    def on_redis_back() -> None:
        task = asyncio.create_task(carry_over(), name="carry-over")
        carrying.add(task)
        task.add_done_callback(carrying.discard)

    link.on_back = on_redis_back


def _make_documents(
    settings: Settings,
    clock: Clock,
    database: Part[Pool],
    registry: Part[Codec],
    link: RedisLink,
    league_builders: Mapping[str, Builder],
) -> Documents:
    cache = ResourceCache(link, DOCUMENT)
    copies = Copies()
    return Documents(
        DocumentMaker(LEAGUE_RULES, league_builders, registry.require, cache, clock),
        pool=database.require,
        cache=cache,
        copies=copies,
        lease=CopyLease(settings.database, copies, fresh_id()),
        locks=RegenerationLocks(link),
        clock=clock,
    )


async def services_of(request: Request) -> Services:
    """The services of the application that a request came to; a coroutine, since FastAPI runs others in a thread."""
    services: Services = request.app.state.services
    return services


Wired = Annotated[Services, Depends(services_of)]
