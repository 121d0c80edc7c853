"""One build a user at a time, over all processes: PostgreSQL's advisory locks, held by one session a process.

Law: a lock is let go with its session, so a process that dies holds nobody up. A session that is cut loses its locks while
their builds go on; a second build is then wasted work and no harm, since storing is decided by version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import AWAY, open_connection
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.clock import monotonic_seconds

# How often a waiter looks whether the other process is done.
POLL_SECONDS = 0.1
CONNECT_SECONDS_MAX = 5.0
STATEMENT_SECONDS_MAX = 5.0


class BuildLocks:
    """Locks by user. Within one process the caller sees to it that a user is locked once."""

    def __init__(self, database_url: str | None) -> None:
        self._url = database_url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._using = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, user_id: str, seconds_max: float) -> AsyncIterator[None]:
        """Hold the lock of a user, waiting for it up to `seconds_max`.

        Raises:
            UnavailableError: another build took too long, or PostgreSQL is away.
        """
        deadline = monotonic_seconds() + seconds_max
        while not await self._ask(QUERIES["feed_build_lock"], user_id):
            if monotonic_seconds() >= deadline:
                raise UnavailableError("another build of this feed is still under way")
            await asyncio.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            with suppress(UnavailableError):  # a session that is gone has let go of everything
                await asyncio.shield(self._ask(QUERIES["feed_build_unlock"], user_id))

    async def _ask(self, query: str, user_id: str) -> bool:
        if self._url is None:
            raise ConfigurationError("DATABASE_URL is not set; `highwater up` sets it for its own processes")
        async with self._using:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await open_connection(
                        self._url, timeout=CONNECT_SECONDS_MAX, command_timeout=STATEMENT_SECONDS_MAX
                    )
                return bool(await self._connection.fetchval(query, user_id))
            except AWAY as error:
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None
                raise UnavailableError(f"PostgreSQL is away: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the session, and with it let go of every lock."""
        if self._connection is not None:
            self._connection.terminate()
