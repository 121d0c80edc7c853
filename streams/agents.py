"""What the agents of all subsystems share: events and ticks of a partition as one stream, rows, and an index of due keys.

The law: gather from tables, decide by a pure function, send, await every acknowledgement, then write the rows. An event is
acknowledged only after that; an agent that cannot go on holds its event and ends the worker, since the library counts an
event whose agent raised as done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.streams import Tick
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import monotonic_seconds
from highwater.streams.due import DueIndex
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake, Record, Send, position_of
from highwater.streams.telemetry import TICKS, get_log

# The group of the worker in Kafka, also the beginning of its changelogs' names: never changed, or state and offsets are lost.
GROUP = "highwater-feeds"
# Rows handled before other tasks get a turn: about 10 ms, so that acknowledgements and probes are not held up.
ROWS_PER_TURN = 100

_log = get_log("agents")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What every agent is given: the outside as functions and values, so that it knows no client."""

    codec: Codec
    send: Send
    heartbeats: Heartbeats
    fail: Callable[[str], None]
    note_tick: Callable[[int, int], None]


class LastTick(NamedTuple):
    """The last tick that an agent applied in a partition; `now` in ms since 1970."""

    number: int | None = None
    now: int = 0
    offset: int = -1


OnEvent: TypeAlias = Callable[[Any, Record], Awaitable[None]]


def on(topic: TopicName[EventT], handler: Callable[[EventT, Record], Awaitable[None]]) -> tuple[str, OnEvent]:
    """A topic with what is done at its events; the type checker holds one against the other."""
    return topic, handler


class TableAgent(ABC):
    """One stream of events and ticks, ticks admitted once, an index per partition."""

    name: str
    topics: Sequence[str]
    # Topics that another agent of the same worker reads as well and answers for, so that poison is put aside once.
    shared_topics: Sequence[str] = ()
    handlers: Mapping[str, OnEvent]

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        self._wiring = wiring
        self._intake = intake
        self._rows = rows
        self._ticks = ticks
        self._indexes: dict[int, DueIndex] = {}
        self._now: dict[int, int] = {}
        self.is_at_event = False

    @property
    def degraded(self) -> dict[str, str]:
        """Partitions from which nothing but bad events comes: name -> what to do."""
        return self._intake.degraded

    def forget_indexes(self) -> None:
        """Partitions moved: rows may have been changed by another worker, so the indexes are derived anew."""
        self._indexes.clear()
        self._now.clear()

    async def run(self, stream: Any) -> None:
        """Deal with every event of the stream, one at a time."""
        async for event in stream.events():
            record = event.message
            self.is_at_event = True
            try:
                await self._deal_with(record)
            except Exception as error:  # noqa: BLE001 (whatever it is, going on would lose the event)
                _log.exception("agent_stopped", agent=self.name, position=str(position_of(record)))
                self._wiring.fail(f"agent {self.name} cannot get past {position_of(record)}: {error!r}")
                await asyncio.Event().wait()
            self.is_at_event = False

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

    def _admit(self, tick: Tick, record: Record) -> bool:
        """Whether a tick is to be applied: a redelivered one is not, nor a second one of its number after a rebalance."""
        last = self._last_tick()
        self._now[record.partition] = max(last.now, tick["now"])
        if record.offset > last.offset:
            self._wiring.note_tick(tick["now"], self._now[record.partition])
        return bool(tick["now"] > last.now and tick["number"] != last.number)

    def _last_tick(self) -> LastTick:
        """The last tick applied in the partition of the event at hand."""
        row = self._ticks.get(self.name.encode())
        return LastTick() if row is None else LastTick(*orjson.loads(row))

    def _applied(self, tick: Tick, record: Record, *, is_admitted: bool) -> None:
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

    async def _send(
        self, topic: TopicName[EventT], key: str, event: EventT, cause: Position, now: int
    ) -> Awaitable[Any]:
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


def items_of(table: Any, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one partition of a table. The library lists all partitions at once only, without saying which is which."""
    store = table.data
    for key, value in store._db_for_partition(partition).items():  # noqa: SLF001 (as above; the version is pinned)
        if key != store.offset_key:
            yield key, value
