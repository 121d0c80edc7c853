"""What works in part: partitions that consumers have stopped for bad events, as PostgreSQL has them.

Invariant: the answer is at most `SECONDS` old, and however many probes ask, PostgreSQL is asked once in that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from highwater.connectors.kafka.stopped import Stopped, all_stopped
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds

if TYPE_CHECKING:
    import asyncpg

# Probes come every few seconds; anybody may send them, since they carry no key.
SECONDS = 1.0


class Degraded:
    """Reads the stopped partitions of all consumers."""

    def __init__(self, pool: Callable[[], asyncpg.Pool[asyncpg.Record]]) -> None:
        self._pool = pool
        self._read_at: float | None = None
        self._found: list[Stopped] = []

    async def stopped(self) -> list[Stopped]:
        """The stopped partitions; those seen last while PostgreSQL is unavailable, which readiness reports by itself."""
        now = monotonic_seconds()
        if self._read_at is not None and now - self._read_at < SECONDS:
            return self._found
        self._read_at = now
        try:
            self._found = await all_stopped(self._pool())
        except UnavailableError:
            return self._found
        return self._found

    async def by_group(self) -> dict[str, str]:
        """For each consumer with stopped partitions what happened and the commands that resume them."""
        found: dict[str, str] = {}
        for stop in await self.stopped():
            found[stop.group] = f"{found[stop.group]}; {stop.text}" if stop.group in found else stop.text
        return found
