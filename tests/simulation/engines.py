"""Runs of queries under workers that are stopped, killed and cut off. Engine, watch, liveness, leases, group commit and the moves
of a run are the product's own code; the table of runs and the model are not.

The laws, from ARCHITECTURE.md: a stage is finished once; one run of a user at a time, in order; a run that has ended stays as it
ended; who was given up stores nothing; everything that was begun comes to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from highwater.connectors.engines import watch as watching
from highwater.connectors.engines.watch import Watch
from highwater.connectors.models.recorded_calls import Outcome
from highwater.connectors.postgres.pool import connecting_error
from highwater.connectors.queries import store as queries_store
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.engine import QueryEngine
from highwater.connectors.queries.stages import Ask
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import ArchiveStatus, Stage, Status
from tests.simulation.store import Session, Store
from tests.simulation.virtual import run_virtually
from tests.simulation.world import CutError, Process, Trouble, World, process

USERS, RUNS_OF_USER = 3, 2
WORKERS = 3
LEASE_MS = 2_500
STOP_SECONDS_MAX = 6.0
TROUBLE_SECONDS = 14.0
CALM_SECONDS_MAX = 120.0
# A call of the model lasts up to a lease and a half, so that some come back after their run was given up.
_CALL_SECONDS_MAX = 4.0
_ANSWERS = {
    Stage.ANALYZER: '{"needs_context": false}',
    Stage.ASSEMBLER: "context",
    Stage.RESPONDER: "answer",
    Stage.ARCHIVIST: '{"text": "what was said", "tags": ["talk"]}',
}
_START_MS = 1_790_000_000_000


class Table:
    """`pipeline_runs`, and the laws of what becomes of its rows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[str, Run] = {}
        self.finished: Counter[tuple[str, Stage]] = Counter()
        self.answers: dict[tuple[str, str, int], str] = {}

    def turn_of(self, run: Run) -> bool:
        """Whether all runs of its user before it have released it."""
        return all(
            one.released for one in self.rows.values() if one.user_id == run.user_id and one.ordinal < run.ordinal
        )

    def store(self, change: Change, by: int | None = None) -> bool:
        """`store_runs`: stored only if the run still is as it was when it was taken. `by`: the worker that has worked on it."""
        row, held = self.rows[change.before.id], change.before
        if (row.status, row.archive_status, row.epoch) != (held.status, held.archive_status, held.epoch):
            return False
        if by is not None and row.worker != by:
            self.world.found(f"worker {by} stores {row.id}, which worker {row.worker} has")
        self._judge(row, change)
        self.rows[row.id] = change.after
        return True

    def ends(self, change: Change, by: int) -> bool:
        """The end of a call, whatever becomes of its run, and then the change, if the call had no other end."""
        end = change.end
        if end is not None:
            key = end.run_id, end.stage, end.attempt
            if key in self.answers:
                return False
            self.answers[key] = end.answer or ""
        return self.store(change, by)

    def _judge(self, row: Run, change: Change) -> None:
        before = row
        for step in change.steps:
            if before.stage is not None and (step.status, step.archive_status) in _ENDS[before.stage]:
                self.finished[row.id, before.stage] += 1
                if self.finished[row.id, before.stage] > 1:
                    self.world.found(f"{before.stage} of {row.id} was finished twice")
            before = step
        after = change.after
        if row.released and row.archive_status in (None, ArchiveStatus.STORED, ArchiveStatus.FAILED):
            self.world.found(f"{row.id} was changed after its end")
        if after.worker is not None and not self.turn_of(after):
            self.world.found(f"{row.id} is worked on before its turn")


_ENDS = {
    Stage.ANALYZER: {(Status.ANALYZED, None)},
    Stage.ASSEMBLER: {(Status.READY, None)},
    Stage.RESPONDER: {(Status.COMPLETED, ArchiveStatus.WAITING)},
    Stage.ARCHIVIST: {(Status.COMPLETED, ArchiveStatus.STORED)},
}


class Runs:
    """The store of runs of one worker, over a connection of its own for each question."""

    def __init__(self, table: Table, store: Store, owner: Process, worker: int) -> None:
        self._worker = worker
        self._table = table
        self._store = store
        self._owner = owner

    async def _asked(self, doing: Callable[[], Any]) -> Any:
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

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[Run]:
        """Runs whose turn it is, or that are due."""

        def take() -> list[Run]:
            waiting = [
                run for run in self._table.rows.values()
                if run.worker is None and run.stage is not None and self._table.turn_of(run)
                and (run.due_ms is None or run.due_ms <= now_ms)
            ]  # fmt: skip
            changes = [
                queries_store._taken({"run": run, "command": None}, worker, lease_ms, now_ms) for run in waiting[:most]
            ]
            return [change.after for change in changes if self._table.store(change)]

        found: list[Run] = await self._asked(take)
        return found

    async def take_forgotten(self, **_asked: Any) -> list[Run]:
        """Nothing is: whose turn it is is taken."""
        return []

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[Run]:
        """Runs whose worker is gone, or whose lease is over."""

        def give_back() -> list[Run]:
            lost = [
                run for run in self._table.rows.values()
                if run.worker is not None and (run.worker in dead or (run.lease_until_ms or 0) <= now_ms)
            ]  # fmt: skip
            changes = [queries_store._given_back(run, now_ms) for run in lost[:most]]
            return [change.after for change in changes if self._table.store(change)]

        found: list[Run] = await self._asked(give_back)
        return found

    async def workers(self, tx: Session) -> list[int]:
        """Who holds runs."""
        await tx.port()
        return sorted({run.worker for run in self._table.rows.values() if run.worker is not None})

    async def has_unended(self, tx: Session) -> bool:
        """Whether any run has not come to its end."""
        await tx.port()
        return any(run.stage is not None or run.worker is not None for run in self._table.rows.values())

    async def hand_over(self, worker: int, *, now_ms: int) -> int:
        """Nobody ends in order here."""
        raise NotImplementedError

    async def store(self, changes: Sequence[Change]) -> list[Run | None]:
        """Changes in one transaction."""
        found: list[Run | None] = await self._asked(
            lambda: [change.after if self._table.ends(change, self._worker) else None for change in changes]
        )
        return found

    async def count_late(self, _run_id: str, _now_ms: int) -> None:
        """Nothing is counted here."""


class Model:
    """A language model with its book of calls."""

    def __init__(self, world: World, answers: dict[tuple[str, str, int], str]) -> None:
        self._world = world
        self.answers = answers
        self.are_paid = world.dice.random() < 0.5

    async def recalled(self, run_id: str, stage: Stage, attempt: int, conclude: Callable[[str], Any]) -> Any:
        """What was answered already; None where nothing was."""
        await asyncio.sleep(self._world.delay())
        answer = self.answers.get((run_id, stage, attempt))
        return None if answer is None else Outcome(conclude(answer))

    async def sent(self, run_id: str, attempt: int, call: Any, conclude: Callable[[str], Any]) -> Any:
        """An answer after a while, which nobody has stored."""
        await asyncio.sleep(self._world.dice.uniform(0, _CALL_SECONDS_MAX))
        await process().running()
        answer = _ANSWERS[Stage(call.stage)]
        end = SimpleNamespace(run_id=run_id, stage=call.stage, attempt=attempt, answer=answer)
        return SimpleNamespace(outcome=Outcome(conclude(answer)), end=end)

    async def store(self, sent: Any, conclude: Callable[[str], Any]) -> Any:
        """The first answer stays, and what follows follows from it."""
        await asyncio.sleep(self._world.delay())
        await process().running()
        end = sent.end
        return Outcome(conclude(self.answers.setdefault((end.run_id, end.stage, end.attempt), end.answer)))

    async def close(self) -> None:
        """Nothing is open."""


class Stages:
    """What a stage is made from."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, run: Run, stage: Stage) -> Ask:
        """A call that is ready to be made."""
        await asyncio.sleep(self._world.delay())
        await process().running()
        return Ask(SimpleNamespace(stage=stage, model="m"), run, ())  # type: ignore[arg-type]


class Scenario:
    """Workers, and users who ask one thing after the other."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.store = Store(self.world)
        self.table = Table(self.world)
        self._numbers = iter(range(1, 1_000_000))

    def start_worker(self) -> None:
        """A worker in a process of its own."""
        number = next(self._numbers)
        owner = self.world.process(f"worker-{number}")

        def now_ms() -> int:
            # Engines measure their clocks by the server's, so all agree but for the way there.
            return _START_MS + int(self.world.now * 1000)

        async def work() -> None:
            runs: Any = Runs(self.table, self.store, owner, number)
            stages: Any = Stages(self.world)
            model: Any = Model(self.world, self.table.answers)
            engine = QueryEngine(runs, stages, model, now_ms, worker=number, lease_ms=LEASE_MS, slots=4)
            await Watch("", runs, engine, now_ms).run(asyncio.Event())

        owner.start(work())

    async def run(self) -> None:
        """Trouble for a while, then calm until every run has ended."""
        for user in range(USERS):
            for ordinal in range(1, RUNS_OF_USER + 1):
                made = Run(f"run-{user}-{ordinal}", f"user-{user}", ordinal, "What is new?", Status.NEW)
                self.table.rows[made.id] = made
        for _ in range(WORKERS):
            self.start_worker()
        trouble = Trouble(self.world, every_seconds=1.0, stop_seconds_max=STOP_SECONDS_MAX)
        await trouble.run(TROUBLE_SECONDS, lambda _killed: self.start_worker())
        until = self.world.now + CALM_SECONDS_MAX
        while self._left() and self.world.now < until and not self.world.problems:  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0.1)
        if self._left():
            self.world.found(f"{', '.join(self._left())} never came to an end")

    def _left(self) -> list[str]:
        return [run.id for run in self.table.rows.values() if run.stage is not None]


def problems_of(seed: int, patch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """What is found against the laws with a seed, and the number of steps that were looked at."""
    found: list[Scenario] = []

    async def main() -> None:
        scenario = Scenario(seed)
        patch.setattr(watching, "open_connection", scenario.store.connect)
        found.append(scenario)
        await scenario.run()

    patch.setattr(queries_store, "run_of", lambda row: row["run"])
    with structlog.testing.capture_logs():  # nobody reads what simulated processes say
        run_virtually(main())
    return found[0].world.problems, found[0].world.steps
