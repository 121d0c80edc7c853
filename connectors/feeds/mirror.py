"""The mirror of PostgreSQL in Redis (R0.22 to R0.25): `ch:`, `hwm:`, `us:` and `dirty:channels`.

An event only names what to check; the values always come from PostgreSQL, so order does not matter and a repeat is
harmless. Invariant: a key in Redis holds what PostgreSQL held when its last event was mirrored. Redis also stores the
log positions of its keys, written after them. While Redis is unavailable the events wait in the log, so a Redis that
kept its data misses nothing after its recovery, not even an erasure. One whose positions are behind ours was emptied or
lost its last writes: its remaining keys are dropped, and everything is written again (R0.43).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import asyncpg

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.kafka.statements import QUERIES as POSITIONS
from highwater.connectors.postgres.pool import Connection, Row, transaction
from highwater.connectors.redis import keys as redis_keys
from highwater.connectors.redis.keys import key
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.connectors.waiting import pause
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    CHANNEL_DIRTY,
    CLUSTERS_REBUILT,
    NOVELTY,
    REBUILD_FINISHED,
    REBUILD_REQUESTED,
    USER_CHANGED,
    ChannelAdvanced,
    ChannelDirty,
    ClustersRebuilt,
    NoveltyFound,
    RebuildFinished,
    RebuildRequested,
    UserChanged,
)
from highwater.schemas.streams import TICK, Tick
from highwater.streams.clock import Clock, to_datetime, to_ms
from highwater.streams.telemetry import get_log

log = get_log("mirror")

# Channels restored at once at a recovery: as many as a tick of 500 clears in a few minutes; the others come with their
# rows.
_RECOVERY_CHANNELS_MAX = 10_000
# Rows rewritten in one step, between two batches of events.
_REWRITTEN_AT_ONCE = 500
# Subscribers of a channel that are written in one step: this bounds the memory for a channel of a million.
_SUBSCRIBERS_AT_ONCE = 1_000
_SWEEP_CHANNELS_MAX = 1_000
_WATCH_SECONDS = 1.0

OfUser: TypeAlias = UserChanged | RebuildRequested | RebuildFinished | ClustersRebuilt
Mirrored: TypeAlias = Tick | ChannelAdvanced | ChannelDirty | NoveltyFound | OfUser


@dataclass(frozen=True, slots=True)
class Look:
    """What to check after a batch of events."""

    channels: frozenset[str]
    users: frozenset[str]
    subscribers: frozenset[str]  # whose channels have new insights
    erased: Mapping[str, tuple[str, ...]]
    tick_ms: int | None


def look_at(events: Sequence[Event[Mirrored]]) -> Look:
    """Return the channels and users named by a batch, and its newest tick."""
    channels: set[str] = set()
    users: set[str] = set()
    subscribers: set[str] = set()
    erased: dict[str, tuple[str, ...]] = {}
    tick_ms: int | None = None
    for event in events:
        if tick := event.of(TICK):
            tick_ms = max(tick["now"], tick_ms or 0)
        elif moved := event.of(CHANNEL_ADVANCED) or event.of(CHANNEL_DIRTY):
            channels.add(moved["channel_id"])
        elif novelty := event.of(NOVELTY):
            subscribers.update(*(head["users"] for head in novelty["heads"]))
        elif told := _of_user(event):
            users.add(told["user_id"])  # also erased users: one who returned in the same batch is written again
            if (changed := event.of(USER_CHANGED)) and changed["erased"]:
                erased[changed["user_id"]] = (*changed["unsubscribed"], *changed["subscribed"])
    return Look(frozenset(channels), frozenset(users), frozenset(subscribers - users), erased, tick_ms)


def _of_user(event: Event[Mirrored]) -> OfUser | None:
    return (
        event.of(USER_CHANGED)
        or event.of(REBUILD_REQUESTED)
        or event.of(REBUILD_FINISHED)
        or event.of(CLUSTERS_REBUILT)
    )


def is_in_step(marks: Mapping[str, int], positions: Mapping[str, int]) -> bool:
    """Return whether Redis holds all that was mirrored: no partition's mark is missing or behind the committed position."""
    return all(marks.get(place, -1) >= position for place, position in positions.items())


class Mirror(Handler[Mirrored, None]):
    """Keeps Redis up to date."""

    group = "mirror"
    linger_seconds = 0.05  # the worker decides by its own tables; these rows are for people
    topics = (
        TICK,
        CHANNEL_ADVANCED,
        CHANNEL_DIRTY,
        NOVELTY,
        USER_CHANGED,
        REBUILD_REQUESTED,
        REBUILD_FINISHED,
        CLUSTERS_REBUILT,
    )
    batch_max = 300  # of novelty 200 kB each (streams/feeds/packing.py): 60 MB

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        redis: RedisLink,
        cache: ResourceCache,
        clock: Clock,
        *,
        tick_seconds: float,
    ) -> None:
        self._pool = pool
        self._redis = redis
        self._cache = cache
        self._clock = clock
        self._tick_ms = int(tick_seconds * 1000)
        self._recovering = asyncio.Lock()
        self._writing = (
            asyncio.Lock()
        )  # held from reading rows until writing them, so that no older ones overwrite newer
        self._swept_to = 0  # cursor in dirty:channels; 0 = from the start
        self._generation = -1  # of the link, when the marks were last compared
        self._reached_ms: int | None = None  # broker time of the newest event mirrored: t0 of R0.43
        # The rows after this channel and user still have to be rewritten; None: all of them.
        self._rewritten_to: tuple[str, str] | None = None

    @property
    def is_rewritten(self) -> bool:
        """Return whether Redis holds every row again, not only those that events have named."""
        return self._rewritten_to is None

    async def prepare(self, events: Sequence[Event[Mirrored]]) -> None:
        """Read the rows that the events name and write them to Redis.

        Raises:
            RedisAwayError: the batch is repeated until Redis recovers.
        """
        if self._redis.client is None:
            return  # the row does not exist and will not be created
        # A restored entry stays until the next tick's sweep, as a planner would have read it then.
        recovered = await self._recover(min(event.record.arrived_ms for event in events))
        look = look_at(events)
        await self._forget(look.erased)
        async with self._writing:
            async with transaction(self._pool) as tx:
                channels = await tx.fetch(QUERIES["mirror_channels"], sorted(look.channels))
                users = await tx.fetch(QUERIES["mirror_users"], sorted(look.users))
                marks = await tx.fetch(QUERIES["mirror_hwm"], sorted(look.users))
            await self._write(channels, users, marks)
        subscribers = sorted(look.subscribers)
        for first in range(0, len(subscribers), _SUBSCRIBERS_AT_ONCE):
            async with self._writing:
                async with transaction(self._pool) as tx:
                    some = subscribers[first : first + _SUBSCRIBERS_AT_ONCE]
                    users = await tx.fetch(QUERIES["mirror_users"], some)
                await self._write([], users, [])
        if look.tick_ms is not None and not recovered:
            await self._sweep()
        # Written after the rows: a Redis that lost its last writes has lost this too.
        reached = {_place(event.record.topic, event.record.partition): event.record.offset + 1 for event in events}
        await self._redis.run(self._redis.require().hset(redis_keys.MIRRORED_TO, mapping=reached))
        self._reached_ms = max(event.record.arrived_ms for event in events)

    async def apply(self, tx: Connection, events: Sequence[Event[Mirrored]], prepared: None) -> Sequence[DeadLetter]:
        """Only store the positions: Redis is not a source of truth."""
        return []

    async def watch(self, stop: asyncio.Event) -> None:
        """Check each second whether Redis lost data, which no event may reveal; rewrite what it lost."""
        while not stop.is_set():
            if self._rewritten_to is None or self._reached_ms is None:
                await pause(stop, _WATCH_SECONDS)
            if self._reached_ms is None:
                continue  # nothing was mirrored yet; the first batch may have started to rewrite, and needs the event loop
            try:
                await self._recover(self._reached_ms)
                await self._rewrite_some()
            except UnavailableError as error:
                log.info("mirror_recovery_waits", reason=str(error))
                await pause(stop, _WATCH_SECONDS)

    async def _recover(self, oldest_ms: int) -> bool:
        """Compare positions; drop the rest of a mirror that lost data, and restore its dirty channels at once.

        Those are the channels since the last contact minus a tick (R0.43) and all that were not announced.
        """
        async with self._recovering:
            async with transaction(self._pool) as tx:
                rows = await tx.fetch(POSITIONS["positions_of"], self.group)
            positions = {_place(row["topic"], row["partition"]): row["next"] for row in rows}
            generation = self._redis.generation
            if await self._is_whole(positions):
                self._generation = generation
                return False
            await self._drop()
            since = (self._reached_ms if self._reached_ms is not None else oldest_ms) - self._tick_ms
            async with transaction(self._pool) as tx:
                dirty = await tx.fetch(QUERIES["dirty_since"], to_datetime(since), _RECOVERY_CHANNELS_MAX)
            client = self._redis.require()
            if dirty:
                scores = {row["channel_id"]: _score(row["last_arrived_at"]) for row in dirty}
                await self._redis.run(client.zadd(redis_keys.DIRTY_CHANNELS, scores))
            self._rewritten_to = ("", "")
            pipe = client.pipeline(transaction=False)
            for place, position in positions.items():
                pipe.hsetnx(redis_keys.MIRRORED_TO, place, position)  # another process may have advanced meanwhile
            await self._redis.run(pipe.execute())
            self._generation = generation
        log.info("redis_mirror_rebuilt", dirty_channels=len(dirty), since=iso_from_ms(since))
        return True

    async def _is_whole(self, positions: Mapping[str, int]) -> bool:
        client = self._redis.require()
        if self._redis.is_cluster and self._generation not in (-1, self._redis.generation):
            return False  # a promoted replica may lack the last acknowledged writes, and the marks belong to another server
        held = await self._redis.run(client.hmget(redis_keys.MIRRORED_TO, list(positions))) if positions else []
        return is_in_step(
            {place: int(mark) for place, mark in zip(positions, held, strict=True) if mark is not None}, positions
        )

    async def _drop(self) -> None:
        """Delete every key of the mirror."""
        await self._redis.run(self._redis.require().delete(redis_keys.MIRRORED_TO))
        await self._redis.run(self._redis.require().delete(redis_keys.DIRTY_CHANNELS))
        for pattern in (
            key(redis_keys.CHANNEL, channel_id="*"),
            key(redis_keys.USER, user_id="*"),
            key(redis_keys.HIGH_WATER_MARK, user_id="*", channel_id="*"),
        ):
            async for names in self._redis.names(pattern):
                pipe = self._redis.require().pipeline(transaction=False)
                for name in names:
                    pipe.delete(name)
                await self._redis.run(pipe.execute())

    async def _rewrite_some(self) -> None:
        """Rewrite the next rows, of channels and of users."""
        if self._rewritten_to is None:
            return
        channel_id, user_id = self._rewritten_to
        async with self._writing:
            async with transaction(self._pool) as tx:
                channels = await tx.fetch(QUERIES["mirror_channels_after"], channel_id, _REWRITTEN_AT_ONCE)
                found = await tx.fetch(QUERIES["mirror_users_after"], user_id, _REWRITTEN_AT_ONCE)
                names = [row["user_id"] for row in found]
                users = await tx.fetch(QUERIES["mirror_users"], names)
                marks = await tx.fetch(QUERIES["mirror_hwm"], names)
            await self._write(channels, users, marks)
        if self._rewritten_to != (channel_id, user_id):
            return  # Redis lost data again meanwhile
        if not channels and not names:
            self._rewritten_to = None
            log.info("redis_mirror_rewritten")
            return
        self._rewritten_to = (
            channels[-1]["channel_id"] if channels else channel_id,
            names[-1] if names else user_id,
        )

    async def _forget(self, erased: Mapping[str, tuple[str, ...]]) -> None:
        for user_id, touched in erased.items():
            for resource in (f"feed:{user_id}", f"clusters:{user_id}"):
                await self._cache.forget(resource)
            pipe = self._redis.require().pipeline(transaction=False)
            for name in _keys_of_user(user_id, touched):
                pipe.delete(name)
            await self._redis.run(pipe.execute())

    async def _write(self, channels: Sequence[Row], users: Sequence[Row], marks: Sequence[Row]) -> None:
        pipe = self._redis.require().pipeline(transaction=False)
        for row in channels:
            pipe.hset(key(redis_keys.CHANNEL, channel_id=row["channel_id"]), mapping=_channel_fields(row))
            if row["current_seq"] > row["announced_seq"]:
                pipe.zadd(redis_keys.DIRTY_CHANNELS, {row["channel_id"]: _score(row["last_arrived_at"])})
        for row in users:
            pipe.hset(key(redis_keys.USER, user_id=row["user_id"]), mapping=_user_fields(row))
        for row in marks:
            name = key(redis_keys.HIGH_WATER_MARK, user_id=row["user_id"], channel_id=row["channel_id"])
            pipe.hset(name, mapping={"last_seq": row["last_seq"]})
        await self._redis.run(pipe.execute())

    async def _sweep(self) -> None:
        """At a tick: remove channels that were announced to their subscribers (R0.30); one that changed since stays."""
        client = self._redis.require()
        # By cursor, a part at each tick: the oldest may all be waiting, and would hide those behind them.
        self._swept_to, part = await self._redis.run(
            client.zscan(redis_keys.DIRTY_CHANNELS, self._swept_to, count=_SWEEP_CHANNELS_MAX)
        )
        names = [name.decode() for name, _ in part]
        if not names:
            return
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["mirror_channels"], names)
        clean = [row["channel_id"] for row in rows if row["announced_seq"] >= row["current_seq"]]
        if clean:
            await self._redis.run(client.zrem(redis_keys.DIRTY_CHANNELS, *clean))


def _place(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _score(moment: datetime | None) -> float:
    return 0.0 if moment is None else float(to_ms(moment))


def _text(moment: datetime | None) -> str:
    return "" if moment is None else iso_from_ms(to_ms(moment))


def _channel_fields(row: Row) -> dict[str, int | str]:
    return {"current_seq": row["current_seq"], "last_ts": _text(row["last_arrived_at"])}


def _user_fields(row: Row) -> dict[str, int | str]:
    return {
        "pending": row["pending"],
        "last_clustered_at": _text(row["last_clustered_at"]),
        "last_active_at": _text(row["last_active_at"]),
        "cluster_version": row["cluster_version"],
        "plan": row["plan"],
        "last_enqueued_at": _text(row["last_enqueued_at"]),
    }


def _keys_of_user(user_id: str, channels: Sequence[str]) -> list[str]:
    return [
        key(redis_keys.USER, user_id=user_id),
        *(key(redis_keys.HIGH_WATER_MARK, user_id=user_id, channel_id=channel) for channel in channels),
    ]
