"""The work that an engine holds: each item in a task of its own, up to a maximum, ended in order.

Invariant: no more work is claimed than there are slots, and none after a stop began. Work that does not end before a
stop is released.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock
from highwater.streams.telemetry import get_log

# A stop waits this long for calls in progress; the remaining work is released, and another process begins it again.
STOP_SECONDS = 5.0

T = TypeVar("T")
_log = get_log("slots")


class ElsewhereError(Exception):
    """The work was lost to another worker, or it was ended. The result of this worker is dropped."""


class Slots(ABC, Generic[T]):
    """Processes the work of this process until it is stopped; `slots` is the maximum at once."""

    def __init__(self, clock: Clock, *, worker: int, lease_ms: int, slots: int) -> None:
        self.worker = worker
        self.lease_ms = lease_ms
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = slots
        self._reserved = 0
        self._is_stopping = False
        # Set when something may be claimed at once: the watch then does not wait for its next check.
        self.wake = asyncio.Event()

    @abstractmethod
    async def _work(self, work: T) -> None:
        """Process it until it has ended, waits or is elsewhere (`ElsewhereError`)."""

    @abstractmethod
    async def _hand_over(self) -> None:
        """Release the remaining work."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the engine's resources."""

    @property
    def free(self) -> int:
        """Return how many items may be claimed now."""
        return max(0, self._slots - len(self._tasks) - self._reserved)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is processed or about to be."""
        return not self._tasks and not self._reserved

    @contextmanager
    def reserved(self, most: int) -> Iterator[int]:
        """Reserve slots for items that are about to be claimed; yield how many, perhaps none."""
        count = min(most, self.free)
        self._reserved += count
        try:
            yield count
        finally:
            self._reserved -= count

    def take(self, held: Iterable[T]) -> None:
        """Process an item that this process holds."""
        for one in held:
            task = asyncio.create_task(self._guarded(one), name=type(one).__name__)
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.wake.set()  # something may wait for the slot

    async def _guarded(self, work: T) -> None:
        try:
            await self._work(work)
        except ElsewhereError:
            await self._found_elsewhere(work)
        except Exception:  # noqa: BLE001 (not even its failure could be stored; its lease ends and it is begun again)
            _log.exception("left", held=getattr(work, "id", None))

    @abstractmethod
    async def _found_elsewhere(self, work: T) -> None:
        """Count it."""

    async def stop(self) -> None:
        """Wait a moment for calls in progress, then release the remaining work."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._hand_over()
        except UnavailableError as error:
            _log.warning("not_handed_over", reason=str(error))  # it is found lost, and begun again
        await self._close()
