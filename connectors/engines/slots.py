"""What an engine holds: each item in a task of its own, so many at once, ended in order.

Invariant: nothing is taken beyond the slots, and nothing after the stop began. What was not ended by a stop is given back.
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

# A stop waits so long for calls under way; what is left is given back and begun again by somebody else.
STOP_SECONDS = 5.0

T = TypeVar("T")
_log = get_log("slots")


class ElsewhereError(Exception):
    """The work was lost to another worker, or it was ended. The result of this worker is dropped."""


class Slots(ABC, Generic[T]):
    """Works on what this process holds until it is stopped; `slots` bounds how much at once."""

    def __init__(self, clock: Clock, *, worker: int, lease_ms: int, slots: int) -> None:
        self.worker = worker
        self.lease_ms = lease_ms
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = slots
        self._reserved = 0
        self._is_stopping = False
        # Set where something may be taken at once: the watch does not wait out its look then.
        self.wake = asyncio.Event()

    @abstractmethod
    async def _work(self, held: T) -> None:
        """Work on it until it has ended, waits or is elsewhere (`ElsewhereError`)."""

    @abstractmethod
    async def _hand_over(self) -> None:
        """Give back what is still held."""

    @abstractmethod
    async def _close(self) -> None:
        """Let go of what the work was done with."""

    @property
    def free(self) -> int:
        """How many may be taken now."""
        return max(0, self._slots - len(self._tasks) - self._reserved)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is worked on, nor about to be."""
        return not self._tasks and not self._reserved

    @contextmanager
    def reserved(self, most: int) -> Iterator[int]:
        """Slots kept for what is about to be captured and taken; how many, perhaps none."""
        count = min(most, self.free)
        self._reserved += count
        try:
            yield count
        finally:
            self._reserved -= count

    def take(self, held: Iterable[T]) -> None:
        """Work on what is held by this process."""
        for one in held:
            task = asyncio.create_task(self._guarded(one), name=type(one).__name__)
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.wake.set()  # something may wait for the slot

    async def _guarded(self, held: T) -> None:
        try:
            await self._work(held)
        except ElsewhereError:
            await self._found_elsewhere(held)
        except Exception:  # noqa: BLE001 (not even its failure could be stored; its lease ends and it is begun again)
            _log.exception("left", held=getattr(held, "id", None))

    @abstractmethod
    async def _found_elsewhere(self, held: T) -> None:
        """Count it."""

    async def stop(self) -> None:
        """Let calls under way come to their end for a moment, then give back what is left."""
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
