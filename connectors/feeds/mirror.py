"""The mirror of PostgreSQL in Redis (R0.22 to R0.25): `ch:`, `hwm:`, `us:` and `dirty:channels`.

An event only tells what to look at; the values always come from PostgreSQL, so order does not matter, a repeat is
harmless and a key that survived an outage is put right by the next event. Redis away is no error here: what is missed
is rebuilt when it returns (R0.43). A mirror that was emptied is known by the absence of its epoch key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import asyncpg

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.patience import pause
from highwater.connectors.postgres.pool import Connection, Row, transaction
from highwater.connectors.redis import keys as redis_keys
from highwater.connectors.redis.keys import key
from highwater.connectors.redis.link import RedisAwayError, RedisLink, ResourceCache
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    CHANNEL_DIRTY,
    CLUSTERS_REBUILT,
    REBUILD_FINISHED,
    REBUILD_REQUESTED,
    USER_CHANGED,
    ChannelAdvanced,
    ChannelDirty,
    ClustersRebuilt,
    RebuildFinished,
    RebuildRequested,
    UserChanged,
)
from highwater.schemas.streams import TICK, Tick
from highwater.streams.clock import Clock, to_datetime, to_ms
from highwater.streams.telemetry import get_log

log = get_log("mirror")

# Channels put back at a recovery: as many as a tick of 500 clears in a few minutes; the rest come with their next event.
_RECOVERY_CHANNELS_MAX = 10_000
_SWEEP_CHANNELS_MAX = 1_000
_WATCH_SECONDS = 1.0

OfUser: TypeAlias = UserChanged | RebuildRequested | RebuildFinished | ClustersRebuilt
Mirrored: TypeAlias = Tick | ChannelAdvanced | ChannelDirty | OfUser


@dataclass(frozen=True, slots=True)
class Look:
    """What a batch of events makes worth looking at."""

    channels: frozenset[str]
    users: frozenset[str]
    erased: Mapping[str, tuple[str, ...]]
    tick_ms: int | None


def look_at(events: Sequence[Event[Mirrored]]) -> Look:
    """Channels and users named by a batch; the newest tick in it."""
    channels: set[str] = set()
    users: set[str] = set()
    erased: dict[str, tuple[str, ...]] = {}
    tick_ms: int | None = None
    for event in events:
        if tick := event.of(TICK):
            tick_ms = max(tick["now"], tick_ms or 0)
        elif moved := event.of(CHANNEL_ADVANCED) or event.of(CHANNEL_DIRTY):
            channels.add(moved["channel_id"])
        elif told := _of_user(event):
            users.add(told["user_id"])  # also who is erased: who returned in the same batch is written anew
            if (changed := event.of(USER_CHANGED)) and changed["erased"]:
                erased[changed["user_id"]] = (*changed["unsubscribed"], *changed["subscribed"])
    return Look(frozenset(channels), frozenset(users), erased, tick_ms)


def _of_user(event: Event[Mirrored]) -> OfUser | None:
    return (
        event.of(USER_CHANGED)
        or event.of(REBUILD_REQUESTED)
        or event.of(REBUILD_FINISHED)
        or event.of(CLUSTERS_REBUILT)
    )


class Mirror(Handler[Mirrored, None]):
    """Keeps Redis in step; readiness does not depend on Redis."""

    group = "mirror"
    topics = (
        TICK,
        CHANNEL_ADVANCED,
        CHANNEL_DIRTY,
        USER_CHANGED,
        REBUILD_REQUESTED,
        REBUILD_FINISHED,
        CLUSTERS_REBUILT,
    )
    batch_max = 1_000

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
        self._sessions = SessionStore(redis, lambda: pool)
        self._clock = clock
        self._tick_ms = int(tick_seconds * 1000)
        self._recovering = asyncio.Lock()
        self._swept_to = 0  # cursor in dirty:channels; 0 = from the start
        self._is_whole = False  # false until the first contact, and again from the moment Redis is lost
        self._reached_ms: int | None = None  # broker time of the newest event mirrored: t0 of R0.43

    async def prepare(self, events: Sequence[Event[Mirrored]]) -> None:
        """Read what the events point at and write it to Redis, or note that Redis is away."""
        look = look_at(events)
        async with transaction(self._pool) as tx:
            channels = await tx.fetch(QUERIES["mirror_channels"], sorted(look.channels))
            users = await tx.fetch(QUERIES["mirror_users"], sorted(look.users))
            marks = await tx.fetch(QUERIES["mirror_hwm"], sorted(look.users))
        try:
            # A recovered entry stays until the next tick's sweep, as a planner would have taken it then.
            recovered = await self._recover(min(event.record.arrived_ms for event in events))
            await self._write(channels, users, marks, look)
            if look.tick_ms is not None and not recovered:
                await self._sweep()
            self._reached_ms = max(event.record.arrived_ms for event in events)
        except RedisAwayError:
            self._is_whole = False  # said once by the link; what is missed now is rebuilt when it is back

    async def apply(self, tx: Connection, events: Sequence[Event[Mirrored]], prepared: None) -> Sequence[DeadLetter]:
        """Only the positions move: Redis is no part of the truth."""
        return []

    async def watch(self, stop: asyncio.Event) -> None:
        """Look each second whether Redis came back or was emptied: no event may come that would show it."""
        while not stop.is_set():
            await pause(stop, _WATCH_SECONDS)
            if self._reached_ms is None:
                continue  # nothing was mirrored yet, so nothing can have been lost
            try:
                await self._recover(self._reached_ms)
            except RedisAwayError:
                self._is_whole = False
            except UnavailableError as error:
                log.info("mirror_recovery_waits", reason=str(error))

    async def _recover(self, oldest_ms: int) -> bool:
        """Put `dirty:channels` back after Redis was lost or emptied, from the last contact minus a tick (R0.43)."""
        async with self._recovering:
            return await self._recover_once(oldest_ms)

    async def _recover_once(self, oldest_ms: int) -> bool:
        if await self._redis.run(self._redis.require().exists(redis_keys.MIRROR_EPOCH)) and self._is_whole:
            return False
        since = (self._reached_ms if self._reached_ms is not None else oldest_ms) - self._tick_ms
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["dirty_since"], to_datetime(since), _RECOVERY_CHANNELS_MAX)
        async with self._redis.require().pipeline(transaction=False) as pipe:
            for row in rows:
                pipe.zadd(redis_keys.DIRTY_CHANNELS, {row["channel_id"]: _score(row["last_arrived_at"])})
            pipe.set(redis_keys.MIRROR_EPOCH, iso_from_ms(self._clock()))
            await self._redis.run(pipe.execute())
        log.info("redis_mirror_rebuilt", dirty_channels=len(rows), since=iso_from_ms(since))
        self._is_whole = True
        return True

    async def _write(self, channels: Sequence[Row], users: Sequence[Row], marks: Sequence[Row], look: Look) -> None:
        for user_id in look.erased:
            for resource in (f"feed:{user_id}", f"clusters:{user_id}"):
                await self._cache.forget(resource)
        async with self._redis.require().pipeline(transaction=False) as pipe:
            for user_id, touched in look.erased.items():
                pipe.delete(*_keys_of_user(user_id, touched))
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
        """At a tick: what was announced to its subscribers is no longer dirty (R0.30); one that moved since stays."""
        client = self._redis.require()
        # By cursor, a part at each tick: the oldest may all be waiting for their turn, and would hide those behind them.
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
