"""The services that all routes use, wired once: connections, and over them sessions, limits, publisher and watcher.

Invariant: nothing here belongs to one slice. What only its own routes use is created in `api/<slice>/services.py`;
`api/wiring.py` combines them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import asyncpg
from fastapi import Depends, Request

from highwater.api.core.activity import ActivityNotes
from highwater.api.core.auth import ROLES, Authenticator, Principal, parse_api_keys
from highwater.api.core.changes import ChangeFeed
from highwater.api.core.degraded import Degraded
from highwater.api.core.freshness import PositionWatcher, max_wait_ms, wait_for, wait_until_fresh
from highwater.api.core.keys import KeyFile
from highwater.api.core.log_state import LogState
from highwater.api.core.oidc import TokenReader, read_rules
from highwater.api.core.overload import Overload, bounds_of
from highwater.api.core.parts import Part
from highwater.api.core.publishing import Publisher
from highwater.api.core.rate_limits import ADDRESSES_MAX, RateLimiter
from highwater.api.core.security_log import SecurityLog
from highwater.api.core.unstored import Unstored
from highwater.connectors.backup.comparing import Comparison
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.identity.issuer import Issuer
from highwater.connectors.identity.organizations import Organizations
from highwater.connectors.identity.rate_limits import CallCounts
from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.outbox import event_row
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import (
    AWAY,
    converting_to_unavailable,
    is_closed,
    open_connection,
    open_pool,
    transaction,
)
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.codec import Codec
from highwater.schemas.errors import AccessRefusedError, UnavailableError
from highwater.schemas.feeds import USER_ACTIVE
from highwater.schemas.positions import Position
from highwater.schemas.security import ACTION_RECORDED, ActionRecorded
from highwater.schemas.topics import partitions_refusal
from highwater.streams.chunks.passports import Passports, load_passports
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.identity.plans import load_plans
from highwater.streams.identity.rate_limits import LIVE_WINDOW_MS, RecentCalls
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# A metadata request every second would be too many with several API processes; failed writes also show a lost broker.
KAFKA_CHECK_SECONDS = 3.0
CHECK_SECONDS_MAX = 2.0
# Metadata of all topics, with all their partitions, costs much more than that of one.
_ALL_TOPICS_SECONDS = 60.0
# Concurrent reads; further ones wait up to `postgres.ACQUIRE_SECONDS`.
POOL_SIZE = 16
_WITHOUT_REDIS = "reads continue from PostgreSQL, requests are not counted against limits, nobody can sign in"
_WITHOUT_REDIS_CACHE = "reads continue from PostgreSQL"

_log = get_log("api")

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True)
class Services:
    """Services that any route may use."""

    settings: Settings
    clock: Clock
    database: Part[Pool]
    kafka: Part[AsyncProducer]
    registry: Part[Codec]
    admin: Admin
    link: RedisLink
    cache_link: RedisLink
    sessions: SessionStore
    authenticator: Authenticator
    tokens: TokenReader | None
    organizations: Organizations
    rate_limiter: RateLimiter
    activity: ActivityNotes
    watcher: PositionWatcher
    publisher: Publisher
    changes: ChangeFeed
    passports: Passports
    degraded: Degraded
    log_state: LogState
    security: SecurityLog
    overload: Overload
    unstored: Unstored

    async def fresh(self, request: Request, fed_by: frozenset[str]) -> bool:
        """Wait for the positions in `X-Min-Position`; return whether there are any."""
        return await wait_until_fresh(
            request, fed_by=fed_by, watcher=self.watcher, read_positions=self.read_positions, admin=lambda: self.admin,
            log_state=self.log_state,
        )  # fmt: skip

    async def accounted(self, request: Request, position: Position) -> None:
        """Wait until the read models include a position, as for a request with `X-Min-Position`."""
        await wait_for(
            {position[:2]: position.offset}, max_wait_ms(request), watcher=self.watcher,
            read_positions=self.read_positions, admin=lambda: self.admin, log_state=self.log_state,
        )  # fmt: skip

    async def read_positions(self, positions: Sequence[tuple[str, str, int]]) -> Mapping[tuple[str, str, int], int]:
        """Return the next offsets of the sinks."""
        return await feeds_reads.next_offsets(self.database.require(), positions)

    def not_ready(self) -> dict[str, str]:
        """Return each unavailable service that the API requires, with the reason."""
        return {part.name: part.reason for part in (self.database, self.kafka, self.registry) if not part.ready}

    def unavailable_accelerators(self) -> dict[str, str]:
        """Return each unavailable service that the API can do without, with the reason and its cost."""
        found = {}
        if not self.link.is_up:
            found["redis"] = f"{self.link.reason}; {_WITHOUT_REDIS}"
        if not self.cache_link.is_up and self.cache_link is not self.link:
            found["redis_cache"] = f"{self.cache_link.reason}; {_WITHOUT_REDIS_CACHE}"
        return found

    async def start(self) -> None:
        """Start connecting; no service has to be available."""
        for part in (self.database, self.kafka, self.registry):
            part.start()
        self.overload.start()
        await self.link.probe()
        if self.cache_link is not self.link:
            await self.cache_link.probe()

    def end(self) -> None:
        """End the streams of changes, which have no end of their own."""
        self.changes.end()

    async def close(self) -> None:
        """Close the connections; everything that publishes over them was closed before."""
        await self.overload.close()
        await self.security.close()
        self.unstored.close()
        await self.watcher.close()
        if self.tokens is not None:
            await self.tokens.issuer.close()
        for part in (self.kafka, self.registry, self.database):
            await part.close()
        await self.link.close()
        if self.cache_link is not self.link:
            await self.cache_link.close()


class DatabaseCheck:
    """Checks PostgreSQL on a connection of its own: an exhausted pool does not show the state of the server.

    Invariant: requests that wait for a silent server fail soon. All connections of the pool are closed, so that
    requests in progress answer 503 or use a known copy, and the pool is opened again once the server answers.
    """

    def __init__(self, url: str | None, seconds_max: float, comparison: Comparison) -> None:
        self._url = url
        self._comparison = comparison
        self._seconds_max = seconds_max
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def __call__(self, pool: Pool) -> None:
        """Check the server. Raises `UnavailableError` when it does not answer."""
        assert self._url is not None  # opened together with the pool
        # Twice, the second time on another connection: the first one may have been cut, or this process itself may have
        # been paused.
        lost: UnavailableError | None = None
        for _ in range(2):
            try:
                async with asyncio.timeout(self._seconds_max / 2):
                    await self._ask(self._url)
            except TimeoutError:
                lost = None
            except UnavailableError as error:
                lost = error
            else:
                return
            self._end()
        if lost is None:
            pool.terminate()
        raise lost or UnavailableError(f"PostgreSQL does not answer within {self._seconds_max:g} s")

    async def _ask(self, url: str) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await open_connection(url, admit=self._comparison.begin, timeout=self._seconds_max)
        with converting_to_unavailable():
            await self._connection.fetchval("SELECT 1", timeout=self._seconds_max)

    async def close(self, pool: Pool) -> None:
        """Close the pool and the connection."""
        self._end()
        await self._comparison.close()
        try:
            await asyncio.wait_for(pool.close(), CHECK_SECONDS_MAX)
        except (*AWAY, TimeoutError):
            pool.terminate()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


async def _nothing(_value: Any) -> None:
    """Do nothing: for a service that needs no check, or no closing."""


class KafkaCheck:
    """Asks the broker for one topic, and sometimes for all; one request at a time, since each blocks a thread until
    librdkafka gives up.
    """

    def __init__(self, admin: Admin, partitions: int, log_state: LogState) -> None:
        self._admin = admin
        self._log_state = log_state
        self._partitions = partitions
        self._asking: asyncio.Task[dict[str, int]] | None = None
        self._refusal: str | None = None  # why the brokers refused us, and when that was last reported
        self._all_at = float("-inf")  # when all topics were last requested

    async def __call__(self, _producer: AsyncProducer) -> None:
        """Check the broker. Raises `UnavailableError` or `TimeoutError` when it does not answer, or has other
        partitions than expected.
        """
        if self._asking is None or self._asking.done():
            is_all = self._refusal is not None or monotonic_seconds() - self._all_at > _ALL_TOPICS_SECONDS
            asked = self._admin.partition_counts(None if is_all else USER_ACTIVE)
            self._asking = asyncio.create_task(asked, name="kafka-check")
            if is_all:
                self._all_at = monotonic_seconds()
        try:
            counts = await asyncio.wait_for(asyncio.shield(self._asking), CHECK_SECONDS_MAX)
        except AccessRefusedError as error:
            self._refusal = str(error)
            raise
        except UnavailableError:
            self._log_state.compare_again()
            raise
        except TimeoutError:
            # librdkafka takes longer to give up: until then the last result remains valid.
            self._log_state.compare_again()
            raise UnavailableError(self._refusal or f"Kafka does not answer within {CHECK_SECONDS_MAX} s") from None
        self._refusal = partitions_refusal(counts, self._partitions)
        if self._refusal is not None:
            raise UnavailableError(self._refusal)


def make_services(settings: Settings, clock: Clock) -> Services:
    """Wire the shared services; called on the running loop, performs no I/O.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    client = settings.kafka_client()
    admin = Admin(client)

    async def open_producer() -> AsyncProducer:
        return AsyncProducer(client, client_id="highwater-api", on_given_again=log_state.note_given_again)

    # Connectors catch up; this process has no sinks.
    comparison = Comparison(settings, admin, lambda: Registry(settings.registry_access()).codec(), clock)
    checked = DatabaseCheck(settings.database, settings.database_silence_seconds, comparison)
    database = Part(
        "database",
        # A connection is returned as it was taken: locks and settings are those of transactions (`test_sessions.py`).
        lambda: open_pool(settings.database, size_max=POOL_SIZE, is_cleaned=False, admit=comparison.admit),
        checked,
        checked.close,
        is_lost=is_closed,
    )
    log_state = LogState(database.require, admin, clock)
    kafka = Part(
        "kafka", open_producer, KafkaCheck(admin, settings.partitions, log_state), AsyncProducer.close,
        KAFKA_CHECK_SECONDS,
    )  # fmt: skip
    registry = Part("schema_registry", lambda: Registry(settings.registry_access()).codec(), _nothing, _nothing)
    link = RedisLink(settings.redis, connections_max=settings.redis_connections)
    sessions = SessionStore(link, database.require)
    watcher = PositionWatcher(lambda asked: feeds_reads.next_offsets(database.require(), asked))
    overload = Overload(bounds_of(settings), database.require, admin)
    publisher = Publisher(kafka, registry, watcher, clock, settings.embedding_dimensions, log_state, overload)

    async def publish_activity(user_id: str, now_ms: int) -> None:
        await publisher.one("feeds.user-active", {"user_id": user_id, "ts": now_ms})

    key_file = None if settings.api_keys_file is None else KeyFile(settings.api_keys_file, clock)
    _carry_over_when_back(link, sessions, clock)
    tokens = _token_reader(settings, clock)
    plans = load_plans(settings.plans_file)
    organizations = Organizations(link, database.require, plans)
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        kafka=kafka,
        registry=registry,
        admin=admin,
        link=link,
        cache_link=link if settings.redis_cache is None else _link_of_cache(settings),
        sessions=sessions,
        authenticator=Authenticator(
            parse_api_keys(settings.api_keys),
            _session_reader(sessions, clock),
            key_file,
            None if tokens is None else tokens.principal,
            is_league_public=settings.public_league == "on",
        ),
        tokens=tokens,
        organizations=organizations,
        rate_limiter=RateLimiter(
            CallCounts(link, settings.live_requests_max),
            RecentCalls(settings.live_requests_max, LIVE_WINDOW_MS, ADDRESSES_MAX),
            organizations.read_limits,
            plans,
            clock,
            caller_per_minute=settings.caller_requests_per_minute,
        ),
        activity=ActivityNotes(clock, link, publish_activity),
        watcher=watcher,
        publisher=publisher,
        changes=ChangeFeed(client, admin),
        passports=load_passports(settings.namespaces_file),
        degraded=Degraded(database.require, log_state),
        log_state=log_state,
        security=SecurityLog(_action_recorder(publisher, registry, database), clock),
        overload=overload,
        unstored=Unstored(client, admin, database, kafka, registry, Registry(settings.registry_access())),
    )


def _action_recorder(
    publisher: Publisher, registry: Part[Codec], database: Part[Pool]
) -> Callable[[ActionRecorded], Awaitable[None]]:
    """Return a function that records an action in Kafka, or through the outbox while Kafka is unavailable."""

    async def record(event: ActionRecorded) -> None:
        try:
            await publisher.record(ACTION_RECORDED, event)
        except UnavailableError:
            row = event_row(
                registry.require(), ACTION_RECORDED, event, source="/api", now_ms=event["recorded_at"], caused_by=None
            )
            async with transaction(database.require()) as tx:
                await outbox.add(tx, [row])

    return record


def _session_reader(sessions: SessionStore, clock: Clock) -> Callable[[str], Awaitable[Principal | None]]:
    """Return a function that reads the caller of a session's token; None if there is no such session."""

    async def read(token: str) -> Principal | None:
        session = await sessions.read(token, clock())
        if session is None:
            return None
        organization_id = session.organization_id or None
        role = ROLES[session.role]
        return Principal(role, session.user_id, session.token_hash, plan=session.plan, organization_id=organization_id)

    return read


def _token_reader(settings: Settings, clock: Clock) -> TokenReader | None:
    """Return the reader of people's tokens; None if no OpenID provider is configured."""
    rules = read_rules(settings)
    return None if rules is None else TokenReader(rules, Issuer(rules.issuer), clock)


def _link_of_cache(settings: Settings) -> RedisLink:
    return RedisLink(settings.redis_cache, "REDIS_CACHE_URL", connections_max=settings.redis_connections)


def _carry_over_when_back(link: RedisLink, sessions: SessionStore, clock: Clock) -> None:
    """Send Redis the revocations that it missed, as soon as it recovers."""

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


async def services_of(request: Request) -> Services:
    """Return the shared services of the application; a coroutine, since FastAPI runs other functions in a thread."""
    services: Services = request.app.state.services
    return services


Wired = Annotated[Services, Depends(services_of)]
