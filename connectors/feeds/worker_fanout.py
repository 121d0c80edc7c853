"""Notifies subscribers of new heads: expands a dirty channel, and answers a new subscription with the channel's head.

The head is read after the subscription was committed, and an advance is announced after it was committed, so whichever
comes last sees the other: a subscriber to a channel that never advances again is still notified (R0.12).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TypeAlias

import asyncpg

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.producer import AcceptedRecord, AsyncProducer
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.feeds import CHANNEL_DIRTY, NOVELTY, USER_CHANGED, ChannelDirty, ChannelHead, UserChanged
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import Clock
from highwater.streams.feeds.packing import RECORD_BYTES_MAX, pack_users

Moved: TypeAlias = ChannelDirty | UserChanged
# Subscribers per page, by keyset: a channel of a million costs memory for one page.
_PAGE_USERS = 5_000
# What Avro adds to an entry's texts: their lengths, the head, the count of retractions, the end of its array.
_ENTRY_BYTES = 34


class Fanout(Handler[Moved, Mapping[str, int]]):
    """Publishes `feeds.novelty` to the partitions of the subscribers, packed."""

    group = "fanout"
    topics = (CHANNEL_DIRTY, USER_CHANGED)
    # A batch is published before its positions move; at most this many channels are repeated after a crash.
    batch_max = 200

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], producer: AsyncProducer, codec: Codec, clock: Clock) -> None:
        self._pool = pool
        self._producer = producer
        self._codec = codec
        self._clock = clock
        self._partitions = TOPICS[NOVELTY].partitions

    async def prepare(self, events: Sequence[Event[Moved]]) -> Mapping[str, int]:
        """Publish and await the acknowledgements; return the announced heads by channel."""
        wanted = sorted({channel for event in events for channel in _channels_of(event)})
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["heads_of_channels"], wanted)
        found = {row["channel_id"]: (row["current_seq"], row["retractions"]) for row in rows if row["current_seq"] > 0}
        announced: dict[str, int] = {}
        # A channel that became dirty twice in a batch is expanded once, for its last event.
        last = {dirty["channel_id"]: event.record for event in events if (dirty := event.of(CHANNEL_DIRTY))}
        for channel_id, record in last.items():
            if channel_id in found:
                head, retractions = found[channel_id]
                await self._tell_subscribers(channel_id, head, retractions, record.position)
                announced[channel_id] = head
        for event in events:
            if changed := event.of(USER_CHANGED):
                await self._tell_user(changed, event.record.position, found)
        return announced

    async def apply(
        self, tx: Connection, events: Sequence[Event[Moved]], prepared: Mapping[str, int]
    ) -> Sequence[DeadLetter]:
        """Store what was announced: a channel whose head is above it is dirty (R0.43)."""
        channels = sorted(prepared)
        await tx.execute(QUERIES["announce_channels"], channels, [prepared[channel] for channel in channels])
        return []

    async def _tell_subscribers(self, channel_id: str, head: int, retractions: int, cause: Position) -> None:
        acks = []
        async for page in self._subscribers(channel_id):
            for partition, users in pack_users(page, partition_of=self._partition_of):
                entry = ChannelHead(channel_id=channel_id, head=head, users=users, retractions=retractions)
                acks.append(await self._publish(partition, [entry], cause))
        await asyncio.gather(*acks)

    async def _tell_user(self, changed: UserChanged, cause: Position, found: Mapping[str, tuple[int, int]]) -> None:
        user_id = changed["user_id"]
        entries = [
            ChannelHead(channel_id=channel, head=found[channel][0], users=[user_id], retractions=found[channel][1])
            for channel in changed["subscribed"]
            if channel in found
        ]
        acks = [await self._publish(self._partition_of(user_id), some, cause) for some in _bounded(entries)]
        await asyncio.gather(*acks)

    async def _subscribers(self, channel_id: str) -> AsyncIterator[list[str]]:
        after = ""
        while True:
            async with transaction(self._pool) as tx:
                rows = await tx.fetch(QUERIES["subscribers_page"], channel_id, after, _PAGE_USERS)
            page = [row["user_id"] for row in rows]
            if page:
                yield page
            if len(page) < _PAGE_USERS:
                return
            after = page[-1]

    def _partition_of(self, user_id: str) -> int:
        return murmur2_partition(user_id.encode(), self._partitions)

    async def _publish(
        self, partition: int, entries: list[ChannelHead], cause: Position
    ) -> asyncio.Future[AcceptedRecord]:
        # The id is derived from the cause and the first entry, so a repeat after a crash has the same one.
        first = entries[0]
        headers = make_headers(
            event_id=f"{cause}:{partition}:{first['channel_id']}:{first['users'][0]}",
            event_type=NOVELTY,
            source="/connectors/workers/fanout",
            now_ms=self._clock(),
            caused_by=cause,
        )
        value = self._codec.encode(NOVELTY, {"heads": entries})
        return await self._producer.enqueue(NOVELTY, value, key=None, headers=headers, partition=partition)


def _bounded(entries: Sequence[ChannelHead]) -> Iterator[list[ChannelHead]]:
    """Split the entries of one user into runs that fit a record: a thousand channels with long ids need several."""
    run: list[ChannelHead] = []
    size = 0
    for entry in entries:
        entry_bytes = len(entry["channel_id"].encode()) + len(entry["users"][0].encode()) + _ENTRY_BYTES
        if run and size + entry_bytes > RECORD_BYTES_MAX:
            yield run
            run, size = [], 0
        run.append(entry)
        size += entry_bytes
    if run:
        yield run


def _channels_of(event: Event[Moved]) -> Sequence[str]:
    if dirty := event.of(CHANNEL_DIRTY):
        return [dirty["channel_id"]]
    changed = event.of(USER_CHANGED)
    return [] if changed is None else changed["subscribed"]
