"""When questions to Redis are sent that many callers have: one is on its way at a time, and carries what all of them wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Questions:
    """Sends what waits at the end of the turn of the event loop in which the first began to wait.

    What comes while a question is on its way travels with the next one: under load each carries more and costs less. What fills
    one is sent at once.
    """

    def __init__(self, take: Callable[[], Coroutine[Any, Any, None] | None], name: str) -> None:
        """`take` takes all that waits, and asks; None where nothing does. `name` is that of its tasks."""
        self._take = take
        self._name = name
        self._is_due = False
        self._on_the_way: set[asyncio.Task[None]] = set()

    def wait(self, *, is_full: bool) -> None:
        """One more waits."""
        if is_full:
            self._send()
        elif not (self._is_due or self._on_the_way):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        question = self._take()
        if question is not None:
            task = asyncio.create_task(question, name=self._name)
            self._on_the_way.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._on_the_way.discard(task)
        if not self._on_the_way:
            self._send()
