"""Runs of queries in the simulation (`engines.py`).

Their invariants, from ARCHITECTURE.md: a stage is finished once, with the stored answer; one run of a user at a time, in order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from highwater.api.simulate import engines
from highwater.api.simulate.engines import LEASE_MS, SLOTS, Scenario, Table
from highwater.api.simulate.patches import Patches
from highwater.api.simulate.world import World, process
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.queries import store as queries_store
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.engine import QueryEngine
from highwater.connectors.queries.stages import Ask
from highwater.connectors.queries.store import Runs
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import ArchiveStatus, Stage, Status

USERS, RUNS_OF_USER = 3, 2
_ENDS = {
    Stage.ANALYZER: (Status.ANALYZED, None),
    Stage.ASSEMBLER: (Status.READY, None),
    Stage.RESPONDER: (Status.COMPLETED, ArchiveStatus.WAITING),
    Stage.ARCHIVIST: (Status.COMPLETED, ArchiveStatus.STORED),
}


class RunTable(Table[Run, Change]):
    """`pipeline_runs`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.finished: Counter[tuple[str, Stage]] = Counter()

    def fence(self, work: Run) -> tuple[Any, ...]:
        """As `store_runs` has it."""
        return work.ordinal, work.status, work.archive_status, work.epoch

    def waits(self, work: Run, now_ms: int) -> bool:
        """A run whose turn it is, or that is due."""
        is_due = work.due_ms is None or work.due_ms <= now_ms
        return work.worker is None and work.stage is not None and is_due and self._has_turn(work)

    def has_ended(self, work: Run) -> bool:
        """Also its memory."""
        return work.stage is None

    def stored(self, row: Run, change: Change) -> Run:
        """As it is given."""
        return change.after

    def store(self, change: Change, by: int | None = None) -> Run | None:
        """Store the end of a call, with any outcome of its run, and then the change, if the call had no other end."""
        return None if change.end is not None and not self.end(change.end) else super().store(change, by)

    def judge(self, row: Run, after: Run, change: Change) -> None:
        """Stages are finished once, in order, with the stored answer; an ended run is not changed."""
        before = row
        for step in change.steps:
            if before.stage is not None and (step.status, step.archive_status) == _ENDS[before.stage]:
                self.finished[row.id, before.stage] += 1
                if self.finished[row.id, before.stage] > 1:
                    self.world.found(f"{before.stage} of {row.id} was finished twice")
                if self.answer(row, before.stage) is None:
                    self.world.found(f"{before.stage} of {row.id} was finished without a stored answer")
                if before.stage is Stage.RESPONDER and step.answer != self.answer(row, before.stage):
                    self.world.found(f"the answer of {row.id} is not the one that is stored")
            if before.worker is None and step.worker is not None and step.epoch <= before.epoch:
                self.world.found(f"{row.id} changes hands under the epoch {before.epoch}")
            before = step
        if self.has_ended(row):
            self.world.found(f"{row.id} was changed after its end")
        if after.worker is not None and not self._has_turn(after):
            self.world.found(f"{row.id} is worked on before its turn")

    def _has_turn(self, run: Run) -> bool:
        """Whether all runs of its user before it have released it."""
        return all(
            one.released for one in self.rows.values() if one.user_id == run.user_id and one.ordinal < run.ordinal
        )


class Stages:
    """The input of a stage."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, run: Run, stage: Stage) -> Ask:
        """A call that is ready to be made."""
        await asyncio.sleep(self._world.delay())
        await process().running()
        return Ask(SimpleNamespace(stage=stage, model="m"), run, ())  # type: ignore[arg-type]


class RunScenario(Scenario[Run, Change]):
    """Users who ask one thing after the other."""

    product = Runs(None, None, begun_max=1)  # type: ignore[arg-type]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.table = RunTable(self.world)

    def submit(self) -> None:
        """Some queries of each user."""
        for user in range(USERS):
            for ordinal in range(1, RUNS_OF_USER + 1):
                made = Run(f"run-{user}-{ordinal}", f"user-{user}", ordinal, "What is new?", Status.NEW)
                self.table.rows[made.id] = made

    def engine(self, works: Any, calls: ModelCalls, worker: int) -> QueryEngine:
        """That of queries."""
        stages: Any = Stages(self.world)
        return QueryEngine(works, stages, calls, self.now_ms, worker=worker, lease_ms=LEASE_MS, slots=SLOTS)

    def answer(self, stage: str, number: int) -> str:
        """Return an answer in the form of the stage."""
        if stage == Stage.ANALYZER:
            return '{"needs_context": false}'
        return f'{{"text": "talk {number}", "tags": ["talk"]}}' if stage == Stage.ARCHIVIST else f"answer {number}"


def problems_of(seed: int, patch: Patches) -> tuple[list[str], int]:
    """The violations with a seed, as `engines.problems_of`."""
    patch.setattr(queries_store, "run_of", lambda row: row["work"])
    return engines.problems_of(RunScenario, seed, patch)
