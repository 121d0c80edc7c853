"""Leases on copies in memory: why an acknowledged bump is never followed by the old answer.

While a process holds a lease it may serve verified copies without a query. To renew it, it reads the barrier, then the
versions of all its copies, drops stale ones, and only then writes that it has seen the barrier. A writer announces a
version, raises the barrier, waits until every lease has seen it or has ended, and only then commits the version.

- Barrier before versions: a process that has seen the barrier read the versions after the announcement.
- Drop before write: no process counts as informed while it might still serve the old copy.
- The holder counts the lease from before the renewal began, on a clock that also runs while the process is paused;
  PostgreSQL counts it from later. A process that was paused (SIGSTOP) and resumed finds its lease ended and queries.
- Leases are stored where versions are committed, in PostgreSQL: a writer that can commit can see them even if
  Redis is lost, and a process that loses PostgreSQL loses its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from highwater.connectors.pages.copies import Copies
from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.pool import AWAY, open_connection, reading
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import lease_seconds
from highwater.streams.telemetry import LEASE_HELD, get_log

LEASE_SECONDS = 0.5
# The holder counts a tenth less, for clocks of different speed.
HELD_SECONDS = 0.9 * LEASE_SECONDS
# Three attempts within a lease, so that one slow renewal loses nothing.
RENEW_SECONDS = 0.15
# A process whose copies nobody reads lets its lease end: then writers need not wait for it.
IDLE_SECONDS = 5.0
CHANNEL = "highwater_copies"
_CONNECT_SECONDS_MAX = 5.0
_STATEMENT_SECONDS_MAX = 2.0
_RETRY_SECONDS = 1.0
# How often a writer polls; a notified process renews within a few milliseconds.
_POLL_SECONDS = 0.005

_log = get_log("leases")


class CopyLease:
    """The lease of this process on its copies."""

    def __init__(self, database_url: str | None, copies: Copies, holder: str) -> None:
        self._url = database_url
        self._copies = copies
        self._holder = holder
        self._until = float("-inf")
        self._used_at = float("-inf")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        LEASE_HELD.set_function(lambda: float(self.is_held()))

    def is_held(self) -> bool:
        """Return whether verified copies may be served without a query now."""
        return lease_seconds() < self._until

    def use(self) -> bool:
        """Return `is_held`, and note a read: an expired lease is taken again."""
        now = lease_seconds()
        if now - self._used_at > IDLE_SECONDS:
            self._wake.set()
        self._used_at = now
        return now < self._until

    def start(self) -> None:
        """Hold the lease from now on, in the background, while there are readers."""
        if self._url is not None and self._task is None:
            self._task = asyncio.create_task(self._hold(self._url), name="copy-lease")

    async def close(self) -> None:
        """End the lease."""
        self._until = float("-inf")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _hold(self, url: str) -> None:
        while True:
            try:
                connection = await open_connection(
                    url, timeout=_CONNECT_SECONDS_MAX, command_timeout=_STATEMENT_SECONDS_MAX
                )
                try:
                    await connection.add_listener(CHANNEL, lambda *_: self._wake.set())
                    await self._renew_until_lost(connection)
                finally:
                    self._until = float("-inf")
                    with contextlib.suppress(*AWAY):
                        await connection.execute(QUERIES["end_copy_lease"], self._holder)
                    connection.terminate()
            except (*AWAY, UnavailableError) as error:
                _log.warning("lease_lost", reason=str(error) or type(error).__name__, effect="reads ask for versions")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _renew_until_lost(self, connection: Any) -> None:
        while True:
            self._wake.clear()
            if lease_seconds() - self._used_at < IDLE_SECONDS:
                await self._renew(connection)
            timeout = RENEW_SECONDS if lease_seconds() - self._used_at < IDLE_SECONDS else IDLE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)

    async def _renew(self, connection: Any) -> None:
        started = lease_seconds()
        asked = self._copies.keys()
        async with connection.transaction():
            barrier = await connection.fetchval(QUERIES["copy_barrier"])
            rows = await connection.fetch(QUERIES["copy_versions"], asked)
            self._copies.verify(asked, {row["key"]: row["version"] for row in rows})
            await connection.execute(QUERIES["renew_copy_lease"], self._holder, barrier, LEASE_SECONDS)
        self._until = started + HELD_SECONDS


async def wait_until_invalidated(pool: Any) -> None:
    """Wait until no process serves a copy from memory that is older than what was announced or committed before this
    call.

    Raises:
        UnavailableError: PostgreSQL is unavailable; the leases end by themselves within `LEASE_SECONDS`.
    """
    async with reading(pool) as connection:
        barrier = await connection.fetchval(QUERIES["raise_copy_barrier"], CHANNEL)
        while await connection.fetchval(QUERIES["copies_not_told"], barrier):  # noqa: ASYNC110 (another process has to change it)
            await asyncio.sleep(_POLL_SECONDS)
