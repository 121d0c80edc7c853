"""Compares a server of PostgreSQL that has started with the log, before any role works on it.

A standby that was promoted while it was behind, or a restored copy of the data folder, lacks the last commits: their
numbers would be assigned again, to other content. Nothing within PostgreSQL shows that, but the log does
(`streams/lost_writes.py`).

Invariant: every new connection of a role is refused until a row names this start of the server (`pool.refuse_uncompared`).
One process at a time compares, under a lock, and commits that row with the lock's own transaction. If the database went
back, it catches up with the log first, as a restore does (`catching_up.py`); an interrupted catch-up is repeated with the
same starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from confluent_kafka import KafkaException

from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.taking import own_connection
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.kafka.records import Record
from highwater.connectors.postgres.leases import LeaseKind
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import AWAY, Connection, NotComparedError, compared_server
from highwater.connectors.postgres.sessions import IDLE_IN_TRANSACTION_MS
from highwater.schemas.cache import VERSION_BUMPED
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import caused_by
from highwater.schemas.errors import HighwaterError, InvalidEventError, UnknownSchemaError
from highwater.schemas.topics import TOPICS
from highwater.streams import relay_epochs
from highwater.streams.clock import Clock, monotonic_seconds, to_datetime
from highwater.streams.lost_writes import Published, Stored, find_lost_write, plan_starts
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

APPLICATION = "highwater comparison"
# How long a caller that wants a connection waits for the comparison, which takes some 100 ms; asyncpg gives up after 5 s.
_WAIT_SECONDS = 3.0
# The transaction that holds the lock must not look idle while the catch-up works on other connections.
_PING_SECONDS = IDLE_IN_TRANSACTION_MS / 1000 / 6
_IN_PROGRESS = "PostgreSQL has started and is being compared with the log"
_CAUGHT_UP_FROM = "the log, because the database had gone back,"

# Brings the database up to the log, from these starts of its results.
CatchUp = Callable[[Mapping[Place, int]], Awaitable[None]]

log = get_log("comparison")


class Comparison:
    """Compares the server once per start; every process of every role has one, and they share the work by a lock.

    Args:
        settings: with the address of the database.
        admin: the broker.
        codec: decodes `cache.version-bumped`.
        clock: the product's.
        catch_up: None for a process that cannot do it: it waits for one that can.
    """

    def __init__(
        self,
        settings: Settings,
        admin: Admin,
        codec: Callable[[], Awaitable[Codec]],
        clock: Clock,
        catch_up: CatchUp | None = None,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._codec = codec
        self._clock = clock
        self._catch_up = catch_up
        self._comparing: asyncio.Task[str | None] | None = None
        # Of the last connection: when it changes, positions in memory are ahead of those in the database.
        self.caught_up_ms: int | None = None

    async def admit(self, connection: Connection) -> None:
        """Admit a new connection of a role once its server was compared; waits a little for that.

        Raises:
            NotComparedError: it was not, or it has gone back and is catching up.
        """
        await self._admit(connection, _WAIT_SECONDS)

    async def begin(self, connection: Connection) -> None:
        """Admit a new connection if its server was compared; else only begin to compare it.

        Raises:
            NotComparedError: it was not.
        """
        await self._admit(connection, 0.0)

    async def _admit(self, connection: Connection, wait_seconds: float) -> None:
        caught_up_ms = await compared_server(connection)
        if caught_up_ms is None:
            refusal = await self._refusal_after(wait_seconds)
            caught_up_ms = await compared_server(connection) if refusal is None else None
            if caught_up_ms is None:
                raise NotComparedError(refusal or _IN_PROGRESS)
        self.caught_up_ms = caught_up_ms

    async def _refusal_after(self, wait_seconds: float) -> str | None:
        """Compare, and return why the server cannot be used yet after this time; None if it can."""
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare_or_say_why(), name="comparison")
        comparing = self._comparing
        await asyncio.wait({comparing}, timeout=wait_seconds)
        return comparing.result() if comparing.done() else _IN_PROGRESS

    async def close(self) -> None:
        """End a comparison in progress; another process continues with it."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)

    async def _compare_or_say_why(self) -> str | None:
        """Return why the server cannot be used yet; None if it can."""
        try:
            return await self._compare()
        except (HighwaterError, KafkaException, *AWAY) as error:
            log.warning("comparison_failed", reason=str(error) or type(error).__name__)
            return f"PostgreSQL has started and cannot be compared with the log yet: {error}"

    async def _compare(self) -> str | None:
        began = monotonic_seconds()
        idle = {"idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS)}
        async with own_connection(self._settings, APPLICATION, **idle) as connection, connection.transaction():
            await connection.execute(QUERIES["hold_comparison"], LockClass.COMPARISON)
            if await compared_server(connection) is not None:  # another process was first
                return None
            if await connection.fetchval(QUERIES["is_read_only"]):
                return "PostgreSQL is a standby, or has just been promoted; it is compared with the log when it takes writes"
            restore = await connection.fetchrow(QUERIES["catch_up_in_progress"])
            if restore is not None and restore["starts"] is None:
                return f"a restore from {restore['source']} is in progress or was interrupted"
            if restore is not None:
                starts = decode_starts(restore["starts"])
            else:
                proof, starts = await self._gather(connection)
                if proof is None:
                    await connection.execute(QUERIES["mark_server_compared"])
                    log.info("server_compared", seconds=round(monotonic_seconds() - began, 3))
                    return None
                await self._begin(starts)
                log.warning("database_went_back", proof=proof, effect="it catches up with the log first")
            if self._catch_up is None:
                return (
                    "PostgreSQL lacks commits that the log knows: it was promoted from a standby that was behind, or"
                    " restored from a copy; `highwater connect` brings it up to the log, start it if none runs"
                )
            async with _not_idle(connection):
                await self._catch_up(starts)
            await connection.execute(QUERIES["end_restore"])
            await connection.execute(QUERIES["mark_server_caught_up"], self._clock())
        log.info("database_caught_up")
        return None

    async def _begin(self, starts: Mapping[Place, int]) -> None:
        """Store that a catch-up is in progress and from where, in a transaction that outlives this process."""
        async with own_connection(self._settings, APPLICATION) as connection:
            now = to_datetime(self._clock())
            await connection.execute(QUERIES["begin_catch_up"], now, _CAUGHT_UP_FROM, encode_starts(starts))

    async def _gather(self, connection: Any) -> tuple[str | None, dict[Place, int]]:
        """Return the proof that the database went back, if there is one, and the stored position of each partition."""
        topics = [topic.name for topic in TOPICS.values() if relay_epochs.is_stamped(topic.name)]
        counts = await self._admin.partition_counts()
        names = [name for name in topics if name in counts]
        ids, ranges = await asyncio.gather(
            self._admin.topic_ids(counts.keys() & TOPICS.keys()),
            self._admin.log_ranges([(name, partition) for name in names for partition in range(counts[name])]),
        )
        rows = await connection.fetch(QUERIES["highest_positions"])
        next_ = {(r["topic"], r["partition"]): r["next"] for r in rows if ids.get(r["topic"]) == r["topic_id"]}
        starts = plan_starts(next_, {place: (span.low, span.high) for place, span in ranges.items()})
        spans = {place: LogRange(starts[place], span.high) for place, span in ranges.items()}
        published = await self._published(spans)
        return find_lost_write(await _stored(connection, next_, published), published), next_

    async def _published(self, spans: Mapping[Place, LogRange]) -> list[Published]:
        if not any(span.low < span.high for span in spans.values()):
            return []
        codec = await self._codec()

        def read() -> list[Published]:
            consumer = open_reader(self._settings.kafka_client())
            try:
                return [_noted(codec, record) for record in read_spans(consumer, spans)]
            finally:
                consumer.close()

        return await asyncio.to_thread(read)


def _noted(codec: Codec, record: Record) -> Published:
    version: tuple[str, int] | None = None
    if record.topic == VERSION_BUMPED:
        with contextlib.suppress(InvalidEventError, UnknownSchemaError):  # of a newer release; its other numbers count
            event = codec.decode(record.topic, record.value)
            version = event["key"], event["version"]
    return Published(
        record.position,
        outbox.id_of(record.headers),
        relay_epochs.stamp_of(record.topic, record.headers),
        caused_by(record.headers),
        version,
    )


async def _stored(connection: Any, next_: Mapping[Place, int], published: Sequence[Published]) -> Stored:
    numbers = await connection.fetchrow(QUERIES["stored_numbers"])
    epochs = await connection.fetch(QUERIES["stored_epochs"], LeaseKind.OUTBOX)
    keys = {one.version[0] for one in published if one.version is not None}
    versions = await connection.fetch(QUERIES["stored_versions"], sorted(keys))
    return Stored(
        numbers["outbox_id"],
        numbers["floor"],
        {int(row["name"]): row["epoch"] for row in epochs},
        next_,
        {row["key"]: row["version"] for row in versions},
    )


@contextlib.asynccontextmanager
async def _not_idle(connection: Any) -> AsyncIterator[None]:
    """Keep the session of an open transaction from looking idle; a process that is stopped loses it, and the lock."""

    async def ping() -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            await connection.execute("SELECT 1")

    pinging = asyncio.create_task(ping(), name="comparison-ping")
    try:
        yield
    finally:
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)


def encode_starts(starts: Mapping[Place, int]) -> str:
    """Return starts as they are stored for an interrupted catch-up."""
    return orjson.dumps([[*place, start] for place, start in sorted(starts.items())]).decode()


def decode_starts(text: str) -> dict[Place, int]:
    """Parse the result of `encode_starts`."""
    return {(topic, partition): start for topic, partition, start in orjson.loads(text)}
