"""One read for all who ask for the same at the same moment.

Law: whoever joins a read gets what was true at its start or later, so the bound on an old answer grows by the time of one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Reads under way, by name."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[T]] = {}

    async def read(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Join the read of this name, or start it; it goes on when the one who started it goes away."""
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._under_way[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        return await asyncio.shield(task)

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled():
            task.exception()  # looked at, so that one whom nobody waits for any more is not reported as lost


async def _run(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
