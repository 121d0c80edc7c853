"""The watch over runs: takes what is due, gives back what was lost, finds what was forgotten.

Law: every run ends in COMPLETED or FAILED (R1.37), whatever ends a worker, a command or a wait. A worker holds an advisory lock
as long as it lives, so that it is known to be gone at once; one that is silent loses its runs when their lease ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from connectors.patience import pause
from connectors.stores.postgres import AWAY, QUERIES
from connectors.stores.runs import Runs
from connectors.workers.queries.engine import Engine
from schemas.errors import UnavailableError
from streams.clock import Clock, monotonic_seconds
from streams.retry import unavailable_seconds
from streams.telemetry import get_log

# First number of the advisory locks; the second is the worker's.
_LOCK_CLASS = 7_430
# How exactly a wait ends; one small statement over an index of what waits.
LOOK_SECONDS = 0.2
# How soon the runs of a worker that is gone are given back; it must be seen gone twice, since one whose connection was cut comes
# back with its lock in between.
SEARCH_SECONDS = 1.0
# A command that nobody has followed in so long is lost: the log holds it, so this is the last resort.
SILENT_MS = 30_000
# Runs given back or taken in one transaction.
_RUNS_MAX = 500

_log = get_log("queries")


class Watch:
    """One process's share in the watch; beside the consumer of commands."""

    def __init__(self, database_url: str, runs: Runs, engine: Engine, clock: Clock) -> None:
        self._url = database_url
        self._runs = runs
        self._engine = engine
        self._clock = clock
        self._seen_gone: set[int] = set()
        self._searched_at = float("-inf")
        self.is_held = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set, then end the engine. PostgreSQL away is waited for."""
        attempt = 0
        while not stop.is_set():
            connection = None
            try:
                connection = await asyncpg.connect(self._url, timeout=5.0, command_timeout=30.0)
                await self._hold(connection)
                while not stop.is_set():
                    await self._look(connection)
                    attempt = 0
                    await pause(stop, LOOK_SECONDS)
                await self._engine.stop()
            except (*AWAY, UnavailableError) as error:
                attempt += 1
                if attempt == 1:
                    _log.warning("watch_waits", reason=str(error) or type(error).__name__)
                await pause(stop, unavailable_seconds(attempt))
            finally:
                self.is_held.clear()
                if connection is not None:
                    connection.terminate()  # closes at once; the lock goes with the session
        await self._engine.stop()

    async def _hold(self, connection: Any) -> None:
        """Take this worker's lock; its own former session may hold it for a moment after a cut connection."""
        await connection.execute(QUERIES["take_worker_lock"], _LOCK_CLASS, self._engine.worker)
        self.is_held.set()

    async def _look(self, connection: Any) -> None:
        now_ms, engine = self._clock(), self._engine
        with engine.reserved(_RUNS_MAX) as count:
            if count:
                worker, lease_ms = engine.worker, engine.lease_ms
                engine.take(await self._runs.take_due(worker=worker, lease_ms=lease_ms, now_ms=now_ms, most=count))
        if monotonic_seconds() - self._searched_at >= SEARCH_SECONDS:
            self._searched_at = monotonic_seconds()
            await self._search(connection, now_ms)

    async def _search(self, connection: Any, now_ms: int) -> None:
        engine = self._engine
        gone = await self._gone(connection)
        lost = await self._runs.give_back_lost(sorted(gone & self._seen_gone), now_ms=now_ms, most=_RUNS_MAX)
        self._seen_gone = gone
        if lost:
            _log.warning("runs_given_back", runs=len(lost))
        with engine.reserved(_RUNS_MAX) as count:
            if count:
                found = await self._runs.take_forgotten(
                    worker=engine.worker, lease_ms=engine.lease_ms, now_ms=now_ms, silent_ms=SILENT_MS, most=count
                )
                engine.take(found)

    async def _gone(self, connection: Any) -> set[int]:
        """Workers that hold runs and no lock."""
        rows = await connection.fetch(QUERIES["workers_with_runs"])
        gone = set()
        for row in rows:
            worker = row["worker"]
            if worker == self._engine.worker:
                continue
            if await connection.fetchval(QUERIES["try_worker_lock"], _LOCK_CLASS, worker):
                await connection.execute(QUERIES["release_worker_lock"], _LOCK_CLASS, worker)
                gone.add(worker)
        return gone
