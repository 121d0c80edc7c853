"""PostgreSQL: the pool, transactions, and what its errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import asyncpg

from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.access import tls_refusal

# A statement that takes longer than this is stuck (the longest, reading 20,000 vectors, takes well under a second).
STATEMENT_SECONDS_MAX = 60.0

# How long somebody waits for a free connection before he is told to come again.
ACQUIRE_SECONDS = 5.0

# asyncpg's connection, or a pool's proxy of it: the stubs tell them apart, callers do not.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
# A row as functions take it that make values of rows.
Row: TypeAlias = "Mapping[str, Any] | asyncpg.Record"

# What asyncpg raises when the server is away, starting, stopping, or has cut the connection.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
# What it raises when the server does not let this user in, or not in this way.
REFUSED = (asyncpg.InvalidAuthorizationSpecificationError,)
# Worth another attempt: another transaction stood in the way.
CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.LockNotAvailableError,
)


async def _kept_as_it_is(_connection: Any) -> None:
    """A connection that nobody gives locks or settings of its own needs no cleaning."""


async def open_pool(url: str | None, *, size_max: int = 10, is_cleaned: bool = True) -> asyncpg.Pool[asyncpg.Record]:
    """A pool of connections in UTC.

    Args:
        url: address of the server.
        size_max: connections at most.
        is_cleaned: what a user leaves on a connection (locks, settings) is taken from it when it is given back, which costs a
            round trip; False where all that is done on it are transactions.

    Raises:
        ConfigurationError: no address is known.
        AccessRefusedError: the server refuses the credentials, or is not trusted.
        UnavailableError: the server does not answer.
    """
    if url is None:
        raise ConfigurationError("DATABASE_URL is not set; `highwater up` sets it for its own processes")
    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=size_max,
            command_timeout=STATEMENT_SECONDS_MAX,
            timeout=5.0,
            server_settings={"timezone": "UTC", "application_name": "highwater"},
            reset=None if is_cleaned else _kept_as_it_is,
        )
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error


async def open_connection(url: str, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
    """A connection of the caller's own; `options` are asyncpg's.

    Raises:
        AccessRefusedError: the server refuses the credentials, or is not trusted.
        UnavailableError: the server does not answer.
    """
    try:
        return await asyncpg.connect(url, **options)
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error


def connecting_error(error: BaseException) -> UnavailableError:
    """What a failure to connect means: a server that is away, or one that refuses us or that we refuse."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return AccessRefusedError(f"the server of DATABASE_URL is not trusted (sslrootcert, sslmode): {untrusted}")
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return AccessRefusedError("DATABASE_URL: sslmode asks for TLS, which the server does not have")
    if isinstance(error, (*REFUSED, asyncpg.ClientConfigurationError)):
        return AccessRefusedError(f"DATABASE_URL is refused: {error}")
    return UnavailableError(f"PostgreSQL does not answer: {error or type(error).__name__}")


@asynccontextmanager
async def transaction(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """One transaction at READ COMMITTED; a server that is away is an `UnavailableError`."""
    async with reading(pool) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def reading(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """A connection for statements that need not see the same moment; a server that is away is an `UnavailableError`."""
    with unavailable_when_away():
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            yield connection


async def one_row(
    connection: Connection | asyncpg.Pool[asyncpg.Record],
    statement: str,
    *arguments: Any,
    seconds_max: float | None = None,
) -> asyncpg.Record:
    """The row of a statement that always gives one; `seconds_max` is a limit of its own."""
    row = await connection.fetchrow(statement, *arguments, timeout=seconds_max)
    assert row is not None, statement
    return row


@contextmanager
def unavailable_when_away() -> Iterator[None]:
    """A server that is away is an `UnavailableError`."""
    try:
        yield
    except REFUSED as error:  # of a connection that a pool opens later
        raise connecting_error(error) from error
    except AWAY as error:
        raise UnavailableError(f"PostgreSQL is away: {error or type(error).__name__}") from error
