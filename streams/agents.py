"""The common part of all agents: events and ticks of a partition as one stream, rows, and an index of due keys.

Invariant: gather from tables, decide by a pure function, send, await every acknowledgement, then write the rows. An
event is acknowledged only after that; an agent that cannot continue holds its event and ends the worker, since the
library counts an event whose agent raised as done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.errors import InvalidEventError, RowsLostError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.streams import Tick
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams import relay_epochs
from highwater.streams.clock import monotonic_seconds, wall_ns
from highwater.streams.due import DueIndex
from highwater.streams.folding import Batch
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake, Record, Send, appended_ms, header_list, position_of
from highwater.streams.relay_epochs import Epoch
from highwater.streams.telemetry import RECORDS_OVERTAKEN, TICKS, TICKS_REFUSED, get_log
from highwater.streams.ticks import Admission, LastTick, Verdict, admit
from highwater.streams.tracing import TRACER, Hop, begin_hop, end_hop
from highwater.streams.whole_tables import MARK_KEY, require_whole

# The worker's group in Kafka, also the prefix of its changelogs' names: never changed, or state and offsets are lost.
GROUP = "highwater-feeds"
# Rows processed before other tasks get a turn: about 10 ms, so that acknowledgements and probes are not delayed.
ROWS_PER_TURN = 100

_log = get_log("agents")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What every agent is given: the outside as functions and values, so that it knows no client."""

    codec: Codec
    send: Send
    heartbeats: Heartbeats
    fail: Callable[[str], None]
    note_tick: Callable[[Noted], None]
    # The beginnings of changelogs that do not begin at 0, by table and partition.
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Noted:
    """A received tick, and its outcome; `now` in ms since 1970."""

    partition: int
    now: int
    verdict: Verdict


OnEvent: TypeAlias = Callable[[Any, Record], Awaitable[None]]
# Events of a partition in order, and the partition.
OnEvents: TypeAlias = Callable[[Sequence[Any], int], Awaitable[None]]


def on(topic: TopicName[EventT], handler: Callable[[EventT, Record], Awaitable[None]]) -> tuple[str, OnEvent]:
    """Return a topic with the handler of its events; the type checker matches the two."""
    return topic, handler


def fold(topic: TopicName[EventT], handler: Callable[[Sequence[EventT], int], Awaitable[None]]) -> tuple[str, OnEvents]:
    """Return a topic with the handler of many of its events at once: equivalent to one after the other."""
    return topic, handler


class TableAgent(ABC):
    """One stream of events and ticks, ticks admitted once, an index per partition."""

    name: str
    topics: Sequence[str]
    # Topics that another agent of the same worker reads as well and handles errors for, so that a bad event is
    # dead-lettered once.
    shared_topics: Sequence[str] = ()
    handlers: Mapping[str, OnEvent]
    # Topics whose records come in batches; each also has a handler for a single record.
    folded_topics: Sequence[str] = ()
    folds: Mapping[str, OnEvents]

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        self._wiring = wiring
        self._intake = intake
        self._rows = rows
        self._ticks = ticks
        self._indexes: dict[int, DueIndex] = {}
        self._now: dict[int, int] = {}
        self._epochs: dict[tuple[str, int], dict[int, Epoch]] = {}
        self._whole: set[int] = set()  # partitions with no missing row
        self.is_at_event = False

    @property
    def degraded(self) -> dict[str, str]:
        """Return the partitions with only bad events: name -> what to do."""
        return self._intake.degraded

    def forget_indexes(self) -> None:
        """Drop the indexes after a rebalance: another worker may have changed rows, so the indexes are derived again."""
        self._indexes.clear()
        self._now.clear()
        self._epochs.clear()
        self._whole.clear()

    async def run(self, stream: Any) -> None:
        """Process every event of the stream, one at a time."""
        async for event in stream.events():
            record = event.message
            self.is_at_event = True
            try:
                self._require_whole(record.partition)
                await (self._deal_with_batch(record) if isinstance(record, Batch) else self._deal_with(record))
            except RowsLostError as error:
                self._wiring.fail(str(error))
                await asyncio.Event().wait()
            except Exception as error:  # noqa: BLE001 (after any error, continuing would lose the event)
                _log.exception("agent_stopped", agent=self.name, position=str(position_of(record)))
                self._wiring.fail(f"agent {self.name} cannot get past {position_of(record)}: {error!r}")
                await asyncio.Event().wait()
            self.is_at_event = False

    def _require_whole(self, partition: int) -> None:
        if partition not in self._whole:
            for table in (self._rows, self._ticks):
                require_whole(table, partition, self._wiring.log_starts)
            self._whole.add(partition)

    async def _deal_with(self, record: Record) -> None:
        if self._is_overtaken(record):
            self._wiring.heartbeats.moved(self.name, monotonic_seconds())
            return
        start_ns = wall_ns()
        hop, arrived_ms = None, appended_ms(record)
        if arrived_ms is not None:  # not if the log is a file: decisions repeated there belong to no trace
            _, hop = begin_hop(self.name, position_of(record), header_list(record.headers), arrived_ms)
        try:
            event = await self._intake.decode(record)
            await self.handlers[record.topic](event, record)
        except (InvalidEventError, UnknownSchemaError) as error:
            if record.topic not in self.shared_topics:
                await self._intake.dead_letter(record, error)
        else:
            self._intake.accept(record)
        if hop is not None:
            end_hop(hop, f"{GROUP}.{self.name}", start_ns, wall_ns())
        self._wiring.heartbeats.moved(self.name, monotonic_seconds())

    async def _deal_with_batch(self, batch: Batch) -> None:
        """Process each record in order, like `_deal_with`. Only plain events are folded; the others are processed singly."""
        events = self._wiring.codec.decode_many(batch.topic, [record.value for record in batch.records])
        plain: list[Any] = []
        hops: list[Hop] = []
        in_force: dict[bytes, int] = {}
        start_ns = wall_ns()
        for record, event in zip(batch.records, events, strict=True):
            if event is None:
                await self._fold(batch, plain)
                plain = []
                await self._deal_with(batch.alone(record))
                in_force.clear()  # it may have raised an epoch
            elif not self._is_overtaken_in(batch, record, in_force):
                plain.append(event)
                if TRACER.is_on:
                    hops.extend(self._hop_of(batch.alone(record)))
        await self._fold(batch, plain)
        for hop in hops:
            end_hop(hop, f"{GROUP}.{self.name}", start_ns, wall_ns())

    async def _fold(self, batch: Batch, events: Sequence[Any]) -> None:
        if events:
            await self.folds[batch.topic](events, batch.partition)
            self._intake.accept_many(batch.topic, batch.partition, len(events))
        self._wiring.heartbeats.moved(self.name, monotonic_seconds())

    def _hop_of(self, record: Record) -> Iterator[Hop]:
        arrived_ms = appended_ms(record)
        if arrived_ms is not None:
            _, hop = begin_hop(self.name, position_of(record), header_list(record.headers), arrived_ms)
            if hop is not None:
                yield hop

    def _is_overtaken_in(self, batch: Batch, record: Any, in_force: dict[bytes, int]) -> bool:
        """Return `_is_overtaken` for a record in a batch. For the current epochs the header is known, with its shard."""
        header = relay_epochs.header_of(record.headers) if record.headers else None
        if header is None or header in in_force:
            return False
        alone = batch.alone(record)
        if self._is_overtaken(alone):
            return True
        stamp = relay_epochs.stamp_of(batch.topic, alone.headers)
        if stamp is not None and self._epochs[batch.topic, batch.partition][stamp.shard].epoch == stamp.epoch:
            for other in [other for other, shard in in_force.items() if shard == stamp.shard]:
                del in_force[other]
            in_force[header] = stamp.shard
        return False

    def _is_overtaken(self, record: Record) -> bool:
        """Return whether a record comes from a relay that was overtaken; if not, remember its epoch."""
        stamp = relay_epochs.stamp_of(record.topic, record.headers)
        if stamp is None:
            return False
        key = epochs_key(self.name, record.topic)
        held = self._epochs.get((record.topic, record.partition))
        if held is None:
            row = self._ticks.get(key)
            held = {} if row is None else relay_epochs.decode(orjson.loads(row))
            self._epochs[record.topic, record.partition] = held
        known = held.get(stamp.shard)
        if relay_epochs.is_overtaken(known, stamp, record.offset):
            RECORDS_OVERTAKEN.labels(GROUP).inc()
            _log.warning("record_overtaken", agent=self.name, position=str(position_of(record)))
            return True
        epoch = relay_epochs.raised(known, stamp, record.offset)
        if epoch is not None:
            held[stamp.shard] = epoch
            self._ticks[key] = orjson.dumps(relay_epochs.encode(held))
        return False

    def _admit(self, tick: Tick, record: Record) -> bool:
        """Return whether a tick is to be applied (`streams/ticks.py`)."""
        last, now = self._last_tick(), tick["now"]
        verdict = admit(tick, appended_ms(record), record.offset, last)
        if verdict.admission is Admission.REFUSED:
            TICKS_REFUSED.inc()
            self._now[record.partition] = last.now
        elif verdict.admission is Admission.OVERRULES:
            self._now[record.partition] = now
            self._correct_times(record.partition, now)
        else:
            self._now[record.partition] = max(last.now, now)
        if record.offset > last.offset:
            self._wiring.note_tick(Noted(record.partition, now, verdict))
        return verdict.is_admitted

    def _newest_now(self, partition: int) -> int:
        """Return the newest tick known in the partition of the current event; 0 before the first one."""
        return self._now.get(partition) or self._last_tick().now

    def _last_tick(self) -> LastTick:
        """Return the last tick applied in the partition of the current event."""
        row = self._ticks.get(self.name.encode())
        return LastTick() if row is None else LastTick(*orjson.loads(row))

    def _applied(self, tick: Tick, record: Record, *, is_admitted: bool) -> None:
        if is_admitted:
            self._ticks[self.name.encode()] = orjson.dumps(list(LastTick.of(tick, record.offset)))
            TICKS.inc()
        self._wiring.heartbeats.heard(self.name, record.partition, tick["number"])

    def _index(self, partition: int) -> DueIndex:
        """Return the index of a partition, derived from its rows at the first use after an assignment."""
        index = self._indexes.get(partition)
        if index is None:
            index = self._indexes[partition] = self._derive_index(partition)
        return index

    @abstractmethod
    def _derive_index(self, partition: int) -> DueIndex:
        """Derive the index from a partition's rows."""

    def _correct_times(self, partition: int, now: int) -> None:
        """After a tick from the future, recompute when rows are due, from rows whose times it did not set."""
        for key, row in list(items_of(self._rows, partition)):
            corrected = self._corrected(row, now)
            if corrected is not None:
                self._rows[key] = corrected
        self._indexes.pop(partition, None)

    def _corrected(self, row: bytes, now: int) -> bytes | None:
        """Return the row without times in the future; None if it has none that could delay anything."""
        return None

    async def _send(
        self, topic: TopicName[EventT], key: str, event: EventT, cause: Position, now: int
    ) -> Awaitable[Any]:
        """Send one of our events. Its id is derived from its cause, so that a repeat has the same id."""
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


def epochs_key(agent: str, topic: str) -> bytes:
    """Return the key of the row, among those of ticks, that holds the relay epochs that an agent read in a topic."""
    return b"epochs\0" + agent.encode() + b"\0" + topic.encode()


def items_of(table: Any, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of one partition of a table. The library only lists all partitions at once, without saying which
    is which.
    """
    store = table.data
    for key, value in store._db_for_partition(partition).items():  # noqa: SLF001 (as above; the version is pinned)
        if key not in (store.offset_key, MARK_KEY):
            yield key, value
