"""The watch over the work of workers: claims due work, releases lost work, finds forgotten work.

Invariant: everything that was begun ends (R1.37, R2.41), even if a worker, a command or a wait is lost. Work of a
worker that is gone is released at once; a worker that hangs loses it when its lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from highwater.connectors.engines.lease_clock import LeaseClock
from highwater.connectors.engines.liveness import Liveness
from highwater.connectors.engines.slots import Slots
from highwater.connectors.postgres.pool import AWAY, CONFLICT, Connection, open_connection
from highwater.connectors.waiting import pause, pause_unless
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import get_log

# The precision of a wait; one small statement over an index of waiting work.
LOOK_SECONDS = 0.2
# How soon the work of a worker that is gone is released; and how often an idle watch, with all work ended, checks
# whether that is still so. A command of its own consumer wakes it at once.
SEARCH_SECONDS = 1.0
# A command without effect for this long is lost: the log contains it, so this is the last resort.
SILENT_MS = 30_000
# Released or claimed in one transaction.
_ITEMS_MAX = 500

T = TypeVar("T")
_log = get_log("watch")


class ClaimedWork(Protocol[T]):
    """The store of claimed work."""

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[T]:
        """Claim waiting work that is due."""

    async def take_forgotten(self, *, worker: int, lease_ms: int, now_ms: int, silent_ms: int, most: int) -> list[T]:
        """Claim work that no command requests."""

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[T]:
        """Return work of these workers, or with an expired lease, waiting again or ended."""

    async def workers(self, tx: Connection) -> list[int]:
        """Return the workers that hold any."""

    async def has_unended(self, tx: Connection) -> bool:
        """Return whether any work has not ended: otherwise nothing is due, lost or forgotten."""


class Watch(Generic[T]):
    """One process's part of the watch; beside the consumer of commands."""

    def __init__(
        self, database_url: str, store: ClaimedWork[T], slots: Slots[T], clock: Clock, *, channel: str | None = None
    ) -> None:
        """`channel`: wakes it in addition to its own consumer (`notify` of `connectors/postgres/pool.py`)."""
        self._url = database_url
        self._channel = channel
        self._store = store
        self._slots = slots
        self._clock = clock
        self._liveness = Liveness(slots.worker, seconds=slots.lease_ms / 1000)
        self._searched_at = float("-inf")
        self._is_at_rest = False
        self.is_held = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set, then end the work. If PostgreSQL is unavailable, wait for it."""
        attempt = 0
        while not stop.is_set():
            connection = None
            try:
                connection = await open_connection(self._url, timeout=5.0, command_timeout=30.0)
                await self._measure(connection)
                await self._liveness.hold(connection)
                if self._channel is not None:
                    await connection.add_listener(self._channel, self._on_notify)
                self.is_held.set()
                while not stop.is_set():
                    await self._liveness.renew(connection)
                    is_woken = self._slots.wake.is_set()
                    self._slots.wake.clear()
                    await self._look(connection, is_woken=is_woken)
                    attempt = 0
                    await pause_unless(stop, self._slots.wake, SEARCH_SECONDS if self._is_at_rest else LOOK_SECONDS)
                await self._slots.stop()
            except (*AWAY, *CONFLICT, UnavailableError) as error:
                attempt += 1
                if attempt == 1:
                    _log.warning("watch_waits", reason=str(error) or type(error).__name__)
                await pause(stop, unavailable_seconds(attempt))
            finally:
                self.is_held.clear()
                if connection is not None:
                    connection.terminate()  # closes at once; the lease ends with the session
        await self._slots.stop()

    def _on_notify(self, *_: object) -> None:
        self._slots.wake.set()

    async def _look(self, connection: Connection, *, is_woken: bool) -> None:
        if self._is_at_rest and not is_woken and not await self._store.has_unended(connection):
            return
        self._is_at_rest = False
        now_ms, slots = self._clock(), self._slots
        with slots.reserved(_ITEMS_MAX) as count:
            if count:
                due = await self._store.take_due(
                    worker=slots.worker, lease_ms=slots.lease_ms, now_ms=now_ms, most=count
                )
                slots.take(due)
        if monotonic_seconds() - self._searched_at >= SEARCH_SECONDS:
            self._searched_at = monotonic_seconds()
            await self._measure(connection)
            await self._search(connection, self._clock())
            self._is_at_rest = slots.is_empty and not await self._store.has_unended(connection)

    async def _measure(self, connection: Connection) -> None:
        if isinstance(self._clock, LeaseClock):
            await self._clock.measure(connection)

    async def _search(self, connection: Connection, now_ms: int) -> None:
        gone = await self._liveness.gone(connection, await self._store.workers(connection))
        lost = await self._store.give_back_lost(gone, now_ms=now_ms, most=_ITEMS_MAX)
        if lost:
            _log.warning("work_released", items=len(lost))
        slots = self._slots
        with slots.reserved(_ITEMS_MAX) as count:
            if count:
                found = await self._store.take_forgotten(
                    worker=slots.worker, lease_ms=slots.lease_ms, now_ms=now_ms, silent_ms=SILENT_MS, most=count
                )
                slots.take(found)
