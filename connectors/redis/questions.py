"""Batches queries to Redis of many callers: one is in flight at a time, and carries what all of them wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Questions:
    """Sends waiting queries at the end of the event loop's turn in which the first began to wait.

    Queries that come while one is in flight are sent with the next one: under load each batch is larger and costs less.
    A full batch is sent at once.
    """

    def __init__(self, take: Callable[[], Coroutine[Any, Any, None] | None], name: str) -> None:
        """`take` removes all waiting queries and sends them; returns None without any. `name` is that of its tasks."""
        self._take = take
        self._name = name
        self._is_due = False
        self._on_the_way: set[asyncio.Task[None]] = set()

    def wait(self, *, is_full: bool) -> None:
        """Add one waiting query."""
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
