"""The real statements of leases, positions, the outbox and runs on a real server, interleaved by seeds, under the invariants of
the simulation (`tests/simulation`), which knows the statements by their meaning.

Thirty-four orders of each in the gate; `HIGHWATER_INTERLEAVINGS=300` tries more.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from highwater.connectors.engines.store import RequestedWork
from highwater.connectors.kafka import positions
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Move
from highwater.connectors.kafka.statements import QUERIES as KAFKA
from highwater.connectors.postgres.leases import HeldLease, LeaseKind, LeaseLostError, Leases
from highwater.connectors.postgres.pool import open_connection
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.store import Runs
from highwater.schemas.errors import FencedError
from highwater.schemas.positions import Position
from highwater.streams.engines.work import begun
from highwater.streams.queries.runs import Run, captured, finished
from highwater.streams.queries.states import Stage, Status
from tests.conftest import Stack
from tests.integration.databases import address_of, own_database
from tests.integration.postgres.stepping import Interleaving, Stepped, SteppedPool

ORDERS = int(os.environ.get("HIGHWATER_INTERLEAVINGS", "34"))
ACTORS = 3
KIND = LeaseKind.CHUNK_INDEXES
TOPIC, GROUP = "feeds.user-active", "interleaved"
NOW_MS, LEASE_MS = 1_790_000_000_000, 60_000
_SEVERAL = pytest.mark.timeout(120 + 5 * ORDERS)
pytestmark = [pytest.mark.long, _SEVERAL]


class Ground:
    """An empty database, a connection for each actor, and one without locks."""

    def __init__(self, context: ProcessContext, address: str, opened: AsyncExitStack) -> None:
        self.context = context
        self._address = address
        self._opened = opened
        self.monitor: Any = None
        self.connections: list[Any] = []

    async def open(self) -> None:
        """Open them."""
        self.monitor = await self.connected()
        name = await self.monitor.fetchval("SELECT current_database()")
        await self.monitor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")  # no crash happens here
        self.connections = [await self.connected() for _ in range(ACTORS)]
        await self.monitor.execute("CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, name text, n bigint)")

    async def connected(self) -> asyncpg.Connection[asyncpg.Record]:
        """One more connection, closed at the end."""
        made = await open_connection(self._address)
        self._opened.callback(made.terminate)
        return made

    async def effects(self) -> list[tuple[str, int]]:
        """The stored effects, in the order of commits if a lock orders them."""
        return [(row["name"], row["n"]) for row in await self.monitor.fetch("SELECT name, n FROM effects ORDER BY id")]

    async def empty(self) -> None:
        """As at first."""
        for table in ("effects", "leases", "positions", "outbox", "pipeline_runs"):
            await self.monitor.execute(f"DELETE FROM {table}")


@pytest.fixture(scope="module")
async def ground(stack: Stack) -> AsyncIterator[Ground]:
    """A database of the module's own."""
    async with own_database(stack) as context, AsyncExitStack() as opened:
        made = Ground(context, await address_of(stack, context), opened)
        await made.open()
        yield made


async def store_effect(tx: Any, name: str, number: int) -> None:
    """Store an effect that only the owner may store."""
    await tx.execute("INSERT INTO effects (name, n) VALUES ($1, $2)", name, number)


# -- leases, and the outbox under them ------------------------------------------------------------------------------------------


async def relay(order: Interleaving, ground: Ground, number: int, published: list[tuple[int, int, str]]) -> None:
    """Take the lease of a shard, publish its rows, delete them, store something under the lease; all of it again and again."""
    leases = Leases(KIND, seconds=600, owner=f"owner-{number}", ends_with_session=False)
    connection: Any = Stepped(ground.connections[number])
    held = HeldLease(leases, "7")
    for _ in range(3):
        await leases.take(connection, ["7"])
        if "7" not in leases.held:
            continue
        epoch = leases.held["7"].epoch
        rows = await connection.fetch(KAFKA["outbox_take"], [7], 2)
        published += [(row["id"], epoch, leases.owner) for row in rows]
        await connection.execute(
            KAFKA["outbox_delete"], [row["id"] for row in rows], KIND, ["7"], [epoch], leases.owner
        )
        try:
            async with connection.transaction():
                await held.fence(connection)
                await store_effect(connection, "7", epoch)
        except LeaseLostError:
            continue
        if order.dice.random() < 0.5:
            await leases.release(connection)


async def time_goes_by(ground: Ground) -> None:
    """The lease has expired, for any owner: it was stopped, and does not know."""
    connection: Any = Stepped(await ground.connected())
    for _ in range(3):
        await connection.execute("UPDATE leases SET expires_at = '-infinity'")


async def leases_in_order(seed: int, ground: Ground) -> list[str]:
    """One seed: effects under a lease are stored by its owner of that time; rows are removed only after their owner has
    published them.
    """
    await ground.empty()
    await ground.monitor.execute(
        "INSERT INTO outbox (shard, topic, headers) SELECT 7, 'feeds.user-active', '[]' FROM generate_series(1, 6)"
    )
    rows = {row["id"] for row in await ground.monitor.fetch("SELECT id FROM outbox")}
    published: list[tuple[int, int, str]] = []
    order = Interleaving(seed, ground.monitor)
    works = [(f"relay-{number}", relay(order, ground, number, published)) for number in range(ACTORS)]
    await order.run([*works, ("time", time_goes_by(ground))])
    left = {row["id"] for row in await ground.monitor.fetch("SELECT id FROM outbox")}
    problems = [f"row {row} is gone and was never published" for row in rows - left - {row for row, *_ in published}]
    epochs = [epoch for _, epoch in await ground.effects()]
    if epochs != sorted(epochs):
        problems.append(f"an owner stored something after the next had: {epochs}")
    owners: dict[int, set[str]] = {}
    for _, epoch, owner in published:
        owners.setdefault(epoch, set()).add(owner)
    problems += [f"epoch {epoch} had owners {found}" for epoch, found in owners.items() if len(found) > 1]
    return problems


# -- positions ------------------------------------------------------------------------------------------------------------------


async def member(order: Interleaving, ground: Ground, number: int) -> None:
    """Read both partitions from the stored positions, as a member that believes to own them; stored with their effects."""
    connection: Any = Stepped(ground.connections[number])
    places = [(TOPIC, 0), (TOPIC, 1)]
    following: dict[tuple[str, int], int] | None = None
    for _ in range(5):
        try:
            async with connection.transaction():
                if following is None:
                    stored = await positions.load(
                        connection, GROUP, places, topic_ids={TOPIC: "id"}, lows=dict.fromkeys(places, 0)
                    )
                    following = {place: one.next for place, one in stored.items()}
                count = order.dice.randint(1, 2)
                moved = {
                    place: following[place] + count for place in order.dice.sample(places, order.dice.randint(1, 2))
                }
                await positions.advance(
                    connection, GROUP, [Move(*place, "id", following[place], end) for place, end in moved.items()]
                )
                for place, end in moved.items():
                    for offset in range(following[place], end):
                        await store_effect(connection, str(place[1]), offset)
            following |= moved
        except FencedError:
            following = None


async def positions_in_order(seed: int, ground: Ground) -> list[str]:
    """One seed: each record's effect is stored once, in order, up to the position."""
    await ground.empty()
    order = Interleaving(seed, ground.monitor)
    await order.run([(f"member-{number}", member(order, ground, number)) for number in range(ACTORS)])
    rows = await ground.monitor.fetch(KAFKA["positions_of"], GROUP)
    ends = {str(row["partition"]): row["next"] for row in rows}
    found = await ground.effects()
    expected = {name: list(range(end)) for name, end in ends.items()}
    stored = {name: [n for of, n in found if of == name] for name in ends}
    return [] if stored == expected else [f"stored are {stored}, positions are {ends}"]


# -- runs -----------------------------------------------------------------------------------------------------------------------


class Worker:
    """One that takes runs, works on them a stage at a time, and is called gone by others at random."""

    def __init__(self, ground: Ground, number: int, finished_stages: Counter[tuple[str, str]]) -> None:
        self.number = number
        self._pool: Any = SteppedPool(ground.connections[number])
        self._runs = Runs(self._pool, ground.context.codec, begun_max=16)
        self._finished = finished_stages

    async def work(self, order: Interleaving, asked: list[RequestedWork]) -> None:
        """A few checks, and the consequences of each."""
        async with self._pool.acquire() as connection, connection.transaction():
            await self._runs.ask(connection, asked)
        for _ in range(3):
            taken = await self._runs.take_due(worker=self.number, lease_ms=LEASE_MS, now_ms=NOW_MS, most=2)
            for run in taken:
                await self._stage(run)
            if order.dice.random() < 0.5:
                other = order.dice.randrange(ACTORS)
                await self._runs.give_back_lost([other], now_ms=NOW_MS, most=10)

    async def _stage(self, run: Run) -> None:
        """Begin its stage, finish it together with the capture of the next one."""
        started = begun(run)
        if await self._runs.store([Change(run, (started,), NOW_MS)]) == [None]:
            return
        after = finished(started, NOW_MS, analysis={"needs_context": False})
        following = captured(after, worker=self.number, lease_ms=LEASE_MS, now_ms=NOW_MS)
        if await self._runs.store([Change(started, (after, following), NOW_MS)]) != [None]:
            self._finished[run.id, str(run.stage)] += 1


async def runs_in_order(seed: int, ground: Ground) -> list[str]:
    """One seed: a stage is finished once, one run of a user at a time, and every change of status is published once."""
    await ground.empty()
    asked = []
    for user in range(2):
        for ordinal in (1, 2):
            run_id, user_id = (str(uuid.uuid5(uuid.NAMESPACE_URL, f"{user}/{of}")) for of in (ordinal, 0))
            await ground.monitor.execute(
                "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, position, caused_by, created_at,"
                " updated_at) VALUES ($1, $2, $3, 'What is new?', 'NEW', $4, $4, to_timestamp(0), to_timestamp(0))",
                run_id, user_id, ordinal, "queries.query-submitted/0/7",
            )  # fmt: skip
            asked.append(RequestedWork(run_id, Position("queries.stage-requested", 0, ordinal), Stage.ANALYZER))
    finished_stages: Counter[tuple[str, str]] = Counter()
    order = Interleaving(seed, ground.monitor)
    workers = [Worker(ground, number, finished_stages) for number in range(ACTORS)]
    await order.run([(f"worker-{one.number}", one.work(order, asked)) for one in workers])
    problems = [
        f"{stage} of {run} was finished {count} times" for (run, stage), count in finished_stages.items() if count > 1
    ]
    rows = await ground.monitor.fetch("SELECT id::text, ordinal, status, revision, worker FROM pipeline_runs")
    early = [row["id"] for row in rows if row["ordinal"] > 1 and row["status"] != Status.NEW]
    problems += [f"run {run} is at work before its turn" for run in early]
    told = await ground.monitor.fetch("SELECT value FROM outbox WHERE topic = 'queries.pipeline-stage' ORDER BY id")
    events = [ground.context.codec.decode("queries.pipeline-stage", row["value"]) for row in told]
    for row in rows:
        revisions = [event["revision"] for event in events if event["id"] == row["id"]]
        if revisions != list(range(2, row["revision"] + 1)):
            problems.append(f"run {row['id']} at revision {row['revision']} has told {revisions}")
    return problems


SCENARIOS = {"leases": leases_in_order, "positions": positions_in_order, "runs": runs_in_order}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_no_order_of_statements_breaks_a_law(ground: Ground, scenario: str):
    """Any actor may come between any two statements of another."""
    found = {}
    for seed in range(ORDERS):
        problems = await SCENARIOS[scenario](seed, ground)
        if problems:
            found[seed] = problems
    assert found == {}


# -- planted bugs ---------------------------------------------------------------------------------------------------------------


async def _unheld(_: HeldLease, _tx: Any) -> None:
    """A fence that checks nothing."""


async def _unfenced(tx: Any, group: str, moves: list[Move]) -> None:
    """A position that is set wherever it was."""
    for move in sorted(moves):
        await tx.execute(
            'UPDATE positions SET next = $3 WHERE "group" = $1 AND partition = $2', group, move.partition, move.next
        )


@pytest.mark.parametrize("scenario", ["leases", "positions", "runs"])
async def test_a_planted_bug_is_found(ground: Ground, scenario: str, monkeypatch: pytest.MonkeyPatch):
    """A missing fence, a position that is not compared, a run that is stored by a former owner."""
    if scenario == "leases":
        monkeypatch.setattr(HeldLease, "fence", _unheld)
    elif scenario == "positions":
        monkeypatch.setattr(positions, "advance", _unfenced)
    else:
        from highwater.connectors.queries import store

        lax = {**store.QUERIES, "store_runs": store.QUERIES["store_runs"].replace("AND r.epoch = m.held_epoch", "")
               .replace("AND r.status = m.held_status AND r.archive_status IS NOT DISTINCT FROM m.held_archive", "")}  # fmt: skip
        monkeypatch.setattr(store, "QUERIES", lax)
    for seed in range(200):
        if await SCENARIOS[scenario](seed, ground):
            return
    pytest.fail("no order of the first two hundred finds it")


async def test_an_order_is_the_same_every_time(ground: Ground):
    """This includes waits for a lock."""
    orders = []
    for _ in range(2):
        await ground.empty()
        order = Interleaving(5, ground.monitor)
        await order.run([(f"member-{number}", member(order, ground, number)) for number in range(ACTORS)])
        orders.append(order.order)
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == ACTORS


async def test_actors_that_wait_for_each_other_are_found(ground: Ground):
    """Two locks in two orders: the server ends one of them, and neither waits forever."""
    await ground.empty()
    await ground.monitor.execute("INSERT INTO effects (name, n) VALUES ('a', 0), ('b', 0)")

    async def locking(number: int, names: str) -> None:
        connection: Any = Stepped(ground.connections[number])
        async with connection.transaction():
            for name in names:
                await connection.execute("UPDATE effects SET n = n + 1 WHERE name = $1", name)
                await asyncio.sleep(0)

    order = Interleaving(0, ground.monitor)
    order.dice.choice = lambda waiting: waiting[len(order.order) % len(waiting)]  # type: ignore[method-assign]
    with pytest.raises((AssertionError, asyncpg.DeadlockDetectedError)):
        await order.run([("one", locking(0, "ab")), ("other", locking(1, "ba"))])
