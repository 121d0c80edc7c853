"""The turns of steps that are begun in a process: one that a worker did not survive is begun alone.

Invariant: while a step is begun that was begun before, no other one is. So if the process ends again, that step is the cause,
and the others are not counted as its causes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Shared by the engines of a process. One event loop at a time."""

    def __init__(self) -> None:
        self._begun = 0
        self._is_alone = False
        self._alone_waiting = 0
        self._changed: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def begun(self, *, is_alone: bool) -> AsyncIterator[None]:
        """Wait for the turn of a step; `is_alone`: it was begun before. Such steps come first."""
        self._alone_waiting += is_alone
        try:
            while self._begun if is_alone else self._is_alone or self._alone_waiting:
                changed = asyncio.get_running_loop().create_future()
                self._changed.append(changed)
                await changed
        finally:
            self._alone_waiting -= is_alone
        self._begun += 1
        self._is_alone = is_alone
        try:
            yield
        finally:
            self._begun -= 1
            self._is_alone = False
            waiting, self._changed = self._changed, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)
