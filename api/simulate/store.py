"""The part of PostgreSQL that these protocols use: leases, positions, the outbox, each statement by its text.

Invariant: a statement is one step, a transaction's writes appear together or not at all, and a row that a transaction has changed
is locked until it ends. The statements themselves are tested on the real server
(`tests/integration/postgres/test_interleavings.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from highwater.api.simulate.world import CutError, Process, World, process
from highwater.connectors.kafka.statements import QUERIES as KAFKA
from highwater.connectors.postgres.pool import connecting_error
from highwater.connectors.postgres.statements import QUERIES as POSTGRES

Row = dict[str, Any]
NEVER = float("-inf")


@dataclass
class LeaseRow:
    """A row of `leases`."""

    owner: str
    epoch: int
    expires_at: float
    session: Session | None


@dataclass
class OutboxRow:
    """A row of `outbox`."""

    id: int
    shard: int
    partition: int
    key: bytes


class Store:
    """The tables."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leases: dict[tuple[str, str], LeaseRow] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.positions: dict[tuple[str, str, int], int] = {}
        self.relay_epochs: dict[tuple[str, str, int, int], tuple[int, int]] = {}
        self.effects: list[Any] = []
        self.locks: dict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.ids = itertools.count(1)
        self.doing: dict[str, Callable[..., Any]] = {
            POSTGRES["take_leases"]: self._take,
            POSTGRES["renew_leases"]: self._renew,
            POSTGRES["release_leases"]: self._release,
            POSTGRES["drop_leases"]: self._drop,
            POSTGRES["live_leases"]: self._live,
            POSTGRES["drop_ended_leases"]: lambda _session, _kind: [],
            KAFKA["outbox_take"]: self._outbox_take,
            KAFKA["outbox_delete"]: self._outbox_delete,
            KAFKA["insert_positions"]: self._insert_positions,
            KAFKA["positions_of"]: self._positions_of,
            KAFKA["relay_epochs_of"]: self._relay_epochs_of,
        }
        # Statements that a transaction's end is waited for.
        self.doing_in_tx: dict[str, Callable[..., Any]] = {
            KAFKA["advance_positions"]: self._advance,
            KAFKA["raise_relay_epochs"]: self._raise_epochs,
        }

    def session(self, owner: Process) -> Session:
        """A connection of a process."""
        made = Session(self, owner)
        owner.sessions.append(made)
        return made

    async def connect(self, _url: str, **_options: Any) -> Session:
        """In place of `pool.open_connection`: a connection of the process that asks."""
        session = self.session(process())
        try:
            await session.port()
        except CutError as error:
            raise connecting_error(error) from error
        return session

    # -- leases ----------------------------------------------------------------------------------------------------------

    def is_live(self, row: LeaseRow) -> bool:
        """`lease_is_live`."""
        return row.expires_at > self.world.now and (row.session is None or row.session.is_there)

    def _take(
        self, session: Session, kind: str, names: Sequence[str], owner: str, seconds: float, ends: bool
    ) -> list[Row]:
        taken = []
        for name in sorted(names):
            row = self.leases.get((kind, name))
            if row is not None and row.owner != owner and self.is_live(row):
                continue
            # As the server's clock, which the epoch begins at, but never below the one before.
            epoch = max(int(self.world.now * 1000), 0 if row is None else row.epoch + 1)
            made = LeaseRow(owner, epoch, self.world.now + seconds, session if ends else None)
            self.leases[kind, name] = made
            taken.append({"name": name, "epoch": epoch})
        return taken

    def _owned(self, kind: str, names: Sequence[str], epochs: Sequence[int], owner: str) -> list[tuple[str, LeaseRow]]:
        held = [(name, self.leases.get((kind, name)), epoch) for name, epoch in zip(names, epochs, strict=True)]
        return [(name, row) for name, row, epoch in held if row and (row.epoch, row.owner) == (epoch, owner)]

    def _renew(
        self, _: Session, kind: str, names: Sequence[str], epochs: Sequence[int], owner: str, seconds: float
    ) -> list[Row]:
        rows = self._owned(kind, names, epochs, owner)
        for _name, row in rows:
            row.expires_at = self.world.now + seconds
        return [{"name": name} for name, _row in rows]

    def _release(self, _: Session, kind: str, names: Sequence[str], epochs: Sequence[int], owner: str) -> list[Row]:
        for _name, row in self._owned(kind, names, epochs, owner):
            row.expires_at, row.session = NEVER, None
        return []

    def _drop(self, _: Session, kind: str, names: Sequence[str], epochs: Sequence[int], owner: str) -> list[Row]:
        for name, _row in self._owned(kind, names, epochs, owner):
            del self.leases[kind, name]
        return []

    def _live(self, _: Session, kind: str) -> list[Row]:
        living = [(name, row) for (of, name), row in sorted(self.leases.items()) if of == kind and self.is_live(row)]
        return [{"name": name, "owner": row.owner, "epoch": row.epoch} for name, row in living]

    # -- the outbox ------------------------------------------------------------------------------------------------------

    def add(self, shard: int, partition: int, key: bytes) -> int:
        """A row, as a sink's transaction adds it."""
        number = next(self.ids)
        self.outbox[number] = OutboxRow(number, shard, partition, key)
        return number

    def _outbox_take(self, _: Session, shards: Sequence[int], most: int) -> list[Row]:
        rows = [row for number, row in sorted(self.outbox.items()) if row.shard in shards][:most]
        return [
            {"id": row.id, "shard": row.shard, "topic": TOPIC, "partition": row.partition, "key": row.key,
             "value": b"%d" % row.id, "headers": b"[]"}
            for row in rows
        ]  # fmt: skip

    def _outbox_delete(
        self, _: Session, ids: Sequence[int], kind: str, names: Sequence[str], epochs: Sequence[int], owner: str
    ) -> list[Row]:
        shards = {int(name) for name, _row in self._owned(kind, names, epochs, owner)}
        for number in ids:
            if number in self.outbox and self.outbox[number].shard in shards:
                del self.outbox[number]
        return []

    # -- positions -------------------------------------------------------------------------------------------------------

    def _insert_positions(
        self, _: Session, group: str, topics: Sequence[str], places: Sequence[int], _ids: Any, lows: Sequence[int]
    ) -> list[Row]:
        for topic, place, low in zip(topics, places, lows, strict=True):
            self.positions.setdefault((group, topic, place), low)
        return []

    def _positions_of(self, _: Session, group: str) -> list[Row]:
        return [
            {"topic": topic, "partition": place, "topic_id": "id", "next": following, "leader_epoch": None}
            for (of, topic, place), following in sorted(self.positions.items())
            if of == group
        ]

    def _relay_epochs_of(self, _: Session, group: str) -> list[Row]:
        return [
            {"topic": topic, "partition": place, "shard": shard, "epoch": epoch, "offset": offset}
            for (of, topic, place, shard), (epoch, offset) in sorted(self.relay_epochs.items())
            if of == group
        ]

    async def _advance(
        self, tx: Transaction, group: str, topics: Sequence[str], places: Sequence[int], _ids: Any,
        expected: Sequence[int], following: Sequence[int], _leader_epochs: Any,
    ) -> str:  # fmt: skip
        moved = 0
        for topic, place, before, after in zip(topics, places, expected, following, strict=True):
            row = (group, topic, place)
            await tx.lock(row)
            if self.positions.get(row) == before:
                moved += 1
                tx.writes.append(partial(self.positions.__setitem__, row, after))
        return f"UPDATE {moved}"

    async def _raise_epochs(
        self, tx: Transaction, group: str, topics: Sequence[str], places: Sequence[int], shards: Sequence[int],
        epochs: Sequence[int], offsets: Sequence[int],
    ) -> str:  # fmt: skip
        for topic, place, shard, *found in zip(topics, places, shards, epochs, offsets, strict=True):
            row = (group, topic, place, shard)
            tx.writes.append(partial(self.relay_epochs.__setitem__, row, (found[0], found[1])))
        return "INSERT"


TOPIC = "feeds.channel-advanced"


class Session:
    """A connection: each statement is one step at a moment of the dice's choosing, unless the connection is cut before."""

    def __init__(self, store: Store, owner: Process) -> None:
        self._store = store
        self._owner = owner
        self.is_there = True  # as the server has it
        self._is_cut = False

    def cut(self) -> None:
        """The connection ends; the server knows at once, its client when it uses it."""
        self.is_there = False
        self._is_cut = True
        if self in self._owner.sessions:
            self._owner.sessions.remove(self)

    def terminate(self) -> None:
        """The client ends it."""
        self.cut()

    async def add_listener(self, _channel: str, _callback: Any) -> None:
        """Nothing is woken: polling finds all work."""

    async def fetch(self, statement: str, *arguments: Any) -> Any:
        """One statement."""
        await self.port()
        found = self._store.doing[statement](self, *arguments)
        self._store.world.stepped()
        await self.port()
        return found

    execute = fetch

    async def port(self) -> None:
        """A message is in transit to the server, or back."""
        await asyncio.sleep(self._store.world.delay())
        await self._owner.running()
        if self._is_cut:
            raise CutError("the connection is cut")

    @asynccontextmanager
    async def transaction(self) -> Any:
        """A transaction: what it writes is there after its commit, or never."""
        tx = Transaction(self._store, self)
        try:
            yield tx
            await self.port()
            tx.commit()
            self._store.world.stepped()
            await self.port()
        finally:
            tx.release()


@dataclass
class Transaction:
    """Writes that wait for the commit, and rows that are locked until then."""

    store: Store
    session: Session
    writes: list[Callable[[], Any]] = field(default_factory=list)
    _locked: list[asyncio.Lock] = field(default_factory=list)
    _rows: set[Any] = field(default_factory=set)

    async def lock(self, row: Any) -> None:
        """Lock a row until the end; wait for its owner."""
        if row not in self._rows:
            await self.store.locks[row].acquire()
            self._rows.add(row)
            self._locked.append(self.store.locks[row])

    async def execute(self, statement: str, *arguments: Any) -> Any:
        """One statement."""
        await self.session.port()
        doing = self.store.doing_in_tx.get(statement)
        found = (
            self.store.doing[statement](self.session, *arguments) if doing is None else await doing(self, *arguments)
        )
        await self.session.port()
        return found

    fetch = execute

    def commit(self) -> None:
        """Everything at once."""
        for write in self.writes:
            write()

    def release(self) -> None:
        """Let others at the rows."""
        for lock in self._locked:
            lock.release()
        self._locked.clear()
