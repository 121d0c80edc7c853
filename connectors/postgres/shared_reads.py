"""Shares one read among all concurrent callers with the same question.

Invariant of `SharedReads`: a caller that joins a read gets what was true at its start or later, so the staleness grows
at most by the time of one read.
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
        """Join the read of this name, or start it; it continues when its first caller is cancelled."""
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._under_way[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        return await asyncio.shield(task)

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled():
            task.exception()  # retrieved, so that a result without a waiter is not logged as lost


async def _run(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class FollowingReads(Generic[T]):
    """Reads by name, shared by all callers before one begins.

    Invariant: nobody joins a read that has begun, so each caller gets what was true at its call or later: no staler
    than a separate read. At most two reads of a name at a time: one in progress, one that waits for it.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[T]] = {}
        self._following: dict[str, asyncio.Task[T]] = {}

    async def read(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Join the read that is about to begin, or begin it."""
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
            task.exception()  # retrieved, so that a result without a waiter is not logged as lost
