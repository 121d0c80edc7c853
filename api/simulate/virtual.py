"""An event loop in virtual time: it never waits, time jumps to the next due event; a process that no event will wake is found.

Invariant: a run is a function of its seed, so that a seed that fails fails again.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlockError(AssertionError):
    """Everything waits, and nothing is due."""


class _NoWaiting(selectors.SelectSelector):
    """Lets time pass in place of waiting for sockets."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError(f"everything waits, at {self.loop.time():.3f} s: {self.loop.waiting()}")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`now` is in seconds from its beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _NoWaiting()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def waiting(self) -> str:
        """The names of the tasks that have not ended."""
        return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run to its end in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
