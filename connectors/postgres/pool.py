"""PostgreSQL: the pool, transactions, and what its errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.postgres.sessions import SESSION, probed
from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.access import tls_refusal

# A statement that takes longer than this is stuck (the longest, reading 20,000 vectors, takes well under a second).
STATEMENT_SECONDS_MAX = 60.0

# A connection that nobody took for so long is closed, and opened again when it is wanted: the server keeps a process
# of some megabytes for each, and a role at rest needs one.
_UNUSED_SECONDS = 30.0

# How long somebody waits for a free connection before he is told to come again.
ACQUIRE_SECONDS = 5.0
# Of a read that somebody waits for.
READ_SECONDS_MAX = 5.0

# asyncpg's connection, or a pool's proxy of it: the stubs tell them apart, callers do not.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
# A row as functions take it that make values of rows.
Row: TypeAlias = "Mapping[str, Any] | asyncpg.Record"

# The one list of what means that the server is away, starting, stopping, without room, has cut a connection, or did not carry out
# a statement for reasons of its own: it is tried again without end, and nothing is dead-lettered for it. With their SQLSTATE.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,  # the connection is closed, or was given back
    # The server's last word came between two statements: "cannot switch to state 12; another operation (2) is in progress".
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.ReadOnlySQLTransactionError,  # 25006: the address leads to a standby until the next one is promoted
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03: the session was ended while its process was stopped
    asyncpg.TransactionTimeoutError,  # 25P04
    asyncpg.TransactionRollbackError,  # 40: deadlock, serialization
    asyncpg.InsufficientResourcesError,  # 53: disk, memory, connections
    asyncpg.LockNotAvailableError,  # 55P03: lock_timeout
    asyncpg.OperatorInterventionError,  # 57: cancelled, statement_timeout, shutdown, recovery
    asyncpg.PostgresIOError,  # 58030: its files cannot be read or written
    asyncpg.SnapshotTooOldError,  # 72
)
# Those of them that end the connection.
_SERVER_IS_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# What it raises when the server does not let this user in, or not in this way, or has no database of that name.
REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
# Worth another attempt: another transaction stood in the way. (`transaction` makes all but the last an `UnavailableError`.)
CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.UniqueViolationError,
)
# Data exceptions and violated constraints: of all that a server answers, what the data is to blame for.
_FAULTS_OF_DATA = frozenset({"22", "23"})


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
            max_inactive_connection_lifetime=_UNUSED_SECONDS,
            server_settings=dict(SESSION),
            init=probed,
            reset=None if is_cleaned else _kept_as_it_is,
        )
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error


def is_closed(pool: asyncpg.Pool[asyncpg.Record]) -> bool:
    """Whether a pool was closed, and is to be opened again."""
    return pool.is_closing()


async def open_connection(url: str, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
    """A connection of the caller's own; `options` are asyncpg's, settings of the session among them added to `SESSION`.

    Raises:
        AccessRefusedError: the server refuses the credentials, or is not trusted.
        UnavailableError: the server does not answer.
    """
    try:
        settings = {**SESSION, **options.pop("server_settings", {})}
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, server_settings=settings, **options)
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error
    await probed(connection)
    return connection


def connecting_error(error: BaseException) -> UnavailableError:
    """What a failure to connect means: a server that is unavailable, or one that refuses us or that we refuse."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return AccessRefusedError(f"the server of DATABASE_URL is not trusted (sslrootcert, sslmode): {untrusted}")
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return AccessRefusedError("DATABASE_URL: sslmode asks for TLS, which the server does not have")
    if isinstance(error, (*REFUSED, asyncpg.ClientConfigurationError)):
        return AccessRefusedError(f"DATABASE_URL is refused: {error}")
    return UnavailableError(f"PostgreSQL does not answer: {str(error) or type(error).__name__}")


@asynccontextmanager
async def transaction(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """One transaction at READ COMMITTED; a server that is unavailable is an `UnavailableError`."""
    async with reading(pool) as connection, connection.transaction(), _closed_when_silent(connection):
        yield connection


async def notify(tx: Connection, channel: str) -> None:
    """Wake who listens to a channel, once the transaction is committed: a hint, which carries nothing and may be lost."""
    await tx.execute(f"NOTIFY {channel}")


@asynccontextmanager
async def snapshot(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """A connection for statements that see the same moment and write nothing; errors as of `reading`."""
    async with (
        reading(pool) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
        _closed_when_silent(connection),
    ):
        yield connection


@asynccontextmanager
async def reading(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """A connection for statements that need not see the same moment; a server that is unavailable is an `UnavailableError`.

    A connection whose statement takes too long is closed; `pool.fetch(…, timeout=…)` would wait for a server that hangs to say
    that it has cancelled the statement.
    """
    with unavailable_when_away():
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection, _closed_when_silent(connection):
            yield connection


@asynccontextmanager
async def _closed_when_silent(connection: Connection) -> AsyncIterator[None]:
    """Close the connection when a statement has had no answer in time: a rollback or a reset would have none either."""
    try:
        yield
    except TimeoutError:
        connection.terminate()
        raise


async def fetched(
    pool: asyncpg.Pool[asyncpg.Record], statement: str, *arguments: Any, seconds_max: float = READ_SECONDS_MAX
) -> list[asyncpg.Record]:
    """Return the rows of one statement within a time limit; errors as in `reading`."""
    async with reading(pool) as connection:
        return list(await connection.fetch(statement, *arguments, timeout=seconds_max))


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
    """A server that is unavailable, or that did not carry out a statement for reasons of its own, is an `UnavailableError`."""
    try:
        yield
    except REFUSED as error:  # of a connection that a pool opens later
        raise connecting_error(error) from error
    except AWAY as error:
        raise UnavailableError(_unavailable_because(error)) from error
    except RuntimeError as error:
        if not is_away(error):
            raise
        raise UnavailableError(f"PostgreSQL is unavailable: {error}") from error


def is_away(error: BaseException) -> bool:
    """Whether an error says that the server is unavailable: `AWAY`, or uvloop's before asyncpg knows that a connection is cut."""
    return isinstance(error, AWAY) or (isinstance(error, RuntimeError) and "the handler is closed" in str(error))


def _unavailable_because(error: BaseException) -> str:
    """A server that did not carry out a statement answers, so that it would be wrong to call it away."""
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, _SERVER_IS_AWAY):
        return f"PostgreSQL did not carry out a statement ({_sqlstate(error)}): {error}"
    return f"PostgreSQL is unavailable: {str(error) or type(error).__name__}"


def _sqlstate(error: asyncpg.PostgresError) -> str:
    return getattr(error, "sqlstate", None) or ""


def is_of_the_store(error: BaseException) -> bool:
    """Whether an error says nothing against the data that was to be stored: it is retried, however long, and nothing is dropped.

    Of what PostgreSQL answers only the classes 22 (data exception) and 23 (integrity constraint violation) of SQLSTATE are the
    data's fault. All else (a cancelled statement, a full disk, a table that is not there yet) is the server's or ours.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _sqlstate(error)[:2] not in _FAULTS_OF_DATA
    return isinstance(error, UnavailableError) or is_away(error)
