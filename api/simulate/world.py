"""The environment of a simulation: processes that are stopped, killed and cut off, clocks that run at different rates, and dice.

Invariant: a process meets its environment at ports alone, and at each of them every real fault may happen: it is
stopped for a while, it is killed, its connection is cut before or after the server did the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import ContextVar
from random import Random  # noqa: TID251 (seeded: the same run in every process)
from typing import Any

# The process of a coroutine; tasks inherit it.
_PROCESS: ContextVar[Process] = ContextVar("process")
# A clock may run a hundredth too fast or too slow: ten times what a machine's does, a tenth of what a lease allows for.
_RATE_ERROR = 0.01
# From a statement or record to its arrival: most are quick, one in ten is not.
_QUICK_SECONDS, _SLOW_SECONDS = 0.004, 0.3


class CutError(ConnectionResetError):
    """The connection is gone."""


class World:
    """Virtual time, dice, and the processes; `problems` are the violations of the invariants."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.problems: list[str] = []
        self.steps = 0
        self.processes: list[Process] = []
        self._checks: list[Any] = []

    @property
    def now(self) -> float:
        """Seconds since the beginning, independent of any process's clock."""
        return asyncio.get_running_loop().time()

    def process(self, name: str) -> Process:
        """A fresh process."""
        made = Process(self, name)
        self.processes.append(made)
        return made

    def check_with(self, check: Any) -> None:
        """Have an invariant checked after each step of any process."""
        self._checks.append(check)

    def found(self, problem: str) -> None:
        """An invariant was broken."""
        self.problems.append(f"at {self.now:.3f} s: {problem}")

    def stepped(self) -> None:
        """Something has happened: check whether all invariants hold."""
        self.steps += 1
        for check in self._checks:
            check()

    def delay(self) -> float:
        """How long a message is in transit."""
        most = _SLOW_SECONDS if self.dice.random() < 0.1 else _QUICK_SECONDS
        return self.dice.random() * most


class Process:
    """One process: its tasks, its clock, whether it runs now."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self._runs = asyncio.Event()
        self._runs.set()
        self._rate = 1 + world.dice.uniform(-_RATE_ERROR, _RATE_ERROR)
        self._offset = world.dice.uniform(0, 1_000)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions: list[Any] = []

    @property
    def is_running(self) -> bool:
        """Whether it is alive and not stopped."""
        return self.is_alive and self._runs.is_set()

    def clock(self) -> float:
        """Its monotonic clock, which continues while it is stopped."""
        return self._offset + self.world.now * self._rate

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in it."""
        token = _PROCESS.set(self)
        try:
            task = asyncio.create_task(work, name=self.name)
        finally:
            _PROCESS.reset(token)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.problems.append(f"{self.name} broke: {error!r}")

    async def stop(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self._runs.clear()
        await asyncio.sleep(seconds)
        self._runs.set()

    async def kill(self) -> None:
        """SIGKILL: its tasks end where they are, its sessions with them."""
        self.is_alive = False
        self._runs.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self.sessions:
            session.cut()

    async def running(self) -> None:
        """Wait while it is stopped."""
        await self._runs.wait()


def process() -> Process:
    """Whose code runs now."""
    return _PROCESS.get()


def clock() -> float:
    """The monotonic clock of whose code runs now."""
    return process().clock()


class Trouble:
    """Stops, kills and cuts processes at random, until it is over."""

    def __init__(self, world: World, *, every_seconds: float, stop_seconds_max: float) -> None:
        self._world = world
        self._every = every_seconds
        self._stop_max = stop_seconds_max
        self._stopping: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, restart: Any) -> None:
        """Cause faults for this long; `restart` is called with a process that was killed."""
        dice = self._world.dice
        until = self._world.now + seconds
        while self._world.now < until:
            await asyncio.sleep(dice.expovariate(1 / self._every))
            living = [one for one in self._world.processes if one.is_running]
            if not living:
                continue
            victim = dice.choice(living)
            match dice.choice(("stop", "stop", "kill", "cut")):
                case "stop":
                    task = asyncio.create_task(victim.stop(dice.uniform(0.1, self._stop_max)))
                    self._stopping.add(task)
                    task.add_done_callback(self._stopping.discard)
                case "kill":
                    await victim.kill()
                    self._world.processes.remove(victim)
                    restart(victim)
                case "cut":
                    for session in list(victim.sessions):
                        session.cut()
        with contextlib.suppress(ValueError):
            await asyncio.wait(self._stopping)
