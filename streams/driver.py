"""The agents without a broker: give them events and virtual time, look at what they send and what their tables hold.

The law: the agents are the product's own and are driven through the door that the stream library uses (`TableAgent.run`), so
what holds here holds in a worker; nothing waits and nobody asks what time it is. For tests of agents, and for `highwater verify`,
which lets them read the recorded log.

    driver = Driver("channels")
    await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": 3, "arrived_at": now})
    await driver.tick(now)                           # virtual time is what ticks say
    assert [told["head"] for told in driver.sent("feeds.channel-dirty")] == [3]
    driver.restart()                                 # another worker takes over: tables stay, memory goes
    assert driver.row("channel_heads", "c1")         # a table's row as bytes, as its changelog has it

docs/driver.md shows more, and the tests run it. What an agent sends is acknowledged at once; between `hold` and `release`
nothing is, and an agent waits, as it does for a broker that is slow.

An event of a topic without a key (`feeds.novelty`) is for a partition: `publish(…, partition=driver.partition_of("u1"))`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka.partitioner import murmur2

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, make_headers
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, keyed_partitions
from highwater.streams import app
from highwater.streams.agents import GROUP, TableAgent, Wiring
from highwater.streams.feeds.policy import Policy, load_policy
from highwater.streams.folding import Batch
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake, Learn, Record
from highwater.streams.settings import Settings, read_settings

# What hears of a row that was written: partition, key, and the row, None when it was deleted.
Watch = Callable[[int, bytes, bytes | None], None]

_TICKS = "ticks"


class AgentFailedError(AssertionError):
    """An agent could not get past an event; a worker would have ended there. The cause is in the line."""


@dataclass(slots=True)
class Delivered:
    """One record as an agent reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any = ()
    timestamp: float | None = None


class Sent(NamedTuple):
    """What an agent sent: where it lies, its key, its event (None for a dead letter), and the bytes and headers of the record."""

    position: Position
    key: bytes | None
    event: Mapping[str, Any] | None
    value: bytes | None
    headers: Headers


class Table:
    """Rows of bytes by partition. An agent sees those of the partition whose event it deals with, as in the library."""

    offset_key = b"\x00offset"  # the library keeps one beside the rows; here there is none

    def __init__(self) -> None:
        self.partitions: dict[int, dict[bytes, bytes]] = {}
        self.partition = 0
        self.watch: Watch | None = None

    @property
    def data(self) -> Table:
        """Its store."""
        return self

    def _db_for_partition(self, partition: int) -> dict[bytes, bytes]:
        return self.partitions.setdefault(partition, {})

    def __getitem__(self, key: bytes) -> bytes:
        return self._db_for_partition(self.partition)[key]

    def __setitem__(self, key: bytes, row: bytes) -> None:
        self._db_for_partition(self.partition)[key] = row
        self._written(key, row)

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """The row of a key."""
        return self._db_for_partition(self.partition).get(key, default)

    def pop(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Delete the row of a key; what it was."""
        row = self._db_for_partition(self.partition).pop(key, default)
        self._written(key, None)
        return row

    def _written(self, key: bytes, row: bytes | None) -> None:
        if self.watch is not None:
            self.watch(self.partition, key, row)

    def rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Every row as partition, key, bytes."""
        for partition, rows in self.partitions.items():
            for key, row in rows.items():
                yield partition, key, row


class Driver:
    """Agents with their tables, no broker.

    Args:
        agents: which ones by name (`users`, `channels`, …); none = all.
        settings: what they decide by; those of an empty environment when not given.
        policy: instead of the one that the settings name.
        codec: for records with the ids of a registry; else one with ids of its own.
        learn: teaches the codec an id that it does not know.
    """

    def __init__(
        self,
        *agents: str,
        settings: Settings | None = None,
        policy: Policy | None = None,
        codec: Codec | None = None,
        learn: Learn | None = None,
    ) -> None:
        self.settings = settings or read_settings({})
        self.codec = codec or Codec({name: number for number, name in enumerate(TOPICS, start=1)})
        self._learn = learn or _learn_nothing
        makers = app.agent_makers(self.settings, policy or load_policy(self.settings.policy_file))
        kinds = {kind.name: kind for kind in app.AGENT_KINDS}
        unknown = set(agents) - set(kinds)
        if unknown:
            raise ValueError(f"there is no agent {', '.join(sorted(unknown))}; there are {', '.join(kinds)}")
        self._makers = {name: makers[kind] for name, kind in kinds.items() if name in agents or not agents}
        self._tables = {name: Table() for name in (*app.AGENT_KINDS.values(), _TICKS)}
        self._table_of = {name: app.AGENT_KINDS[kinds[name]] for name in self._makers}
        self._offsets: dict[tuple[str, int], int] = {}
        self._acknowledged = asyncio.Event()
        self._acknowledged.set()
        self._asked = asyncio.Event()
        self.outputs: list[Sent] = []
        self.keeps_outputs = True
        self.on_sent: Callable[[Sent], None] | None = None
        self.now_ms = 0
        self.restart()

    # -- what goes in --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        event: Mapping[str, Any] | bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        appended_ms: int | None = None,
    ) -> Position:
        """Append an event, or raw bytes, to a topic and let the agents that read it deal with it; its position.

        Without a partition it goes where its key belongs, the key being that of the catalogue unless one is given.
        `appended_ms` is the broker's time; without one no tick is of the future.
        """
        if isinstance(event, Mapping):
            key = key if key is not None else TOPICS[topic].key_of(event) if TOPICS[topic].key else None
            value: bytes | None = self.codec.encode(topic, event)
        else:
            value = event
        if partition is None:
            partition = self.partition_of(key or "", topic)
        position = self._append(topic, partition)
        if headers is None:
            headers = make_headers(
                event_id=str(position), event_type=topic, source="driver", now_ms=self.now_ms, caused_by=None
            )
        timestamp = None if appended_ms is None else appended_ms / 1000
        await self.deliver(
            Delivered(topic, partition, position.offset, (key or "").encode() or None, value, headers, timestamp)
        )
        return position

    async def deliver(self, record: Record) -> None:
        """Let the agents deal with a record as it lies in a log; the same again is a redelivery.

        Raises:
            AgentFailedError: an agent cannot get past it.
        """
        self._note_offset(record)
        await self._run(record)

    async def deliver_batch(self, records: Sequence[Record]) -> None:
        """The same with two or more records of one partition at once, as a worker has them of folded topics.

        Raises:
            AgentFailedError: an agent cannot get past one of them.
        """
        self._note_offset(records[-1])
        await self._run(_Batch(records[0].topic, records[0].partition, records))

    def _note_offset(self, record: Record) -> None:
        place = record.topic, record.partition
        self._offsets[place] = max(self._offsets.get(place, 0), record.offset + 1)

    async def _run(self, given: Record | _Batch) -> None:
        for agent in self._readers.get(given.topic, ()):
            for table in self._tables.values():
                table.partition = given.partition
            await agent.run(_Stream(given))

    async def tick(
        self, now_ms: int, *, partitions: Iterable[int] | None = None, appended_ms: int | None = None
    ) -> None:
        """Move virtual time to `now_ms` and let every partition have its tick; `appended_ms`: by the broker's clock."""
        self.now_ms = now_ms
        number = now_ms // max(1, int(self.settings.tick_seconds * 1000))
        for partition in range(self.settings.partitions) if partitions is None else partitions:
            tick = {"number": number, "now": now_ms, "clock_offset_ms": 0}
            await self.publish(TICK, tick, partition=partition, appended_ms=appended_ms)

    async def advance(self, until_ms: int) -> None:
        """Tick at each full tick after the last one up to `until_ms`."""
        step_ms = max(1, int(self.settings.tick_seconds * 1000))
        for now_ms in range((self.now_ms // step_ms + 1) * step_ms, until_ms + 1, step_ms):
            await self.tick(now_ms)

    def hold(self) -> None:
        """Acknowledge nothing from now on: an agent that sends waits, and has written no row of what it decided."""
        self._acknowledged.clear()
        self._asked.clear()

    def release(self) -> None:
        """Acknowledge what waits, and again at once."""
        self._acknowledged.set()

    async def until_sent(self) -> None:
        """Wait until something was sent since `hold`; what was published then runs as a task beside."""
        await self._asked.wait()

    def restart(self) -> None:
        """Another worker takes over: what the tables and the log hold stays, what was in memory is gone."""
        heartbeats = Heartbeats(list(self._makers))
        wiring = Wiring(self.codec, self._send, heartbeats, _fail, lambda _noted: None)
        self._readers: dict[str, list[TableAgent]] = {}
        self.agents: dict[str, TableAgent] = {}
        for name, make in self._makers.items():
            intake = Intake(GROUP, self.codec, self._learn, self._send)
            agent = make(wiring, intake, self._tables[self._table_of[name]], self._tables[_TICKS])
            self.agents[name] = agent
            for topic in agent.topics:
                self._readers.setdefault(topic, []).append(agent)

    # -- what comes out ------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> frozenset[str]:
        """What the agents read."""
        return frozenset(self._readers)

    @property
    def sources(self) -> Mapping[str, Sequence[str]]:
        """Table -> the topics of the agents that write it."""
        return {self._table_of[name]: agent.topics for name, agent in self.agents.items()}

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of the agents by name, and `ticks`."""
        return {name: self._tables[name] for name in (*self._table_of.values(), _TICKS)}

    def sent(self, topic: str) -> list[Mapping[str, Any]]:
        """The events that were sent to a topic, in order."""
        return [one.event for one in self.outputs if one.position.topic == topic and one.event is not None]

    def dead_letters(self, topic: str) -> list[Sent]:
        """What of a topic was put aside."""
        return [one for one in self.outputs if one.position.topic == topic + DEAD_LETTER_SUFFIX]

    def row(self, table: str, key: str | bytes) -> bytes | None:
        """A table's row, whatever its partition; None when there is none."""
        wanted = key.encode() if isinstance(key, str) else key
        return next((row for _, held, row in self._tables[table].rows() if held == wanted), None)

    @staticmethod
    def partition_of(key: str, topic: str | None = None) -> int:
        """The partition of a key, as every producer of the product chooses it."""
        partitions = keyed_partitions() if topic is None else TOPICS[topic].partitions
        return int(murmur2(key.encode()) & 0x7FFFFFFF) % partitions

    # -- the outside as the agents see it ------------------------------------------------------------------------------

    def _append(self, topic: str, partition: int) -> Position:
        offset = self._offsets.get((topic, partition), 0)
        self._offsets[topic, partition] = offset + 1
        return Position(topic, partition, offset)

    async def _send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> Awaitable[Any]:
        is_dead = topic.endswith(DEAD_LETTER_SUFFIX)
        if partition is None:
            partition = 0 if is_dead else self.partition_of((key or b"").decode(), topic)
        position = self._append(topic, partition)
        sent = Sent(position, key, None if is_dead else self.codec.decode(topic, value), value, headers)
        if self.keeps_outputs:
            self.outputs.append(sent)
        if self.on_sent is not None:
            self.on_sent(sent)
        self._asked.set()
        return self._acknowledge(position)

    async def _acknowledge(self, position: Position) -> Position:
        await self._acknowledged.wait()
        return position


@dataclass(frozen=True)
class _Batch(Batch):
    topic: str
    partition: int
    records: Sequence[Record]

    def alone(self, record: Record) -> Record:
        """The record."""
        return record


@dataclass(frozen=True, slots=True)
class _Event:
    message: Record | _Batch


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of one record."""

    record: Record | _Batch

    async def events(self) -> AsyncIterator[_Event]:
        """The record, once."""
        yield _Event(self.record)


async def _learn_nothing(_schema_id: int) -> None:
    """The codec knows all ids."""


def _fail(reason: str) -> None:
    raise AgentFailedError(reason)
