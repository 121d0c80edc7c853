"""The agents of the feeds: they read events and ticks, keep the rows, and send what the rules decide.

The law: gather from tables, decide by a pure function, send, await every acknowledgement, then write the rows. An event is
acknowledged only after that; an agent that cannot go on holds its event and ends the worker, since the library counts an
event whose agent raised as done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.codec import Codec
from schemas.envelope import make_headers
from schemas.errors import InvalidEventError, UnknownSchemaError
from schemas.positions import Position
from schemas.topics import PARTITIONS
from streams.clock import monotonic_seconds
from streams.feeds.dirty import advance, clear, decode_channel, encode_channel, tick_quota
from streams.feeds.due import DueIndex
from streams.feeds.novelty import Forget, Pending, Remember, judge, pending_of
from streams.feeds.policy import Policy
from streams.feeds.rules import Rebuild, Trigger, Wait
from streams.feeds.state import (
    User,
    apply_changed,
    apply_finished,
    apply_head,
    apply_requested,
    decode_user,
    encode_user,
)
from streams.heartbeat import Heartbeats
from streams.intake import Intake, Record, Send, position_of
from streams.telemetry import DECISIONS, PENDING_CLAMPED, TICKS, get_log

GROUP = "highwater-feeds"
CHANNEL_AGENT, USER_AGENT = "channels", "users"
AGENTS = (CHANNEL_AGENT, USER_AGENT)

TICK = "streams.tick"
ADVANCED, DIRTY = "feeds.channel-advanced", "feeds.channel-dirty"
CHANGED, NOVELTY, FINISHED = "feeds.user-changed", "feeds.novelty", "feeds.rebuild-finished"
REQUESTED = "feeds.rebuild-requested"

# Users judged in one partition at one tick. Judging costs about 40 us, requesting about 250 us: at the worst a few seconds,
# a fraction of the default tick, and whoever is left over is first at the next.
USERS_PER_TICK_MAX = 10_000
# Rows handled before other tasks get a turn: about 10 ms, so that acknowledgements and probes are not held up.
_ROWS_PER_TURN = 100
# Dirty channels are taken oldest first whatever the product's clock says: their times are the broker's.
_ANY_TIME_MS = 1 << 62

_log = get_log("feeds")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the agents are given: the outside as functions and values, so that they know no client."""

    codec: Codec
    policy: Policy
    send: Send
    heartbeats: Heartbeats
    fail: Callable[[str], None]
    note_tick: Callable[[int, int], None]
    dirty_channels_max: int
    request_deadline_ms: int


class TableAgent(ABC):
    """What both agents share: one stream of events and ticks, ticks admitted once, an index per partition."""

    name: str
    topics: tuple[str, ...]
    # Topics that another agent of the same worker reads as well and answers for, so that poison is put aside once.
    shared_topics: tuple[str, ...] = ()
    handlers: Mapping[str, Callable[[Any, Any], Awaitable[None]]]

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        self._wiring = wiring
        self._intake = intake
        self._rows = rows
        self._ticks = ticks
        self._indexes: dict[int, DueIndex] = {}
        self._now: dict[int, int] = {}

    def forget_indexes(self) -> None:
        """Partitions moved: rows may have been changed by another worker, so the indexes are derived anew."""
        self._indexes.clear()
        self._now.clear()

    async def run(self, stream: Any) -> None:
        """Deal with every event of the stream, one at a time."""
        async for event in stream.events():
            record = event.message
            try:
                await self._deal_with(record)
            except Exception as error:  # noqa: BLE001 (whatever it is, going on would lose the event)
                _log.exception("agent_stopped", agent=self.name, position=str(position_of(record)))
                self._wiring.fail(f"agent {self.name} cannot get past {position_of(record)}: {error!r}")
                await asyncio.Event().wait()

    async def _deal_with(self, record: Record) -> None:
        try:
            event = await self._intake.decode(record)
            await self.handlers[record.topic](event, record)
        except (InvalidEventError, UnknownSchemaError) as error:
            if record.topic not in self.shared_topics:
                await self._intake.dead_letter(record, error)
        else:
            self._intake.accept(record)
        self._wiring.heartbeats.moved(self.name, monotonic_seconds())

    def _admit(self, tick: Mapping[str, Any], record: Record) -> bool:
        """Whether a tick is to be applied: a redelivered one is not, nor a second one of its number after a rebalance."""
        row = self._ticks.get(self.name.encode())
        number, now, offset = orjson.loads(row) if row is not None else (None, 0, -1)
        self._now[record.partition] = max(now, tick["now"])
        if record.offset > offset:
            self._wiring.note_tick(tick["now"], self._now[record.partition])
        return bool(tick["now"] > now and tick["number"] != number)

    def _applied(self, tick: Mapping[str, Any], record: Record, *, is_admitted: bool) -> None:
        if is_admitted:
            self._ticks[self.name.encode()] = orjson.dumps([tick["number"], tick["now"], record.offset])
            TICKS.inc()
        self._wiring.heartbeats.heard(self.name, record.partition, tick["number"])

    def _index(self, partition: int) -> DueIndex:
        """The index of a partition, derived from its rows at the first use after an assignment."""
        index = self._indexes.get(partition)
        if index is None:
            index = self._indexes[partition] = self._derive_index(partition)
        return index

    @abstractmethod
    def _derive_index(self, partition: int) -> DueIndex:
        """The index that a partition's rows give."""

    async def _send(self, topic: str, key: str, event: Mapping[str, Any], cause: Position, now: int) -> Awaitable[Any]:
        """Send one of our events. Its id follows from its cause, so that a repetition carries the same id."""
        headers = make_headers(
            event_id=f"{cause}#{topic}#{key}",
            event_type=topic,
            source="highwater/worker",
            now_ms=now,
            caused_by=cause,
        )
        return await self._wiring.send(
            topic, key=key.encode(), value=self._wiring.codec.encode(topic, event), headers=headers
        )


class ChannelAgent(TableAgent):
    """Heads of channels, and at each tick the oldest dirty ones told (R0.29, R0.30)."""

    name = CHANNEL_AGENT
    topics = (ADVANCED, TICK)

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self.handlers = {ADVANCED: self._on_advanced, TICK: self._on_tick}

    async def _on_advanced(self, event: Any, record: Record) -> None:
        key = event["channel_id"].encode()
        channel = decode_channel(self._rows.get(key))
        advance(channel, event["head"], event["arrived_at"])
        # Written even when nothing changed: a redelivery may be there because the changelog lost the first write.
        self._rows[key] = encode_channel(channel)
        if channel.dirty_since is not None:
            self._index(record.partition).put(event["channel_id"], channel.dirty_since)

    async def _on_tick(self, tick: Any, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            index = self._index(record.partition)
            cap = tick_quota(self._wiring.dirty_channels_max, PARTITIONS, record.partition, tick["number"])
            channel_ids = index.take(_ANY_TIME_MS, cap) if cap else []
            told = {
                channel_id: channel
                for channel_id in channel_ids
                if (channel := decode_channel(self._rows.get(channel_id.encode()))).dirty_since is not None
            }
            acks = [
                await self._send(
                    DIRTY, channel_id, _channel_dirty(channel_id, channel, tick), position_of(record), tick["now"]
                )
                for channel_id, channel in told.items()
            ]
            await asyncio.gather(*acks)
            for channel_id, channel in told.items():
                clear(channel, channel.head)
                self._rows[channel_id.encode()] = encode_channel(channel)
            DECISIONS.labels("channel-dirty").inc(len(told))
        self._applied(tick, record, is_admitted=is_admitted)

    def _derive_index(self, partition: int) -> DueIndex:
        index = DueIndex()
        for key, row in items_of(self._rows, partition):
            dirty_since = decode_channel(row).dirty_since
            if dirty_since is not None:
                index.put(key.decode(), dirty_since)
        return index


class UserAgent(TableAgent):
    """Rows of users, and at each tick those judged whose time has come (R0.8)."""

    name = USER_AGENT
    topics = (CHANGED, NOVELTY, FINISHED, TICK)
    shared_topics = (TICK,)

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self.handlers = {
            CHANGED: self._on_changed,
            NOVELTY: self._on_novelty,
            FINISHED: self._on_finished,
            TICK: self._on_tick,
        }

    async def _on_changed(self, event: Any, record: Record) -> None:
        user = self._read(event["user_id"])
        apply_changed(user, event)
        self._write(event["user_id"], user, record)

    async def _on_finished(self, event: Any, record: Record) -> None:
        user = self._read(event["user_id"])
        apply_finished(user, event)
        self._write(event["user_id"], user, record)

    async def _on_novelty(self, event: Any, record: Record) -> None:
        # A user reached through several channels of the record is read and written once.
        heads: dict[str, list[tuple[str, int]]] = {}
        for channel in event["heads"]:
            for user_id in channel["users"]:
                heads.setdefault(user_id, []).append((channel["channel_id"], channel["head"]))
        for number, (user_id, found) in enumerate(heads.items(), start=1):
            user = self._read(user_id)
            for channel_id, head in found:
                apply_head(user, channel_id, head)
            self._write(user_id, user, record)
            if number % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _on_tick(self, tick: Any, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            index, now = self._index(record.partition), tick["now"]
            requests: list[tuple[str, User, Rebuild, Awaitable[Any]]] = []
            for number, user_id in enumerate(index.take(now, USERS_PER_TICK_MAX), start=1):
                user = self._read(user_id)
                rebuild = self._judge(user_id, user, index, now)
                if rebuild is not None:
                    event = _rebuild_requested(user_id, user, rebuild, self._wiring.policy, tick, position_of(record))
                    ack = await self._send(REQUESTED, user_id, event, position_of(record), now)
                    requests.append((user_id, user, rebuild, ack))
                if number % _ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)
            await self._record_requests(requests, index, now)
        self._applied(tick, record, is_admitted=is_admitted)

    def _judge(self, user_id: str, user: User, index: DueIndex, now: int) -> Rebuild | None:
        """Judge one row: what needs no request is applied at once, a rebuild is given back."""
        pending = pending_of(user)
        _report_clamped(user_id, pending)
        verdict = judge(user, pending, self._wiring.policy, now)
        DECISIONS.labels(type(verdict).__name__.lower()).inc()
        match verdict:
            case Rebuild():
                return verdict
            case Wait(until_ms):
                index.put(user_id, until_ms)
            case Remember(until_ms):
                user.forget_at = until_ms
                self._rows[user_id.encode()] = encode_user(user)
                index.put(user_id, until_ms)
            case Forget():
                self._rows.pop(user_id.encode(), None)
        return None

    async def _record_requests(
        self, requests: list[tuple[str, User, Rebuild, Awaitable[Any]]], index: DueIndex, now: int
    ) -> None:
        acks = await asyncio.gather(*(ack for _, _, _, ack in requests))
        for number, ((user_id, user, rebuild, _), ack) in enumerate(zip(requests, acks, strict=True), start=1):
            deadline_ms = self._wiring.request_deadline_ms
            apply_requested(user, rebuild.trigger, offset=ack.offset, now=now, deadline_ms=deadline_ms)
            self._rows[user_id.encode()] = encode_user(user)
            index.put(user_id, now + deadline_ms)
            if number % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _read(self, user_id: str) -> User:
        return decode_user(self._rows.get(user_id.encode()))

    def _write(self, user_id: str, user: User, record: Record) -> None:
        """Keep a row that an event touched, and have the user judged at the next tick.

        Written even when nothing changed: a redelivery may be there because the changelog lost the first write.
        """
        self._rows[user_id.encode()] = encode_user(user)
        self._index(record.partition).put(user_id, self._now.get(record.partition, 0))

    def _derive_index(self, partition: int) -> DueIndex:
        """Everybody is judged once after an assignment: what is due follows from rows and policy, not from a stored time."""
        index = DueIndex()
        for key, _ in items_of(self._rows, partition):
            index.put(key.decode(), 0)
        return index


def items_of(table: Any, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one partition of a table. The library lists all partitions at once only, without saying which is which."""
    store = table.data
    for key, value in store._db_for_partition(partition).items():  # noqa: SLF001 (as above; the version is pinned)
        if key != store.offset_key:
            yield key, value


def _report_clamped(user_id: str, pending: Pending) -> None:
    if pending.clamped:
        PENDING_CLAMPED.inc(pending.clamped)
        _log.warning("pending_clamped", user_id=user_id, channels=pending.clamped)


def _channel_dirty(channel_id: str, channel: Any, tick: Any) -> dict[str, Any]:
    return {
        "channel_id": channel_id,
        "head": channel.head,
        "dirty_since": channel.dirty_since,
        "tick": tick["number"],
        "now": tick["now"],
    }


def _rebuild_requested(
    user_id: str, user: User, rebuild: Rebuild, policy: Policy, tick: Any, position: Position
) -> dict[str, Any]:
    """The request with everything the decision was made from."""
    return {
        "user_id": user_id,
        "trigger": rebuild.trigger.value,
        "forced": rebuild.trigger is Trigger.MANUAL and user.is_forced,
        "planned_at": tick["now"],
        "tick_position": str(position),
        "pending": pending_of(user).total,
        "plan": user.plan,
        "last_active_at": user.last_active_at,
        "last_clustered_at": user.last_clustered_at,
        "last_checked_at": user.last_checked_at,
        "last_enqueued_at": user.last_enqueued_at,
        "policy_hash": policy.hash,
    }
