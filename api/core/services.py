"""What every route stands on, wired once: the parts, and over them sessions, limits, publisher and watcher.

Law: nothing here is of one slice. What only its own routes use is made in `api/<slice>/services.py`; all of it is put together
in `api/wiring.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import asyncpg
from fastapi import Depends, Request

from highwater.api.core.activity import ActivityNotes
from highwater.api.core.auth import ROLES, Authenticator, Principal, parse_api_keys
from highwater.api.core.changes import ChangeFeed
from highwater.api.core.degraded import Degraded
from highwater.api.core.freshness import PositionWatcher, wait_until_fresh
from highwater.api.core.keys import KeyFile
from highwater.api.core.oidc import TokenReader, read_rules
from highwater.api.core.parts import Part
from highwater.api.core.publishing import Publisher
from highwater.api.core.rate_limits import RateLimiter
from highwater.api.core.security_log import SecurityLog
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.identity.issuer import Issuer
from highwater.connectors.identity.organizations import Organizations
from highwater.connectors.identity.rate_limits import RateLimits
from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.outbox import event_row
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import AWAY, open_pool, transaction
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.codec import Codec
from highwater.schemas.errors import AccessRefusedError, UnavailableError
from highwater.schemas.security import ACTION_RECORDED, ActionRecorded
from highwater.streams.chunks.passports import Passports, load_passports
from highwater.streams.clock import Clock
from highwater.streams.identity.plans import load_plans
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
    """What any route may use."""

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
    security: SecurityLog

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

    def end(self) -> None:
        """End the streams of changes, which have no end of their own."""
        self.changes.end()

    async def close(self) -> None:
        """Let go of the parts; whatever still tells something over them was closed before."""
        await self.security.close()
        await self.watcher.close()
        if self.tokens is not None:
            await self.tokens.issuer.close()
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
        self._refusal: str | None = None  # why the brokers refused us, when they were last heard

    async def __call__(self, _producer: AsyncProducer) -> None:
        """Raise `UnavailableError` or `TimeoutError` when the broker does not answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._admin.partition_counts(), name="kafka-check")
        try:
            await asyncio.wait_for(asyncio.shield(self._asking), CHECK_SECONDS_MAX)
        except AccessRefusedError as error:
            self._refusal = str(error)
            raise
        except TimeoutError:
            # librdkafka takes longer to give up: until then what the last call found still holds.
            raise UnavailableError(self._refusal or f"Kafka does not answer within {CHECK_SECONDS_MAX} s") from None
        self._refusal = None


def make_services(settings: Settings, clock: Clock) -> Services:
    """Wire what is shared; called on the running loop, reaches for nothing.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    client = settings.kafka_client()
    admin = Admin(client)

    async def open_producer() -> AsyncProducer:
        return AsyncProducer(client, client_id="highwater-api")

    database = Part("database", lambda: open_pool(settings.database, size_max=POOL_SIZE), _check_database, _close_pool)
    kafka = Part("kafka", open_producer, KafkaCheck(admin), AsyncProducer.close, KAFKA_CHECK_SECONDS)
    registry = Part("schema_registry", lambda: Registry(settings.registry_access()).codec(), _nothing, _nothing)
    link = RedisLink(settings.redis)
    sessions = SessionStore(link, database.require)
    watcher = PositionWatcher(lambda asked: feeds_reads.next_offsets(database.require(), asked))
    publisher = Publisher(kafka, registry, watcher, clock, settings.embedding_dimensions)

    async def publish_activity(user_id: str, now_ms: int) -> None:
        await publisher.one("feeds.user-active", {"user_id": user_id, "ts": now_ms})

    async def record_action(event: ActionRecorded) -> None:
        try:
            await publisher.record(ACTION_RECORDED, event)
        except UnavailableError:
            row = event_row(
                registry.require(), ACTION_RECORDED, event, source="/api", now_ms=event["recorded_at"], caused_by=None
            )
            async with transaction(database.require()) as tx:
                await outbox.add(tx, [row])

    async def read_session(token: str) -> Principal | None:
        session = await sessions.read(token, clock())
        if session is None:
            return None
        organization_id = session.organization_id or None
        role = ROLES[session.role]
        return Principal(role, session.user_id, session.token_hash, plan=session.plan, organization_id=organization_id)

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
        cache_link=link if settings.redis_cache is None else RedisLink(settings.redis_cache, "REDIS_CACHE_URL"),
        sessions=sessions,
        authenticator=Authenticator(
            parse_api_keys(settings.api_keys), read_session, key_file, None if tokens is None else tokens.principal
        ),
        tokens=tokens,
        organizations=organizations,
        rate_limiter=RateLimiter(RateLimits(link), organizations.read_limits, plans, clock),
        activity=ActivityNotes(clock, link, publish_activity),
        watcher=watcher,
        publisher=publisher,
        changes=ChangeFeed(client, admin),
        passports=load_passports(settings.namespaces_file),
        degraded=Degraded(database.require),
        security=SecurityLog(record_action, clock),
    )


def _token_reader(settings: Settings, clock: Clock) -> TokenReader | None:
    """What reads tokens of people; None: no OpenID provider is configured."""
    rules = read_rules(settings)
    return None if rules is None else TokenReader(rules, Issuer(rules.issuer), clock)


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


async def services_of(request: Request) -> Services:
    """What is shared in the application that a request came to; a coroutine, since FastAPI runs others in a thread."""
    services: Services = request.app.state.services
    return services


Wired = Annotated[Services, Depends(services_of)]
