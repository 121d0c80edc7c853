"""Work under workers that are stopped, killed and cut off: what the simulations of runs (`runs.py`) and jobs (`jobs.py`) share.
Engine, watch, liveness, leases, group commit, recorded calls and moves are the product's own code; the table, the book of calls
and the model are not.

The invariants of both, from ARCHITECTURE.md: taking, releasing or restarting work raises its epoch; a worker that was given up
stores nothing; ended work stays as it ended; all work that was begun ends.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

import structlog

from highwater.api.simulate.patches import Patches
from highwater.api.simulate.store import Session, Store
from highwater.api.simulate.virtual import run_virtually
from highwater.api.simulate.world import CutError, Process, Trouble, World, process
from highwater.connectors.engines import watch as watching
from highwater.connectors.engines.engine import Engine
from highwater.connectors.engines.store import ChangeT, WorkStore
from highwater.connectors.engines.watch import Watch
from highwater.connectors.models.call_rows import CallEnd, StoredCall
from highwater.connectors.models.calls import CallFailedError, ChatAnswer
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.postgres.pool import connecting_error
from highwater.streams.engines.work import WorkT
from highwater.streams.models.costs import parse_prices
from highwater.streams.models.retries import Failure

WORKERS = 3
LEASE_MS = 2_500
SLOTS = 4
STOP_SECONDS_MAX = 6.0
TROUBLE_SECONDS = 14.0
CALM_SECONDS_MAX = 300.0
# Nothing waits as long without a change of any work.
_STILL_SECONDS_MAX = 70.0
# A call of the model lasts up to a lease and a half, so that some return after their work was given up.
_CALL_SECONDS_MAX = 4.0
# One call in N fails: its work is postponed, requested again at once, or ends.
_FAILED_ONE_IN = 8
_FAILURES = (Failure.TIMEOUT, Failure.UNAVAILABLE, Failure.UNUSABLE, Failure.REFUSED)
_START_MS = 1_790_000_000_000


class Table(ABC, Generic[WorkT, ChangeT]):
    """The rows of one kind of work, and the invariants of their changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[str, WorkT] = {}
        self.calls: dict[tuple[str, str, int], CallEnd] = {}
        self._holders: dict[tuple[Any, ...], int] = {}
        self._last: dict[str, ChangeT] = {}
        self.changed_at = 0.0

    @abstractmethod
    def fence(self, work: WorkT) -> tuple[Any, ...]:
        """The columns that the statement that stores a change compares, beside the id."""

    @abstractmethod
    def waits(self, work: WorkT, now_ms: int) -> bool:
        """Whether a worker may take it now."""

    @abstractmethod
    def has_ended(self, work: WorkT) -> bool:
        """Whether nothing more comes of it by itself."""

    @abstractmethod
    def stored(self, row: WorkT, change: ChangeT) -> WorkT:
        """The row after the statement that stores a change."""

    def given(self, change: ChangeT) -> WorkT:
        """Return the work as its worker continues with it."""
        after: WorkT = change.after
        return after

    @abstractmethod
    def judge(self, row: WorkT, after: WorkT, change: ChangeT) -> None:
        """Check the invariants of this kind of work."""

    def store(self, change: ChangeT, by: int | None = None) -> WorkT | None:
        """Stored only if the work still is as it was when it was taken. `by`: the worker that has worked on it."""
        row = self.rows[change.before.id]
        if self.fence(row) != self.fence(change.before):
            return None
        if change is self._last.get(row.id):
            return self.given(change)  # its commit was not acknowledged: it is stored again, and is the same
        after = self.stored(row, change)
        self._judge_hands(row, after, by)
        self.judge(row, after, change)
        self.rows[row.id], self._last[row.id] = after, change
        self.changed_at = self.world.now
        return self.given(change)

    def end(self, end: CallEnd) -> bool:
        """The first end of a call stays."""
        key = end.run_id, str(end.stage), end.attempt
        if key in self.calls:
            return False
        self.calls[key] = end
        return True

    def answer(self, work: WorkT, stage: str) -> str | None:
        """Return the answer to the call of its present attempt, from the book."""
        end = self.calls.get((work.id, stage, work.attempt))
        return None if end is None else end.answer

    def _judge_hands(self, row: WorkT, after: WorkT, by: int | None) -> None:
        if by is not None and row.worker != by:
            self.world.found(f"worker {by} stores {row.id}, which worker {row.worker} has")
        if by is None and after.epoch <= row.epoch and not self.has_ended(after):
            self.world.found(f"{row.id} changes hands under the epoch {row.epoch}")
        if after.worker is not None:
            holder = self._holders.setdefault((after.id, *self.fence(after)), after.worker)
            if holder != after.worker:
                self.world.found(f"workers {holder} and {after.worker} hold {row.id} under one epoch")


class Works(Generic[WorkT, ChangeT]):
    """The store of one worker, over a connection of its own for each query; the product's store decides the changes of a row."""

    def __init__(
        self,
        product: WorkStore[WorkT, ChangeT],
        table: Table[WorkT, ChangeT],
        store: Store,
        owner: Process,
        worker: int,
    ) -> None:
        self._product = product
        self._worker = worker
        self._table = table
        self._store = store
        self._owner = owner

    async def asked(self, doing: Callable[[], Any]) -> Any:
        """One transaction."""
        session = self._store.session(self._owner)
        try:
            await session.port()
            found = doing()
            self._table.world.stepped()
            await session.port()
        except CutError as error:
            raise connecting_error(error) from error
        else:
            return found
        finally:
            session.terminate()

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[WorkT]:
        """Claim waiting work, as far as there are slots."""

        def take() -> list[WorkT]:
            waiting = [row for row in self._table.rows.values() if self._table.waits(row, now_ms)][:most]
            rows: list[Any] = [{"work": row, "command": None} for row in waiting]
            stored = [self._table.store(self._product._taken(row, worker, lease_ms, now_ms)) for row in rows]
            return [work for work in stored if work is not None and work.worker is not None]

        found: list[WorkT] = await self.asked(take)
        return found

    async def take_forgotten(self, **_asked: Any) -> list[WorkT]:
        """Nothing is: what waits is taken."""
        return []

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[WorkT]:
        """Release the work of a worker that is gone, or whose lease is over."""

        def give_back() -> list[WorkT]:
            lost = [
                row for row in self._table.rows.values()
                if row.worker is not None and (row.worker in dead or (row.lease_until_ms or 0) <= now_ms)
            ]  # fmt: skip
            causes = self._product._causes(lost[:most])
            stored = [
                self._table.store(self._product._given_back(row, now_ms, is_cause=row.id in causes))
                for row in lost[:most]
            ]
            return [work for work in stored if work is not None]

        found: list[WorkT] = await self.asked(give_back)
        return found

    async def workers(self, tx: Session) -> list[int]:
        """The workers with work."""
        await tx.port()
        return sorted({row.worker for row in self._table.rows.values() if row.worker is not None})

    async def has_unended(self, tx: Session) -> bool:
        """Whether any has not come to its end."""
        await tx.port()
        return any(not self._table.has_ended(row) for row in self._table.rows.values())

    async def hand_over(self, worker: int, *, now_ms: int) -> int:
        """No worker ends in order here."""
        raise AssertionError(f"worker {worker} hands its work over at {now_ms}, which the scenarios never ask for")

    async def store(self, changes: Sequence[ChangeT]) -> list[WorkT | None]:
        """Changes in one transaction."""
        found: list[WorkT | None] = await self.asked(
            lambda: [self._table.store(change, self._worker) for change in changes]
        )
        return found

    async def count_late(self, _work_id: str, _now_ms: int) -> None:
        """Nothing is counted here."""


class Book:
    """The calls as a worker writes them down."""

    def __init__(self, table: Table[Any, Any], works: Works[Any, Any]) -> None:
        self._table = table
        self._works = works

    async def end(self, ends: Sequence[CallEnd]) -> list[bool]:
        """Those that had no end before."""
        found: list[bool] = await self._works.asked(lambda: list(map(self._table.end, ends)))
        return found

    async def find(self, work_id: str, stage: str, attempt: int) -> StoredCall | None:
        """Return an earlier answer; None without one."""
        found: CallEnd | None = await self._works.asked(lambda: self._table.calls.get((work_id, stage, attempt)))
        return None if found is None else StoredCall(found.outcome, found.answer, found.error)


class Port:
    """A language model whose answers all differ; some calls of it fail."""

    def __init__(self, world: World, answer: Callable[[str, int], str]) -> None:
        self._world = world
        self._answer = answer
        self.is_paid = world.dice.random() < 0.5

    async def complete(self, call: Any, _on_delta: Any = None) -> ChatAnswer:
        """Return an answer after a while, which is not stored yet."""
        dice = self._world.dice
        await asyncio.sleep(dice.uniform(0, _CALL_SECONDS_MAX))
        await process().running()
        if dice.randrange(_FAILED_ONE_IN) == 0:
            raise CallFailedError(dice.choice(_FAILURES), "no answer")
        return ChatAnswer(self._answer(call.stage, dice.randrange(1 << 30)), call.model, 1, 1)

    async def close(self) -> None:
        """Nothing is open."""


class Scenario(ABC, Generic[WorkT, ChangeT]):
    """Workers on work of one kind, and those who want it done."""

    table: Table[WorkT, ChangeT]
    # The product's store decides the change of a row; its own statements are not used.
    product: ClassVar[WorkStore[Any, Any]]

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.store = Store(self.world)
        self._numbers = iter(range(1, 1_000_000))

    @abstractmethod
    def submit(self) -> None:
        """Put the work into the table."""

    @abstractmethod
    def engine(self, works: Any, calls: ModelCalls, worker: int) -> Engine[WorkT, ChangeT]:
        """The engine of one worker."""

    @abstractmethod
    def answer(self, stage: str, number: int) -> str:
        """Return the model's answer, with a number in it."""

    def now_ms(self) -> int:
        """Engines compare their clocks with the server's, so all agree up to the time in transit."""
        return _START_MS + int(self.world.now * 1000)

    def start_worker(self) -> None:
        """A worker in a process of its own."""
        number = next(self._numbers)
        owner = self.world.process(f"worker-{number}")

        async def work() -> None:
            works: Any = Works(self.product, self.table, self.store, owner, number)
            book: Any = Book(self.table, works)
            calls = ModelCalls(book, Port(self.world, self.answer), parse_prices(""), self.now_ms)
            await Watch("", works, self.engine(works, calls, number), self.now_ms).run(asyncio.Event())

        owner.start(work())

    async def run(self) -> None:
        """Trouble for a while, then calm until everything has ended."""
        self.submit()
        for _ in range(WORKERS):
            self.start_worker()
        trouble = Trouble(self.world, every_seconds=1.0, stop_seconds_max=STOP_SECONDS_MAX)
        await trouble.run(TROUBLE_SECONDS, lambda _killed: self.start_worker())
        until = self.world.now + CALM_SECONDS_MAX
        while self._left() and self.world.now < min(until, self.table.changed_at + _STILL_SECONDS_MAX):
            if self.world.problems:
                return
            await asyncio.sleep(0.1)
        if self._left():
            self.world.found(f"{', '.join(self._left())} never came to an end")

    def _left(self) -> list[str]:
        return [row.id for row in self.table.rows.values() if not self.table.has_ended(row)]


def problems_of(make: Callable[[int], Scenario[Any, Any]], seed: int, patch: Patches) -> tuple[list[str], int]:
    """The violations of the invariants with a seed, and the number of checked steps."""
    found: list[World] = []

    async def main() -> None:
        scenario = make(seed)
        patch.setattr(watching, "open_connection", scenario.store.connect)
        found.append(scenario.world)
        await scenario.run()

    with structlog.testing.capture_logs():  # the logs of simulated processes are not read
        run_virtually(main())
    return found[0].problems, found[0].steps
