"""A snapshot of the live database, and its rows a few at a time.

Invariant: it is read in one read-only transaction; what is compared with it is never completely in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from highwater.connectors.postgres.pool import STATEMENT_SECONDS_MAX, open_connection
from highwater.connectors.verify.statements import QUERIES
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings

_ROWS_AT_ONCE = 1_000
# A connection that is cut during a statement does not send a terminate message.
_CLOSING_SECONDS_MAX = 5.0

Row = tuple[Any, ...]


@asynccontextmanager
async def live_snapshot(settings: Settings) -> AsyncIterator[Any]:
    """Yield a connection that sees one snapshot until it is closed.

    Raises:
        ConfigurationError: DATABASE_URL is not set.
        UnavailableError: PostgreSQL does not answer.
    """
    if settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    connection: Any = await open_connection(
        settings.database,
        admit=None,
        timeout=5.0,
        command_timeout=STATEMENT_SECONDS_MAX,
        # Rows are compared with the log between two statements, for as long as that takes.
        server_settings={"application_name": "highwater verify", "idle_in_transaction_session_timeout": "0"},
    )
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            # The snapshot is that of the first statement, not of BEGIN.
            await connection.execute(QUERIES["verify_moment"])
            yield connection
    finally:
        await connection.close(timeout=_CLOSING_SECONDS_MAX)


class Rows:
    """The rows of a query in its order, a few at a time.

    `seconds_max`: how long a fetch may take, for a query that reads much before its first row.
    """

    def __init__(self, connection: Any, query: str, *, seconds_max: float = STATEMENT_SECONDS_MAX) -> None:
        self._connection = connection
        self._seconds_max = seconds_max
        self._query = query
        self._cursor: Any = None
        self._rows: Sequence[Row] = ()
        self._at = 0

    async def next(self) -> Row | None:
        """Return the next row; None at the end."""
        if self._cursor is None:
            self._cursor = await self._connection.cursor(self._query)
        if self._at == len(self._rows):
            self._rows = [tuple(row) for row in await self._cursor.fetch(_ROWS_AT_ONCE, timeout=self._seconds_max)]
            self._at = 0
            if not self._rows:
                return None
        self._at += 1
        return self._rows[self._at - 1]
