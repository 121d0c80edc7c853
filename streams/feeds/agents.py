"""The agents of the feeds: they keep rows of channels and users, and publish what the rules decide.

Invariant: that of `streams/agents.py`: send, await the acknowledgements, then write the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    CHANNEL_DIRTY,
    NOVELTY,
    REBUILD_FINISHED,
    REBUILD_REQUESTED,
    USER_CHANGED,
    ChannelAdvanced,
    ChannelDirty,
    NoveltyFound,
    RebuildFinished,
    RebuildRequested,
    UserChanged,
)
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import ROWS_PER_TURN, TableAgent, Wiring, fold, items_of, on
from highwater.streams.due import DueIndex
from highwater.streams.feeds.dirty import Channel, advance, clear, decode_channel, encode_channel, tick_quota
from highwater.streams.feeds.novelty import Forget, Pending, Remember, judge, may_ask_at, pending_of
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import REQUEST_DEADLINE_MS, Rebuild, Trigger, Wait
from highwater.streams.feeds.state import (
    User,
    apply_changed,
    apply_finished,
    apply_head,
    apply_requested,
    decode_user,
    encode_user,
)
from highwater.streams.intake import Intake, Record, appended_ms, position_of
from highwater.streams.telemetry import DECISIONS, PENDING_CLAMPED, get_log
from highwater.streams.ticks import LastTick

# Users judged in one partition at one tick. Judging costs about 40 us, requesting about 250 us: at worst a few seconds,
# a fraction of the default tick; the remaining users come first at the next tick.
USERS_PER_TICK_MAX = 10_000
# Dirty channels are taken oldest first by the broker's times, not by the product's clock.
_ANY_TIME_MS = 1 << 62

_log = get_log("feeds")


@dataclass(frozen=True, slots=True)
class FeedsOptions:
    """The options of the agents of the feeds."""

    policy: Policy
    dirty_channels_max: int
    partitions: int


class ChannelAgent(TableAgent):
    """Keeps heads of channels, and at each tick reports the oldest dirty ones (R0.29, R0.30)."""

    name = "channels"
    topics = (CHANNEL_ADVANCED, TICK)
    folded_topics = (CHANNEL_ADVANCED,)

    def __init__(self, options: FeedsOptions, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self._options = options
        self.handlers = dict((on(CHANNEL_ADVANCED, self._on_advanced), on(TICK, self._on_tick)))
        self.folds = dict((fold(CHANNEL_ADVANCED, self._on_advances),))

    async def _on_advanced(self, event: ChannelAdvanced, record: Record) -> None:
        await self._on_advances([event], record.partition)

    async def _on_advances(self, events: Sequence[ChannelAdvanced], partition: int) -> None:
        channels: dict[str, Channel] = {}
        for event in events:
            channel_id = event["channel_id"]
            channel = channels.get(channel_id)
            if channel is None:
                channel = channels[channel_id] = decode_channel(self._rows.get(channel_id.encode()))
            advance(channel, event["head"], event["arrived_at"], event["retractions"])
        index = self._index(partition)
        for number, (channel_id, channel) in enumerate(channels.items(), start=1):
            # Written even if nothing changed: a redelivery may come because the changelog lost the first write.
            self._rows[channel_id.encode()] = encode_channel(channel)
            if channel.dirty_since is not None:
                index.put(channel_id, channel.dirty_since)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            index = self._index(record.partition)
            cap = tick_quota(
                self._options.dirty_channels_max, self._options.partitions, record.partition, tick["number"]
            )
            channel_ids = index.take(_ANY_TIME_MS, cap) if cap else []
            told = {
                channel_id: channel
                for channel_id in channel_ids
                if (channel := decode_channel(self._rows.get(channel_id.encode()))).dirty_since is not None
            }
            acks = [
                await self._send(
                    CHANNEL_DIRTY,
                    channel_id,
                    _channel_dirty(channel_id, channel, tick),
                    position_of(record),
                    tick["now"],
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
    """Rows of users, judged at each tick when they are due (R0.8), and by the last tick when novelty reaches them.

    So novelty waits for one tick (of its channel) and not for two. Every decision is made by a tick that it names; one
    tick requests a user at most once.
    """

    name = "users"
    topics = (USER_CHANGED, NOVELTY, REBUILD_FINISHED, TICK)
    shared_topics = (TICK,)

    def __init__(self, options: FeedsOptions, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self._options = options
        self._at_once: dict[int, int] = {}  # by partition, since its last tick
        self.handlers = dict(
            (
                on(USER_CHANGED, self._on_changed),
                on(NOVELTY, self._on_novelty),
                on(REBUILD_FINISHED, self._on_finished),
                on(TICK, self._on_tick),
            )
        )

    async def _on_changed(self, event: UserChanged, record: Record) -> None:
        user = self._read(event["user_id"])
        apply_changed(user, event)
        self._write(event["user_id"], user, record)

    async def _on_finished(self, event: RebuildFinished, record: Record) -> None:
        user = self._read(event["user_id"])
        apply_finished(user, event)
        self._write(event["user_id"], user, record)

    async def _on_novelty(self, event: NoveltyFound, record: Record) -> None:
        # A user reached through several channels of the record is read and written once.
        heads: dict[str, list[tuple[str, int, int]]] = {}
        for channel in event["heads"]:
            told = channel["channel_id"], channel["head"], channel["retractions"]
            for user_id in channel["users"]:
                heads.setdefault(user_id, []).append(told)
        last = self._last_tick()
        is_fresh = last.is_fresh(appended_ms(record))
        now_due: list[str] = []
        for number, (user_id, found) in enumerate(heads.items(), start=1):
            user = self._read(user_id)
            for channel_id, head, retractions in found:
                apply_head(user, channel_id, head, retractions)
            self._write(user_id, user, record)
            if is_fresh and may_ask_at(user, last.now, REQUEST_DEADLINE_MS):
                now_due.append(user_id)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._judge_by(last, record.partition, self._taken_at_once(now_due, record.partition))

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            due = self._index(record.partition).take(tick["now"], USERS_PER_TICK_MAX)
            await self._judge_by(LastTick.of(tick, record.offset), record.partition, due)
            self._at_once.pop(record.partition, None)
        self._applied(tick, record, is_admitted=is_admitted)

    def _taken_at_once(self, user_ids: list[str], partition: int) -> list[str]:
        """Return the users that do not wait for the next tick: between two ticks as many as at one; they are removed
        from the index.
        """
        count = self._at_once.get(partition, 0)
        taken = user_ids[: USERS_PER_TICK_MAX - count]
        self._at_once[partition] = count + len(taken)
        for user_id in taken:
            self._index(partition).drop(user_id)
        return taken

    async def _judge_by(self, tick: LastTick, partition: int, user_ids: Iterable[str]) -> None:
        """Judge users by a tick, and request those whose clusters are to be rebuilt."""
        index, now, position = self._index(partition), tick.now, Position(TICK, partition, tick.offset)
        requests: list[tuple[str, User, Rebuild, Awaitable[Any]]] = []
        for number, user_id in enumerate(user_ids, start=1):
            user = self._read(user_id)
            rebuild = self._judge(user_id, user, index, now)
            if rebuild is not None:
                event = _rebuild_requested(user_id, user, rebuild, self._options.policy, now, position)
                ack = await self._send(REBUILD_REQUESTED, user_id, event, position, now)
                requests.append((user_id, user, rebuild, ack))
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._record_requests(requests, index, now)

    def _judge(self, user_id: str, user: User, index: DueIndex, now: int) -> Rebuild | None:
        """Judge one row: changes without a request are applied at once, a rebuild is returned."""
        pending = pending_of(user)
        _report_clamped(user_id, pending)
        verdict = judge(user, pending, self._options.policy, now)
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
            apply_requested(user, rebuild.trigger, offset=ack.offset, now=now, deadline_ms=REQUEST_DEADLINE_MS)
            self._rows[user_id.encode()] = encode_user(user)
            index.put(user_id, now + REQUEST_DEADLINE_MS)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _read(self, user_id: str) -> User:
        return decode_user(self._rows.get(user_id.encode()))

    def _write(self, user_id: str, user: User, record: Record) -> None:
        """Store a row that an event changed, and let the user be judged at the next tick.

        Written even if nothing changed: a redelivery may come because the changelog lost the first write.
        """
        self._rows[user_id.encode()] = encode_user(user)
        self._index(record.partition).put(user_id, self._now.get(record.partition, 0))

    def _derive_index(self, partition: int) -> DueIndex:
        """Build the index after an assignment: every user is judged once, since due times follow from rows and policy,
        not from a stored time.
        """
        index = DueIndex()
        for key, _ in items_of(self._rows, partition):
            index.put(key.decode(), 0)
        return index


def _report_clamped(user_id: str, pending: Pending) -> None:
    if pending.clamped:
        PENDING_CLAMPED.inc(pending.clamped)
        _log.warning("pending_clamped", user_id=user_id, channels=pending.clamped)


def _channel_dirty(channel_id: str, channel: Channel, tick: Tick) -> ChannelDirty:
    assert channel.dirty_since is not None, channel_id  # only such channels are reported
    return {
        "channel_id": channel_id,
        "head": channel.head,
        "dirty_since": channel.dirty_since,
        "tick": tick["number"],
        "now": tick["now"],
    }


def _rebuild_requested(
    user_id: str, user: User, rebuild: Rebuild, policy: Policy, now: int, position: Position
) -> RebuildRequested:
    """Return the request with all inputs of the decision, by the tick at `position`."""
    return {
        "user_id": user_id,
        "trigger": rebuild.trigger.value,
        "forced": rebuild.trigger is Trigger.MANUAL and user.is_forced,
        "planned_at": now,
        "tick_position": str(position),
        "pending": pending_of(user).total,
        "plan": user.plan,
        "last_active_at": user.last_active_at,
        "last_clustered_at": user.last_clustered_at,
        "last_checked_at": user.last_checked_at,
        "last_enqueued_at": user.last_enqueued_at,
        "policy_hash": policy.hash,
        "is_changed": user.is_changed,
        "demanded_revision": user.demanded_revision if rebuild.trigger is Trigger.MANUAL else 0,
    }
