"""Runs the agents without a broker: give them events and virtual time, then check what they sent and what their tables
contain.

Invariant: these are the product's own agents, called as the stream library calls them (`TableAgent.run`), so the result
of a test here is valid for a worker. Nothing waits, and nothing reads a clock. Tests of agents use it; `highwater
verify` replays the log with it.

    driver = Driver("channels")
    await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": 3, "arrived_at": now})
    await driver.tick(now)                           # ticks set the virtual time
    assert [event["head"] for event in driver.sent("feeds.channel-dirty")] == [3]
    driver.restart()                                 # another worker takes over: tables stay, memory goes
    assert driver.row("channel_heads", "c1")         # a table's row as bytes, as its changelog has it

docs/driver.md shows more, and the tests run its examples. All that an agent sends is acknowledged at once; between
`hold` and `release` nothing is acknowledged and the agent waits, as it does for a slow broker.

An event of a topic without a key (`feeds.novelty`) needs a partition: `publish(…,
partition=driver.partition_of("u1"))`.
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

# Called with a written row: partition, key, and the row, None if it was deleted.
Watch = Callable[[int, bytes, bytes | None], None]

_TICKS = "ticks"


class AgentFailedError(AssertionError):
    """An agent could not get past an event; a worker would have ended there. The cause is in the line."""


@dataclass(slots=True)
class Delivered:
    """A record as an agent reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any = ()
    timestamp: float | None = None


class Sent(NamedTuple):
    """A record that an agent sent: position, key, event (None for a dead letter), bytes and headers."""

    position: Position
    key: bytes | None
    event: Mapping[str, Any] | None
    value: bytes | None
    headers: Headers


class Table:
    """Rows of bytes by partition. An agent sees the rows of the partition whose event it processes, as in the library."""

    offset_key = b"\x00offset"  # the library keeps one beside the rows; here there is none

    def __init__(self) -> None:
        self.partitions: dict[int, dict[bytes, bytes]] = {}
        self.partition = 0
        self.watch: Watch | None = None

    @property
    def data(self) -> Table:
        """Return the store of the table: the table itself."""
        return self

    def _db_for_partition(self, partition: int) -> dict[bytes, bytes]:
        return self.partitions.setdefault(partition, {})

    def __getitem__(self, key: bytes) -> bytes:
        return self._db_for_partition(self.partition)[key]

    def __setitem__(self, key: bytes, row: bytes) -> None:
        self._db_for_partition(self.partition)[key] = row
        self._written(key, row)

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the row of a key."""
        return self._db_for_partition(self.partition).get(key, default)

    def pop(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Delete the row of a key and return it."""
        row = self._db_for_partition(self.partition).pop(key, default)
        self._written(key, None)
        return row

    def _written(self, key: bytes, row: bytes | None) -> None:
        if self.watch is not None:
            self.watch(self.partition, key, row)

    def rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield every row as partition, key and bytes."""
        for partition, rows in self.partitions.items():
            for key, row in rows.items():
                yield partition, key, row


class Driver:
    """Agents with their tables, without a broker.

    Args:
        agents: names of the agents to run (`users`, `channels`, …). Default: all.
        settings: settings of the agents. Default: those of an empty environment.
        policy: rebuild policy, in place of the one that the settings name.
        codec: codec with the ids of a registry, for recorded events. Default: one with ids of its own.
        learn: called with a schema id that the codec does not know, to add it.
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

    # -- inputs --------------------------------------------------------------------------------------------------------

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
        """Append an event, or raw bytes, to a topic, run the agents that read it, and return its position.

        By default the key is that of the catalogue, and the partition follows from the key. `appended_ms` is the broker's time;
        without it no tick counts as being in the future.
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
        """Run the agents on a record of a log; delivering the same record again is a redelivery.

        Raises:
            AgentFailedError: an agent cannot process it.
        """
        self._note_offset(record)
        await self._run(record)

    async def deliver_batch(self, records: Sequence[Record]) -> None:
        """Run the agents on two or more records of one partition at once, as a worker does for folded topics.

        Raises:
            AgentFailedError: an agent cannot process one of them.
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
        """Set virtual time to `now_ms` and publish a tick to every partition; `appended_ms` is the broker's time."""
        self.now_ms = now_ms
        number = now_ms // max(1, int(self.settings.tick_seconds * 1000))
        for partition in range(self.settings.partitions) if partitions is None else partitions:
            tick = {"number": number, "now": now_ms, "clock_offset_ms": 0}
            await self.publish(TICK, tick, partition=partition, appended_ms=appended_ms)

    async def advance(self, until_ms: int) -> None:
        """Publish every tick that is due after the last one, up to `until_ms`."""
        step_ms = max(1, int(self.settings.tick_seconds * 1000))
        for now_ms in range((self.now_ms // step_ms + 1) * step_ms, until_ms + 1, step_ms):
            await self.tick(now_ms)

    def hold(self) -> None:
        """Stop acknowledging: an agent that sends now waits, before it writes the row of its decision."""
        self._acknowledged.clear()
        self._asked.clear()

    def release(self) -> None:
        """Acknowledge what waits, and acknowledge at once again."""
        self._acknowledged.set()

    async def until_sent(self) -> None:
        """Wait until an agent has sent something since `hold`; run the `publish` that causes it as a task."""
        await self._asked.wait()

    def restart(self) -> None:
        """Replace the agents, as when another worker takes over: tables and log stay, what was in memory is lost."""
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

    # -- outputs -------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics that the agents read."""
        return frozenset(self._readers)

    @property
    def sources(self) -> Mapping[str, Sequence[str]]:
        """Return the topics of the agents that write each table, by table."""
        return {self._table_of[name]: agent.topics for name, agent in self.agents.items()}

    @property
    def tables(self) -> Mapping[str, Table]:
        """Return the tables of the agents, and `ticks`, by name."""
        return {name: self._tables[name] for name in (*self._table_of.values(), _TICKS)}

    def sent(self, topic: str) -> list[Mapping[str, Any]]:
        """Return the events sent to a topic, in order."""
        return [one.event for one in self.outputs if one.position.topic == topic and one.event is not None]

    def dead_letters(self, topic: str) -> list[Sent]:
        """Return the dead letters of a topic."""
        return [one for one in self.outputs if one.position.topic == topic + DEAD_LETTER_SUFFIX]

    def row(self, table: str, key: str | bytes) -> bytes | None:
        """Return the row of a key from any partition of a table; None if there is none."""
        wanted = key.encode() if isinstance(key, str) else key
        return next((row for _, held, row in self._tables[table].rows() if held == wanted), None)

    @staticmethod
    def partition_of(key: str, topic: str | None = None) -> int:
        """Return the partition of a key, as every producer of the product chooses it."""
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
        """Return the record."""
        return record


@dataclass(frozen=True, slots=True)
class _Event:
    message: Record | _Batch


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of one record."""

    record: Record | _Batch

    async def events(self) -> AsyncIterator[_Event]:
        """Yield the record, once."""
        yield _Event(self.record)


async def _learn_nothing(_schema_id: int) -> None:
    """Do nothing: the codec knows all ids."""


def _fail(reason: str) -> None:
    raise AgentFailedError(reason)
