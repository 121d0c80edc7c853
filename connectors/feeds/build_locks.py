"""Limits builds to one per user over all processes: leases in PostgreSQL, taken on one session per process.

Invariant: the lock saves work and blocks nobody. A process that dies releases it at once and one that hangs when its
lease ends; a reader that waited too long builds as well, which wastes work but does no harm, since storing is decided
by version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LEASE_SECONDS, LeaseKind, Leases
from highwater.connectors.postgres.pool import AWAY, open_connection
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

# How often a waiter checks whether the other process is done.
POLL_SECONDS = 0.1
CONNECT_SECONDS_MAX = 5.0
STATEMENT_SECONDS_MAX = 5.0

T = TypeVar("T")
_log = get_log("feeds")


class BuildLocks:
    """Locks by user. Within one process the caller ensures that a user is locked once."""

    def __init__(self, database_url: str | None, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._url = database_url
        self._leases = Leases(LeaseKind.FEED_BUILD, seconds=lease_seconds)
        self._renew_seconds = lease_seconds / 3
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._using = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, user_id: str, seconds_max: float) -> AsyncIterator[None]:
        """Hold the lock of a user, waiting for it up to `seconds_max`; then continue without it.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        deadline = monotonic_seconds() + seconds_max
        while not await self._on_session(lambda session: self._leases.take(session, [user_id])):
            if monotonic_seconds() >= deadline:
                _log.warning("feed_built_twice", user_id=user_id, reason="another build of it is still in progress")
                yield
                return
            await asyncio.sleep(POLL_SECONDS)
        renewing = asyncio.create_task(self._renew(), name="feed-build-lease")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with suppress(UnavailableError):  # a closed session has released everything
                await asyncio.shield(self._on_session(lambda session: self._leases.drop(session, [user_id])))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            with suppress(UnavailableError):  # without it another process may build as well
                await self._on_session(self._leases.renew)

    async def _on_session(self, act: Callable[[Any], Awaitable[T]]) -> T:
        if self._url is None:
            raise ConfigurationError("DATABASE_URL is not set; `highwater up` sets it for its own processes")
        async with self._using:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await open_connection(
                        self._url, timeout=CONNECT_SECONDS_MAX, command_timeout=STATEMENT_SECONDS_MAX
                    )
                    # Leases that killed processes have left.
                    await leases.drop_ended(self._connection, LeaseKind.FEED_BUILD)
                return await act(self._connection)
            except AWAY as error:
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None
                raise UnavailableError(f"PostgreSQL is unavailable: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the session, which releases every lock."""
        if self._connection is not None:
            self._connection.terminate()
