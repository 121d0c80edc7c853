"""One process's share of work that is taken under a lease: an engine with its clock, without Kafka."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from highwater.connectors.engines.watch import Watch
from highwater.connectors.models.recorded_calls import ModelCalls

START_MS = 1_700_000_000_000
LEASE_MS = 120_000


@dataclass
class Time:
    """A clock that a test moves."""

    now_ms: int = START_MS

    def __call__(self) -> int:
        """Now."""
        return self.now_ms


@dataclass
class Worker:
    """Engine, consumer of commands and watch."""

    engine: Any
    commands: Any
    watch: Watch[Any]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self.task = asyncio.create_task(self.watch.run(self.stop))

    async def end(self) -> None:
        """End in order."""
        self.stop.set()
        if self.task is not None:
            await self.task

    async def die(self) -> None:
        """End as a process that is killed does: its lock goes, and nothing is handed over."""
        assert self.task is not None
        calls: ModelCalls | None = self.engine._calls
        ends = [] if calls is None else [calls._ends]
        storing = [one._task for one in (self.engine._changes, *ends) if one._task is not None]
        tasks = [self.task, *self.engine._tasks, *storing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine._close()


async def end_all(workers: list[Worker]) -> None:
    """End those that run."""
    for worker in workers:
        if worker.task is not None and not worker.task.done():
            await worker.end()
