"""A second database that the product's own sinks fill from the log, up to the positions that the live ones recorded.

Invariant: it is separate from the live one and dropped at the end; nothing that a sink publishes leaves it, since its
outbox is emptied and never relayed. The sinks are the live ones, so a difference is one of stored data, not of two
programs. A lock in the live database limits it to one verification, and the remains of a killed one are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.identity import organizations
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.jobs.sink_jobs import JobsSink
from highwater.connectors.jobs.sink_usage import UsageSink
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_posts import PostsSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import (
    Connection,
    converting_to_unavailable,
    is_of_the_store,
    open_connection,
    open_pool,
    transaction,
)
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.slices import ERASURE
from highwater.connectors.verify.log import ReadLog, decoded, in_slices
from highwater.connectors.verify.statements import QUERIES
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.errors import ConfigurationError, InvalidEventError, UnavailableError
from highwater.schemas.jobs import PLAN_CHANGED, PlanChanged
from highwater.streams.chunks.passports import load_passports
from highwater.streams.clock import monotonic_seconds
from highwater.streams.identity.plans import load_plans
from highwater.streams.jobs.validation import check_jobs_event
from highwater.streams.settings import Settings

_NAME = "highwater_verify"
# A database consists of files that are copied and synced; on a busy disk that takes many seconds.
_MAKING_SECONDS_MAX = 120.0
# An arbitrary constant that only verifications lock, in the live database.
_LOCK = 4_815_162_343
# The server notices within this that a verification was killed, unless it is executing a statement.
_LOCK_SECONDS_MAX = 3.0
_LOCK_POLL_SECONDS = 0.2
# Sinks read the clock for fields that are not a function of the log, and to cap users' times in the future. No event
# was later than this, so nothing is capped here.
_LATE_MS = 16_725_225_600_000  # 2500-01-01


class _Plans(Handler[PlanChanged, list[Event[PlanChanged]]]):
    """Stores plans like the sink of organizations, but without updating Redis."""

    group = "organizations"
    topics = (PLAN_CHANGED,)
    batch_max = 200

    async def prepare(self, events: Sequence[Event[PlanChanged]]) -> list[Event[PlanChanged]]:
        """Check the events."""
        return [event for event in events if _is_valid(event)]

    async def apply(
        self, tx: Connection, events: Sequence[Event[PlanChanged]], prepared: list[Event[PlanChanged]]
    ) -> Sequence[DeadLetter]:
        """Store them."""
        if prepared:
            await organizations.store_words(tx, list(map(organizations.plan_word, prepared)), _LATE_MS)
        return []


def _is_valid(event: Event[PlanChanged]) -> bool:
    try:
        check_jobs_event(event.record.topic, event.value)
    except InvalidEventError:
        return False
    return True


@dataclass(slots=True)
class Ambiguous:
    """What the log leaves ambiguous, because it depends on which of two topics was read first (see `models.py`)."""

    erased_users: set[str] = field(default_factory=set)
    ahead_users: set[str] = field(default_factory=set)
    restarted_users: set[str] = field(default_factory=set)
    early_matches: set[str] = field(default_factory=set)
    spread_channels: set[str] = field(default_factory=set)
    _scheduled: set[str] = field(default_factory=set)
    _partition_of: dict[str, int] = field(default_factory=dict)

    def note(self, event: Event[Any]) -> None:
        """Note the ambiguity that an event causes; events come in the order of the broker's time."""
        record, value = event
        match record.topic:
            case "feeds.user-erased":
                self.erased_users.add(value["user_id"])
            case "feeds.user-active":
                if value["ts"] > record.arrived_ms:
                    self.ahead_users.add(value["user_id"])
            case "queries.run-controlled":
                self.restarted_users.add(value["user_id"])
            case "feeds.insight-ingested":
                if self._partition_of.setdefault(value["channel_id"], record.partition) != record.partition:
                    self.spread_channels.add(value["channel_id"])
            case "league.match-scheduled":
                self._scheduled.add(value["match_id"])
            case _ if "match_id" in value and value["match_id"] not in self._scheduled:
                self.early_matches.add(value["match_id"])


class Shadow:
    """The database and the sinks that fill it."""

    def __init__(self, context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> None:
        self.pool = context.pool
        self._time_limit = time_limit
        self._context = context
        dimensions = settings.embedding_dimensions
        self.sinks: tuple[Handler[Any, Any], ...] = (
            UsersSink(context.codec, context.clock, ERASURE, dimensions=dimensions),
            InsightsSink(context.codec, context.clock, context.pool, dimensions=dimensions),
            FixturesSink(context.codec, context.clock),
            ResultsSink(context),
            VotesSink(context, window_seconds=settings.vote_window_seconds),
            PostsSink(context),
            QueriesSink(context, load_plans(settings.plans_file)),
            _Plans(),
            JobsSink(context, load_plans(settings.plans_file)),
            UsageSink(),
            ChunksSink(context, load_passports(settings.namespaces_file)),
        )
        self.ambiguous = Ambiguous()
        self.failed: list[DeadLetter] = []

    async def fill(self, records: AsyncIterable[Record]) -> None:
        """Let the sinks store records, which come in the order of the broker's time."""
        async for part in in_slices(records):
            await self._store(part)

    async def _store(self, records: Sequence[Record]) -> None:
        events = [event for record in records if (event := await self._decoded(record)) is not None]
        for event in events:
            self.ambiguous.note(event)
        for sink in self.sinks:
            own = [event for event in events if event.record.topic in sink.topics]
            for first in range(0, len(own), sink.batch_max):
                self._time_limit.at(f"the sink {sink.group} at {own[first].record.position}")
                await self._apply(sink, own[first : first + sink.batch_max])
        async with transaction(self.pool) as tx:
            await tx.execute(QUERIES["verify_empty_outbox"])

    async def _decoded(self, record: Record) -> Event[Any] | None:
        value = await decoded(self._context, record)
        return None if value is None else Event(record, value)

    async def _apply(self, sink: Handler[Any, Any], events: Sequence[Event[Any]]) -> None:
        """Apply events as the consumer framework does: a refused batch is repeated event by event."""
        try:
            prepared = await sink.prepare(events)
            try:
                async with transaction(self.pool) as tx:
                    await sink.apply(tx, events, prepared)
            finally:
                await sink.settle(prepared)
        except UnavailableError:
            raise
        except Exception as error:
            if len(events) == 1:
                if is_of_the_store(error):
                    raise
                self.failed.append(DeadLetter(events[0].record, "handler_failed", repr(error)))
                return
            for event in events:
                await self._apply(sink, [event])


@asynccontextmanager
async def shadow_database(context: ProcessContext, settings: Settings, time_limit: TimeLimit) -> AsyncIterator[Shadow]:
    """Yield an empty database with all tables beside the live one, and the sinks to fill it.

    Raises:
        ConfigurationError: the user of the live database may not make one.
        UnavailableError: another verification is in progress, or PostgreSQL does not answer.
    """
    if settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    async with _owner(settings.database) as owner:
        try:
            # Inside the block that drops it: an interruption during its creation leaves nothing either.
            await _administer(owner, QUERIES["verify_drop"], QUERIES["verify_create"], QUERIES["verify_hasten"])
            async with await open_pool(_beside(settings.database), size_max=4, admit=None) as pool:
                with _privileged(owner, "CREATE EXTENSION vector in template1"):
                    await migrate(pool)
                late: Callable[[], int] = lambda: _LATE_MS  # noqa: E731 (a clock that stands)
                yield Shadow(replace(context, pool=pool, admin=ReadLog(), clock=late), settings, time_limit)
        finally:
            await _administer(owner, QUERIES["verify_drop"])


@asynccontextmanager
async def _owner(url: str) -> AsyncIterator[Any]:
    """Yield a connection that creates and drops the database, and holds the lock meanwhile."""
    connection: Any = await open_connection(
        url,
        admit=None,
        timeout=5.0,
        command_timeout=_MAKING_SECONDS_MAX,
        server_settings={"application_name": "highwater verify"},
    )
    try:
        until = monotonic_seconds() + _LOCK_SECONDS_MAX
        while not await connection.fetchval(QUERIES["verify_lock"], _LOCK):
            if monotonic_seconds() > until:
                raise UnavailableError(
                    f"another verification is in progress on this database ({_NAME}); wait until it ends"
                )
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        yield connection
    finally:
        await connection.close(timeout=_MAKING_SECONDS_MAX)


async def _administer(owner: Any, *statements: str) -> None:
    with _privileged(owner), converting_to_unavailable():
        for statement in statements:
            await owner.execute(statement)


@contextmanager
def _privileged(owner: Any, remedy: str = "ALTER ROLE {role} CREATEDB") -> Iterator[None]:
    """Report a missing privilege with the remedy."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        role = owner.get_settings().session_authorization
        raise ConfigurationError(
            f"read models are compared in a database of their own, {_NAME}, which {role} may not make ({error}): as an "
            f"administrator run {remedy.format(role=role)}, or leave them out by --only tables --only decisions --only effects"
        ) from error


def _beside(url: str) -> str:
    """Return the address of the database beside the live one."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{_NAME}"))
