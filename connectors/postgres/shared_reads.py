"""One read for all who ask for the same at the same moment.

Law of `SharedReads`: whoever joins a read gets what was true at its start or later, so the bound on an old answer grows by the
time of one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Reads in progress, by name."""

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


class FollowingReads(Generic[T]):
    """Reads by name, shared by all who ask before one begins.

    Invariant: nobody joins a read that has begun, so whoever asks gets what was true when he asked or later: no older answer
    than one who reads alone would get. At most two reads of a name at a time: one in progress, one that waits for it.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[T]] = {}
        self._following: dict[str, asyncio.Task[T]] = {}

    async def read(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Join the read that is to begin, or be the one who begins it."""
        task = self._following.get(name)
        if task is None:
            task = asyncio.ensure_future(self._run(name, self._under_way.get(name), call))
            self._following[name] = task
        return await asyncio.shield(task)

    async def _run(self, name: str, before: asyncio.Task[T] | None, call: Callable[[], Awaitable[T]]) -> T:
        if before is not None:
            await asyncio.wait({before})
        task = self._following.pop(name)
        self._under_way[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))
        return await call()

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        if self._under_way.get(name) is task:
            del self._under_way[name]
        if not task.cancelled():
            task.exception()  # looked at, so that one whom nobody waits for any more is not reported as lost
