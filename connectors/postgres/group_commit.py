"""Group commit: items that many tasks want stored at the same time are stored together, by one task at a time.

Invariant: each caller gets the outcome of its own item only. While PostgreSQL is unavailable, or fails for reasons of
its own, all of them wait (R1.31); an item that breaks a batch is found by storing each separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import asyncpg

from highwater.connectors.postgres.pool import AWAY
from highwater.schemas.errors import UnavailableError
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import get_log

T = TypeVar("T")
R = TypeVar("R")

# Enough to make the cost of a commit negligible; a batch of this size takes some 20 ms.
ITEMS_MAX = 256
# A conflict with another transaction passes; one that remains after this many attempts is a fault of the item.
_CONFLICTS_MAX = 8

_log = get_log("group-commit")


class GroupCommit(Generic[T, R]):
    """Calls `store` with the items collected since its last call; one result per item, in order."""

    def __init__(self, store: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._store = store
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: T) -> R:
        """Store an item; returns when it is committed."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="group-commit")
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:ITEMS_MAX], self._waiting[ITEMS_MAX:]
            # A cancelled caller no longer wants its item stored: one that was not begun is dropped.
            await self._settle([(item, future) for item, future in batch if not future.done()])

    async def _settle(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        if not batch:
            return
        try:
            results = await self._stored([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (it is raised in the caller that stores this)
            if len(batch) == 1:
                _fail(batch[0][1], error)
                return
            _log.warning("group_split", items=len(batch), reason=repr(error)[:300])
            for one in batch:
                await self._settle([one])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def _stored(self, items: Sequence[T]) -> Sequence[R]:
        attempt = conflicts = 0
        while True:
            try:
                return await self._store(items)
            except (UnavailableError, *AWAY, asyncpg.UniqueViolationError) as error:
                conflicts += isinstance(error, asyncpg.UniqueViolationError)
                if conflicts > _CONFLICTS_MAX:
                    raise
                attempt += 1
                if attempt == 1:
                    _log.warning("group_waits", items=len(items), reason=str(error)[:300])
                await asyncio.sleep(unavailable_seconds(attempt))


def _fail(future: asyncio.Future[R], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
