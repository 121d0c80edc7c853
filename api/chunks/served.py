"""Counts the searches that this process answered in each namespace and publishes the counts every ten seconds (R3.21).

Invariants. A search never waits for the count. Counts that could not be published are published with the next ones; a
killed process loses at most ten seconds of counts. Only existing namespaces are counted, so that requests for arbitrary
names cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import Clock
from highwater.streams.telemetry import get_log

# A namespace is hot by the queries of days, so ten seconds of delay do not matter, and a busy namespace costs six
# events a minute.
TELL_SECONDS = 10.0

_log = get_log("api")


class ServedSearches:
    """The counts of this process that are not published yet."""

    def __init__(self, clock: Clock, publish: Callable[[Sequence[Mapping[str, Any]]], Awaitable[Any]]) -> None:
        self._clock = clock
        self._publish = publish
        self._counts: dict[str, int] = {}
        self._since_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def note(self, ns: str) -> None:
        """Count an answered search; returns at once."""
        if not self._counts:
            self._since_ms = self._clock()
        self._counts[ns] = self._counts.get(ns, 0) + 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell_later(), name="served-searches")

    async def _tell_later(self) -> None:
        while self._counts:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TELL_SECONDS)
            await self.tell()
            if self._ending.is_set():
                return

    async def tell(self) -> None:
        """Publish the counts, one event per namespace; those that Kafka did not accept are kept."""
        counts, since_ms, now_ms = self._counts, self._since_ms, self._clock()
        self._counts = {}
        names = sorted(counts)
        outcomes = await asyncio.gather(
            *(self._publish([{"ns": ns, "queries": counts[ns], "since": since_ms, "at": now_ms}]) for ns in names),
            return_exceptions=True,
        )
        for ns, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, HighwaterError):
                _log.warning("searches are published later", ns=ns, queries=counts[ns], reason=str(outcome))
                self._keep(ns, counts[ns], since_ms)
            elif isinstance(outcome, BaseException):
                raise outcome

    def _keep(self, ns: str, queries: int, since_ms: int) -> None:
        self._since_ms = min(since_ms, self._since_ms) if self._counts else since_ms
        self._counts[ns] = self._counts.get(ns, 0) + queries

    async def close(self) -> None:
        """Publish the remaining counts, once."""
        self._ending.set()
        if self._task is not None:
            await self._task
