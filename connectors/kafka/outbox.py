"""The outbox: rows that a transaction wants published, and the relay that publishes them.

A row is written with the effects it reports and deleted after the broker's acknowledgement, so that no effect is
without its event and no event without its effect. Order per key: the row's id is assigned under the key's row lock, and
a shard is published by one relay at a time (a lease), in the order of ids. A relay that dies between acknowledgement
and deletion repeats rows with the same `ce_id`; every consumer's merge is idempotent.

Relays share the shards. One that ends is replaced at once, one that hangs when its leases end. If it resumes, its
records have an older epoch than those already in the log, and readers skip them (`streams/relay_epochs.py`).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import orjson

from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.producer import AcceptedRecord, AsyncProducer
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LEASE_SECONDS, LeaseKind, Leases
from highwater.connectors.postgres.pool import AWAY, Connection, Row, notify, open_connection
from highwater.connectors.waiting import pause, pause_unless
from highwater.schemas.carried import TRACEPARENT
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, header, make_headers
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.schemas.topics import TOPICS
from highwater.streams import relay_epochs
from highwater.streams.clock import fresh_id, monotonic_seconds, to_ns, wall_ns
from highwater.streams.leases import Lease, plan_shares
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import OUTBOX_PUBLISHED, OUTBOX_SHARDS, OUTBOX_SHARDS_LOST, get_log
from highwater.streams.tracing import TRACER, Kind, Span, context_of

log = get_log("outbox")

SHARDS = 16
# Rows published before they are deleted: enough to fill the producer's batches, few enough to repeat after a crash.
_ROWS_MAX = 1_000
# NOTIFY wakes the relay at once. It checks this often whether it has its share, which bounds the replacement of an
# ended relay, and whether rows came without a wake-up.
_LOOK_SECONDS = 1.0
CHANNEL = "highwater_outbox"
_EVENT_ID = "outbox-"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One record to publish; `ce_id` is added by the relay from the row's id."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


class OutboxEvent(NamedTuple):
    """An event with its topic, before it becomes a row; `outbox_event` creates one and ties the types together."""

    topic: TopicName[Mapping[str, object]]
    event: Mapping[str, object]


def outbox_event(topic: TopicName[EventT], event: EventT) -> OutboxEvent:
    """Return an event with its topic."""
    return OutboxEvent(cast("TopicName[Mapping[str, object]]", topic), event)


def event_row(
    codec: Codec, topic: TopicName[EventT], event: EventT, *, source: str, now_ms: int, caused_by: Position | None
) -> OutboxRow:
    """Return the row of one of our own events; its key is the topic's key field."""
    headers = make_headers(event_id="", event_type=topic, source=source, now_ms=now_ms, caused_by=caused_by)
    return OutboxRow(
        topic=topic,
        key=TOPICS[topic].key_of(event).encode(),
        value=codec.encode(topic, event),
        headers=[(name, value) for name, value in headers if name != "ce_id"],
    )


def tombstone_row(topic: str, key: str, *, source: str, now_ms: int, caused_by: Position | None) -> OutboxRow:
    """Return the row that deletes the last event of a key from a compacted topic."""
    headers = make_headers(event_id="", event_type=topic, source=source, now_ms=now_ms, caused_by=caused_by)
    return OutboxRow(topic, key.encode(), None, [(name, value) for name, value in headers if name != "ce_id"])


class OutboxFactory:
    """Creates the outbox rows of a sink."""

    def __init__(self, codec: Codec, source: str) -> None:
        self._codec = codec
        self._source = source

    def row(self, topic: TopicName[EventT], event: EventT, now_ms: int, caused_by: Position) -> OutboxRow:
        """Return the row of an event."""
        return event_row(self._codec, topic, event, source=self._source, now_ms=now_ms, caused_by=caused_by)


async def add(tx: Connection, rows: Sequence[OutboxRow]) -> None:
    """Write rows in the caller's transaction, in order; NOTIFY is only a hint without content."""
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
    await notify(tx, CHANNEL)


def _on_its_way(row: Row) -> tuple[Headers, Span | None]:
    """Return a row's headers and, if it is traced, the span of its wait here, which is the parent of its readers."""
    headers = _headers_of(row)
    parent = context_of(headers) if TRACER.is_on else None
    if parent is None or not parent.is_sampled:
        return headers, None
    context = parent.child()
    kept = [(name, value) for name, value in headers if name != TRACEPARENT]
    attributes = {"messaging.system": "kafka", "messaging.destination.name": row["topic"]}
    start_ns = to_ns(row["added_at"])
    span = Span(context, parent.span_id, f"publish {row['topic']}", Kind.PRODUCER, start_ns, start_ns, attributes)
    return [*kept, (TRACEPARENT, context.traceparent.encode())], span


def _headers_of(row: Row) -> Headers:
    kept = [(name, base64.b64decode(value)) for name, value in orjson.loads(row["headers"])]
    # A dead letter keeps its original ce_id.
    return kept if any(name == "ce_id" for name, _ in kept) else [*kept, ("ce_id", f"{_EVENT_ID}{row['id']}".encode())]


def id_of(headers: Headers) -> int | None:
    """Return the id of the row from which a record was published; None if it was not published by a relay."""
    event_id = header(headers, "ce_id") or ""
    number = event_id.removeprefix(_EVENT_ID)
    return int(number) if number != event_id and number.isdecimal() else None


def _stamped(row: Row, headers: Headers, lease: Lease) -> Headers:
    """Return headers with the shard and epoch of the publishing relay, replacing those of a dead letter."""
    kept = [(name, value) for name, value in headers if name != relay_epochs.HEADER]
    return [*kept, (relay_epochs.HEADER, relay_epochs.to_header(row["shard"], lease.epoch))]


class Relay:
    """Publishes its share of the shards, in the order of ids, until it is stopped."""

    group = "outbox"

    def __init__(self, database_url: str, producer: AsyncProducer, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._url = database_url
        self._producer = producer
        self._wake = asyncio.Event()
        owner = fresh_id()
        self._member = Leases(LeaseKind.RELAY, seconds=lease_seconds, owner=owner)
        self._leases = Leases(LeaseKind.OUTBOX, seconds=lease_seconds, owner=owner)
        self.problem: str | None = "starting"

    @property
    def shards(self) -> set[int]:
        """Return the shards that this relay holds now."""
        return {int(name) for name in self._leases.held}

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; waits while a store or broker is unavailable."""
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
                self._leases.forget()
                self._member.forget()
                OUTBOX_SHARDS.set(0)
                connection.terminate()  # closes at once; the leases end with the session

    def _on_notify(self, *_: object) -> None:
        self._wake.set()

    async def _pause(self, problem: str, attempt: int, stop: asyncio.Event) -> None:
        if self.problem != problem:
            log.warning("outbox_paused", reason=problem)
        self.problem = problem
        await pause(stop, unavailable_seconds(attempt))

    async def _cycles(self, connection: Connection, stop: asyncio.Event) -> AsyncIterator[int]:
        looked_at = float("-inf")
        while not stop.is_set():
            if monotonic_seconds() - looked_at >= _LOOK_SECONDS:
                await self._share(connection)
                looked_at = monotonic_seconds()
            await self._renew(connection)
            self._wake.clear()
            published = await self._publish_some(connection)
            if self.problem is not None:
                log.info("outbox_running", shards=len(self.shards))
                self.problem = None
            yield published
            if published < _ROWS_MAX:
                await pause_unless(stop, self._wake, _LOOK_SECONDS)

    async def _share(self, connection: Connection) -> None:
        """Move towards an equal share. Nothing is being published meanwhile, so a shard is released completely."""
        if not self._member.held:
            await leases.drop_ended(connection, LeaseKind.RELAY)
            await self._member.take(connection, [self._member.owner])
        held = await leases.live(connection, LeaseKind.OUTBOX)
        members = set(await leases.live(connection, LeaseKind.RELAY))
        # Its own leases of a cut connection are as free to it as unheld ones.
        owners = {int(name): owner for name, owner in held.items() if owner != self._leases.owner}
        owners |= dict.fromkeys(self.shards, self._leases.owner)
        shares = plan_shares(SHARDS, self._leases.owner, members, owners)
        await self._leases.release(connection, [str(shard) for shard in shares.release])
        taken = await self._leases.take(connection, [str(shard) for shard in shares.take])
        if shares.release or taken:
            log.info("outbox_shared", relays=len(members), taken=len(taken), released=len(shares.release))
        OUTBOX_SHARDS.set(len(self.shards))

    async def _renew(self, connection: Connection) -> None:
        lost = await self._leases.renew(connection)
        await self._member.renew(connection)
        if lost:
            OUTBOX_SHARDS_LOST.inc(len(lost))
            OUTBOX_SHARDS.set(len(self.shards))
            log.warning("outbox_shards_lost", shards=sorted(map(int, lost)), reason="another relay took them over")

    async def _publish_some(self, connection: Connection) -> int:
        rows = await connection.fetch(QUERIES["outbox_take"], list(self.shards), _ROWS_MAX)
        # Queried again: a relay that was paused finds out here that it no longer owns its rows.
        held = self._leases.held
        rows = [row for row in rows if str(row["shard"]) in held]
        if not rows:
            return 0
        ways = [_on_its_way(row) for row in rows]
        acks = [
            await self._producer.enqueue(
                row["topic"],
                row["value"],
                key=row["key"],
                headers=_stamped(row, headers, held[str(row["shard"])]),
                partition=row["partition"],
            )
            for row, (headers, _) in zip(rows, ways, strict=True)
        ]
        failed = await self._acknowledged(connection, acks)
        if failed is not None:
            # Nothing is deleted: the whole run of rows is repeated in order, so no key sees a later row without the
            # earlier one.
            raise failed if isinstance(failed, HighwaterError) else UnavailableError(str(failed))
        names, epochs = list(held), [lease.epoch for lease in held.values()]
        ids = [row["id"] for row in rows]
        await connection.execute(QUERIES["outbox_delete"], ids, LeaseKind.OUTBOX, names, epochs, self._leases.owner)
        for _, span in ways:
            if span is not None:
                TRACER.record(span._replace(end_ns=wall_ns()))
        for row in rows:
            OUTBOX_PUBLISHED.labels(row["topic"]).inc()
        return len(rows)

    async def _acknowledged(
        self, connection: Connection, acks: Sequence[asyncio.Future[AcceptedRecord]]
    ) -> BaseException | None:
        """Wait for acknowledgements, and renew the leases meanwhile; return the first error, if any."""
        problem: BaseException | None = None
        waiting: set[asyncio.Future[AcceptedRecord]] = set(acks)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=_LOOK_SECONDS)
            if waiting and problem is None:
                try:
                    await self._renew(connection)
                except AWAY as error:
                    problem = error
        failures = [ack.exception() for ack in acks]  # each result is retrieved, or asyncio logs it as lost
        return next((failure for failure in failures if failure is not None), problem)
