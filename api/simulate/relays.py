"""Rows of the outbox in transit: written by sinks, shared out among relays by leases, published to the log, read by the members
of a group under their positions. Relays, leases, positions and epochs are the product's own code; the store and the log are not.

The invariants, from ARCHITECTURE.md: one owner per lease, with epochs that grow; a record's effect is stored once, in the log's
order; no row is lost; a reader that knows of a newer epoch processes nothing of an older one; everything arrives finally.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from highwater.api.simulate.patches import Patches
from highwater.api.simulate.store import TOPIC, Session, Store
from highwater.api.simulate.virtual import run_virtually
from highwater.api.simulate.world import CutError, Process, Trouble, World, clock
from highwater.connectors.engines import engine as working
from highwater.connectors.engines import watch as watching
from highwater.connectors.kafka import outbox, positions
from highwater.connectors.kafka.consumer import without_overtaken
from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.positions import Move
from highwater.connectors.kafka.records import Record
from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LeaseKind
from highwater.connectors.waiting import pause
from highwater.schemas.errors import FencedError
from highwater.schemas.positions import Position
from highwater.streams import relay_epochs
from highwater.streams.retry import unavailable_seconds

GROUP = "readers"
PARTITIONS = 2
KEYS = 8
LEASE_SECONDS = 3.0
# Longer than a lease and a member's session, so that a stopped process continues after it was replaced.
STOP_SECONDS_MAX = 7.0
TROUBLE_SECONDS = 16.0
# From the last trouble until everything has arrived: leases end, members are replaced, and a pause between attempts may be 5 s.
CALM_SECONDS_MAX = 60.0
_BATCH_MAX = 4
_SESSION_SECONDS = 3.0
# A session between the broker and a stopped or killed process may hold these.
_IN_FLIGHT_MAX = 3


@dataclass
class Logged:
    """A record as it stands in the log."""

    row: int
    key: bytes
    headers: list[tuple[str, bytes]]


class Log:
    """Partitions of one topic, and a group of two members to which they are assigned."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: list[list[Logged]] = [[] for _ in range(PARTITIONS)]
        self.members: dict[Process, float] = {}
        self.generation = 0
        self.has_more = asyncio.Event()

    def append(self, partition: int, record: Logged) -> int:
        """The broker takes a record."""
        self.partitions[partition].append(record)
        self.has_more.set()
        self.world.stepped()
        return len(self.partitions[partition]) - 1

    def heartbeat(self, member: Process) -> tuple[int, list[int]]:
        """A member sends a heartbeat; return the generation, and its assignment."""
        now = self.world.now
        gone = [one for one, at in self.members.items() if now - at > _SESSION_SECONDS or not one.is_alive]
        for one in gone:
            del self.members[one]
        if gone or member not in self.members:
            self.generation += 1
        self.members[member] = now
        names = sorted(one.name for one in self.members)
        mine = names.index(member.name)
        return self.generation, [number for number in range(PARTITIONS) if number % len(names) == mine]


class Producer:
    """A client of the broker: records are appended in order, some time after they were handed over."""

    def __init__(self, log: Log, owner: Process) -> None:
        self._log = log
        self._waiting: asyncio.Queue[tuple[int, Logged, asyncio.Future[Any]]] = asyncio.Queue()
        owner.start(self._send(owner))

    async def enqueue(
        self, topic: str, value: bytes, *, key: bytes, headers: Any, partition: int
    ) -> asyncio.Future[Any]:
        """Hand over a record; the future has its acknowledgement."""
        assert topic == TOPIC
        taken: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((partition, Logged(int(value), key, headers), taken))
        return taken

    async def _send(self, owner: Process) -> None:
        in_hand: list[tuple[int, Logged]] = []
        try:
            while True:
                partition, record, taken = await self._waiting.get()
                in_hand = [(partition, record)]
                await asyncio.sleep(self._log.world.delay())
                await owner.running()
                offset = self._log.append(partition, record)
                in_hand = []
                await asyncio.sleep(self._log.world.delay())
                await owner.running()
                if not taken.done():
                    taken.set_result(Position(TOPIC, partition, offset))
        except asyncio.CancelledError:
            # Killed: records in transit may still arrive, in order.
            while not self._waiting.empty() and len(in_hand) < _IN_FLIGHT_MAX:
                partition, record, _ = self._waiting.get_nowait()
                in_hand.append((partition, record))
            for partition, record in in_hand[: self._log.world.dice.randrange(_IN_FLIGHT_MAX + 1)]:
                self._log.append(partition, record)
            raise


@dataclass
class Effect:
    """A record as a reader has dealt with it, in the order of commits."""

    partition: int
    offset: int
    row: int
    key: bytes
    shard: int
    epoch: int


class Scenario:
    """Two relays, two readers and a sink that writes rows."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.store = Store(self.world)
        self.log = Log(self.world)
        self.relays: dict[Process, Relay] = {}
        self.written: dict[int, bytes] = {}
        self.effects: list[Effect] = []
        self._owners = iter(range(1_000_000))
        self._epochs: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[int, int], int] = {}
        self.world.check_with(self._check_leases)

    # -- processes -------------------------------------------------------------------------------------------------------

    def fresh_owner(self) -> str:
        """A relay's id."""
        return f"owner-{next(self._owners)}"

    def start_relay(self) -> None:
        """A relay in a process of its own."""
        owner = self.world.process(f"relay-{len(self.relays)}")
        relay = Relay("", Producer(self.log, owner), lease_seconds=LEASE_SECONDS)  # type: ignore[arg-type]
        self.relays[owner] = relay
        owner.start(relay.run(asyncio.Event()))

    def start_reader(self, name: str) -> None:
        """A member of the group in a process of its own."""
        owner = self.world.process(name)
        owner.start(Reader(self, owner).run())

    def restart(self, killed: Process) -> None:
        """Restart a process, as a supervisor does."""
        if self.relays.pop(killed, None) is not None:
            self.start_relay()
        else:
            self.start_reader(killed.name + "'")

    async def write(self, seconds: float) -> None:
        """Rows of sinks."""
        dice = self.world.dice
        until = self.world.now + seconds
        while self.world.now < until:
            await asyncio.sleep(dice.expovariate(4))
            for _ in range(dice.randint(1, 4)):
                key = b"key-%d" % dice.randrange(KEYS)
                number = int(key[-1:])
                self.written[self.store.add(number % outbox.SHARDS, number % PARTITIONS, key)] = key

    async def run(self) -> None:
        """Trouble for a while, then calm until everything has arrived."""
        for _ in range(2):
            self.start_relay()
        for number in range(2):
            self.start_reader(f"reader-{number}")
        trouble = Trouble(self.world, every_seconds=1.2, stop_seconds_max=STOP_SECONDS_MAX)
        await asyncio.gather(self.write(TROUBLE_SECONDS), trouble.run(TROUBLE_SECONDS, self.restart))
        until = self.world.now + CALM_SECONDS_MAX
        while not self._is_at_rest() and self.world.now < until and not self.world.problems:  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0.1)
        if not self._is_at_rest():
            self.world.found(f"{len(self.store.outbox)} rows of the outbox, {self._behind()} records are stuck")
        self._check_effects()

    def _behind(self) -> int:
        ends = sum(map(len, self.log.partitions))
        return ends - sum(next_ for (group, *_), next_ in self.store.positions.items() if group == GROUP)

    def _is_at_rest(self) -> bool:
        return not self.store.outbox and self._behind() == 0

    # -- invariants ------------------------------------------------------------------------------------------------------

    def _check_leases(self) -> None:
        """Epochs grow; who runs and has a whole connection holds nothing that is another's."""
        for name, row in self.store.leases.items():
            if row.epoch < self._epochs.get(name, 0):
                self.world.found(f"the epoch of lease {name} went back to {row.epoch}")
            self._epochs[name] = row.epoch
        for owner, relay in self.relays.items():
            if not (owner.is_running and owner.sessions):
                continue
            now = owner.clock()
            for shard, lease in relay._leases._held.items():
                stored = self.store.leases.get((LeaseKind.OUTBOX, shard))
                if lease.is_held(now) and stored is not None and stored.epoch > lease.epoch:
                    self.world.found(f"{owner.name} continues with shard {shard}, which {stored.owner} has")

    def applied(self, effect: Effect) -> None:
        """An invariant of each step of a reader: nothing of an older epoch behind a newer one."""
        place = (effect.partition, effect.shard)
        if effect.epoch < self._newest.get(place, 0):
            self.world.found(f"row {effect.row} was taken from a relay that was overtaken")
        self._newest[place] = max(effect.epoch, self._newest.get(place, 0))
        self.effects.append(effect)

    def _check_effects(self) -> None:
        places = [(one.partition, one.offset) for one in self.effects]
        if len(set(places)) < len(places):
            self.world.found("a record has its effect twice")
        for number in range(PARTITIONS):
            offsets = [offset for partition, offset in places if partition == number]
            if offsets != sorted(offsets):
                self.world.found("records have their effects out of order")
        last: dict[bytes, int] = {}
        seen: set[int] = set()
        for one in self.effects:
            # A row may come again, with all that follow it; none comes for the first time behind one that is newer.
            if one.row not in seen and one.row < last.get(one.key, 0):
                self.world.found(f"row {one.row} of {one.key!r} came behind row {last[one.key]}")
            seen.add(one.row)
            last[one.key] = one.row
        lost = set(self.written) - {one.row for one in self.effects}
        if lost:
            self.world.found(f"rows {sorted(lost)} are lost")
        for key, row in last.items():
            newest = max(number for number, of in self.written.items() if of == key)
            if row != newest:
                self.world.found(f"the last that is known of {key!r} is row {row}, it should be {newest}")


class Reader:
    """A member of the group, as `BatchConsumer` is one: positions and epochs from the store, effects under both."""

    def __init__(self, scenario: Scenario, owner: Process) -> None:
        self._of = scenario
        self._owner = owner
        self._generation = -1
        self._next: dict[tuple[str, int], int] = {}
        self._epochs: dict[tuple[str, int], dict[int, relay_epochs.Epoch]] = {}
        self._session: Session | None = None

    async def run(self) -> None:
        """Read until the process ends."""
        attempt = 0
        while True:
            try:
                await self._turn()
                attempt = 0
            except (CutError, FencedError) as error:
                attempt += 1
                self._generation = -1
                if isinstance(error, CutError):
                    self._session = None
                    await pause(asyncio.Event(), unavailable_seconds(attempt))

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self._of.store.session(self._owner)
        return self._session

    async def _turn(self) -> None:
        await self._owner.running()
        generation, mine = self._of.log.heartbeat(self._owner)
        if generation != self._generation:
            await self._load([(TOPIC, number) for number in mine])
            self._generation = generation
        records = self._poll()
        if not records:
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(self._of.world.delay())
        await self._store(records)

    async def _load(self, places: list[tuple[str, int]]) -> None:
        async with self._connected().transaction() as tx:
            known = dict.fromkeys(places, 0)
            found = await positions.load(tx, GROUP, places, topic_ids={TOPIC: "id"}, lows=known)
            epochs = await positions.load_epochs(tx, GROUP)
        self._next = {place: stored.next for place, stored in found.items()}
        self._epochs = epochs

    def _poll(self) -> list[Record]:
        found = []
        for place, following in self._next.items():
            logged = self._of.log.partitions[place[1]][following : following + _BATCH_MAX]
            found += [
                Record(*place, following + n, 0, one.key, b"%d" % one.row, one.headers) for n, one in enumerate(logged)
            ]
        return found

    async def _store(self, records: list[Record]) -> None:
        last = {(one.topic, one.partition): one.offset for one in records}
        moves = [Move(*place, "id", self._next[place], offset + 1) for place, offset in last.items()]
        current, raised = without_overtaken(records, self._epochs)
        async with self._connected().transaction() as tx:
            await positions.advance(tx, GROUP, moves)
            await positions.raise_epochs(tx, GROUP, raised)
            for record in current:
                tx.writes.append(lambda record=record: self._of.applied(_effect(record)))
        for move in moves:
            self._next[move.topic, move.partition] = move.next
        for place, epochs in raised.items():
            self._epochs.setdefault(place, {}).update(epochs)


def _effect(record: Record) -> Effect:
    stamp = relay_epochs.stamp_of(record.topic, record.headers)
    assert stamp is not None
    assert record.key is not None
    assert record.value is not None
    return Effect(record.partition, record.offset, int(record.value), record.key, stamp.shard, stamp.epoch)


@contextmanager
def in_virtual_time() -> Iterator[Patches]:
    """The product's clocks and ids are those of the simulation; what a test plants goes with it."""
    patch = Patches()
    try:
        patch.setattr(leases, "lease_seconds", clock)
        patch.setattr(outbox, "monotonic_seconds", clock)
        for module in (watching, working):
            patch.setattr(module, "monotonic_seconds", clock)
        yield patch
    finally:
        patch.undo()


def problems_of(seed: int, patch: Patches) -> tuple[list[str], int]:
    """The violations of the invariants with a seed, and the number of checked steps."""
    found: list[Scenario] = []

    async def main() -> None:
        scenario = Scenario(seed)
        patch.setattr(outbox, "open_connection", scenario.store.connect)
        patch.setattr(outbox, "fresh_id", scenario.fresh_owner)
        found.append(scenario)
        await scenario.run()

    with structlog.testing.capture_logs():  # the logs of simulated processes are not read
        run_virtually(main())
    return found[0].world.problems, found[0].world.steps
