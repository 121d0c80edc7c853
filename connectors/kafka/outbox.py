"""The outbox: what a transaction wants published, and the relay that publishes it.

A row is written with the effects it speaks of and deleted after the broker's acknowledgement, so no effect is without
its event nor an event without its effect. Order per key: the row's id is taken under the key's row lock, a shard is
published by one relay at a time (advisory lock), in the order of ids. A relay that dies between acknowledgement and
deletion repeats rows with the same `ce_id`; every consumer's merge is idempotent.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import orjson

from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.patience import pause
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import AWAY, Connection, Row, open_connection
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, make_headers
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.schemas.topics import TOPICS
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import OUTBOX_PUBLISHED, OUTBOX_SHARDS, get_log

log = get_log("outbox")

SHARDS = 16
# Rows published before they are deleted: enough to fill the producer's batches, few enough to repeat after a crash.
_ROWS_MAX = 1_000
# NOTIFY wakes the relay at once; without a wake-up (lost on a cut connection) it looks this often.
_POLL_SECONDS = 0.25
_LOCK_SECONDS = 2.0
CHANNEL = "highwater_outbox"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One record to publish; `ce_id` is added by the relay from the row's id."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


class OutboxEvent(NamedTuple):
    """An event with its topic, for whoever hands it on before it is a row; `outbox_event` makes one and holds both together."""

    topic: TopicName[Mapping[str, object]]
    event: Mapping[str, object]


def outbox_event(topic: TopicName[EventT], event: EventT) -> OutboxEvent:
    """An event of a topic, among those of others."""
    return OutboxEvent(cast("TopicName[Mapping[str, object]]", topic), event)


def event_row(
    codec: Codec, topic: TopicName[EventT], event: EventT, *, source: str, now_ms: int, caused_by: Position | None
) -> OutboxRow:
    """The row of one of our own events; its key is the topic's key field."""
    headers = make_headers(event_id="", event_type=topic, source=source, now_ms=now_ms, caused_by=caused_by)
    return OutboxRow(
        topic=topic,
        key=TOPICS[topic].key_of(event).encode(),
        value=codec.encode(topic, event),
        headers=[(name, value) for name, value in headers if name != "ce_id"],
    )


def tombstone_row(topic: str, key: str, *, source: str, now_ms: int, caused_by: Position | None) -> OutboxRow:
    """The row that takes the last event of a key from a compacted topic."""
    headers = make_headers(event_id="", event_type=topic, source=source, now_ms=now_ms, caused_by=caused_by)
    return OutboxRow(topic, key.encode(), None, [(name, value) for name, value in headers if name != "ce_id"])


class Teller:
    """Makes the outbox rows of a sink."""

    def __init__(self, codec: Codec, source: str) -> None:
        self._codec = codec
        self._source = source

    def row(self, topic: TopicName[EventT], event: EventT, now_ms: int, caused_by: Position) -> OutboxRow:
        """The row of an event."""
        return event_row(self._codec, topic, event, source=self._source, now_ms=now_ms, caused_by=caused_by)


async def add(tx: Connection, rows: Sequence[OutboxRow]) -> None:
    """Write rows in the caller's transaction, in order; NOTIFY is only a hint and carries nothing."""
    if not rows:
        return
    records = [
        (
            murmur2_partition(row.key or b"", SHARDS),
            row.topic,
            row.partition,
            row.key,
            row.value,
            orjson.dumps([[name, base64.b64encode(value).decode()] for name, value in row.headers]),
        )
        for row in rows
    ]
    columns = ["shard", "topic", "partition", "key", "value", "headers"]
    await tx.copy_records_to_table("outbox", records=records, columns=columns)
    await tx.execute(f"NOTIFY {CHANNEL}")


def _headers_of(row: Row) -> Headers:
    kept = [(name, base64.b64decode(value)) for name, value in orjson.loads(row["headers"])]
    # A dead letter keeps the ce_id it came with.
    return kept if any(name == "ce_id" for name, _ in kept) else [*kept, ("ce_id", f"outbox-{row['id']}".encode())]


class Relay:
    """Publishes the shards it can lock, in the order of ids, until it is stopped."""

    group = "outbox"

    def __init__(self, database_url: str, producer: AsyncProducer) -> None:
        self._url = database_url
        self._producer = producer
        self._wake = asyncio.Event()
        self._shards: set[int] = set()
        self.problem: str | None = "starting"

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; a store or broker that is away is waited for."""
        attempt = 0
        while not stop.is_set():
            try:
                connection = await open_connection(self._url, timeout=5.0, command_timeout=30.0)
            except UnavailableError as error:
                attempt += 1
                await self._pause(str(error), attempt, stop)
                continue
            try:
                await connection.add_listener(CHANNEL, self._on_notify)
                async for _ in self._cycles(connection, stop):
                    attempt = 0
            except (*AWAY, UnavailableError) as error:
                attempt += 1
                await self._pause(str(error) or type(error).__name__, attempt, stop)
            finally:
                self._shards.clear()
                OUTBOX_SHARDS.set(0)
                connection.terminate()  # closes at once; the locks go with the session

    def _on_notify(self, *_: object) -> None:
        self._wake.set()

    async def _pause(self, problem: str, attempt: int, stop: asyncio.Event) -> None:
        if self.problem != problem:
            log.warning("outbox_paused", reason=problem)
        self.problem = problem
        await pause(stop, unavailable_seconds(attempt))

    async def _cycles(self, connection: Connection, stop: asyncio.Event) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        locked_at = float("-inf")
        while not stop.is_set():
            if loop.time() - locked_at >= _LOCK_SECONDS and len(self._shards) < SHARDS:
                await self._lock_shards(connection)
                locked_at = loop.time()
            self._wake.clear()
            published = await self._publish_some(connection)
            if self.problem is not None:
                log.info("outbox_running", shards=len(self._shards))
                self.problem = None
            yield published
            if published < _ROWS_MAX:
                await _wait_any(stop, self._wake, _POLL_SECONDS)

    async def _lock_shards(self, connection: Connection) -> None:
        for shard in range(SHARDS):
            if shard not in self._shards and await connection.fetchval(QUERIES["outbox_lock"], LockClass.OUTBOX, shard):
                self._shards.add(shard)
        OUTBOX_SHARDS.set(len(self._shards))

    async def _publish_some(self, connection: Connection) -> int:
        rows = await connection.fetch(QUERIES["outbox_take"], list(self._shards), _ROWS_MAX)
        if not rows:
            return 0
        acks = [
            await self._producer.enqueue(
                row["topic"], row["value"], key=row["key"], headers=_headers_of(row), partition=row["partition"]
            )
            for row in rows
        ]
        outcomes = await asyncio.gather(*acks, return_exceptions=True)
        failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if failed is not None:
            # Nothing is deleted: the whole run of rows is repeated in order, so no key sees a later row without the earlier.
            raise failed if isinstance(failed, HighwaterError) else UnavailableError(str(failed))
        await connection.execute(QUERIES["outbox_delete"], [row["id"] for row in rows])
        for row in rows:
            OUTBOX_PUBLISHED.labels(row["topic"]).inc()
        return len(rows)


async def _wait_any(first: asyncio.Event, second: asyncio.Event, seconds: float) -> None:
    waits = [asyncio.ensure_future(first.wait()), asyncio.ensure_future(second.wait())]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
