"""PostgreSQL: the pool, transactions, and the meaning of its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.postgres.sessions import SESSION, probed
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import AccessRefusedError, ConfigurationError, UnavailableError
from highwater.streams.access import tls_refusal

# A statement that takes longer than this is stuck (the longest, reading 20,000 vectors, takes well under a second).
STATEMENT_SECONDS_MAX = 60.0

# A connection that was idle for this long is closed, and opened again when it is needed: the server keeps a process of
# some megabytes for each, and an idle role needs one.
_UNUSED_SECONDS = 30.0

# How long a caller waits for a free connection before it must retry.
ACQUIRE_SECONDS = 5.0
# The limit of a read that a user waits for.
READ_SECONDS_MAX = 5.0

# asyncpg's connection, or a pool's proxy of it: the stubs distinguish them, callers do not.
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
# A row, as functions accept it that convert rows to values.
Row: TypeAlias = "Mapping[str, Any] | asyncpg.Record"

# All errors that mean: the server is unavailable, starting, stopping, out of space, has cut a connection, or failed for
# reasons of its own. The work is repeated without end, and nothing is dead-lettered. With their SQLSTATE.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,  # the connection is closed, or was returned to the pool
    # The server's last message came between two statements: "cannot switch to state 12; another operation (2) is in
    # progress".
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.ReadOnlySQLTransactionError,  # 25006: the address leads to a standby until the next one is promoted
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03: the session was ended while its process was paused
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
# Raised when the server refuses the user, the method or the database name.
REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
# Worth another attempt: a conflict with another transaction. (`transaction` turns all but the last into an
# `UnavailableError`.)
CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.UniqueViolationError,
)
# Data exceptions and violated constraints: the only server errors that the data causes.
_FAULTS_OF_DATA = frozenset({"22", "23"})


class StatementTimeoutError(TimeoutError):
    """A statement got no answer within its time; on a busy machine one of fewer rows may get one."""


# Decides whether a new connection may be used; raises an error of `AWAY` if not.
Admit: TypeAlias = "Callable[[Connection], Awaitable[None]]"


class NotComparedError(asyncpg.CannotConnectNowError):
    """The server was not compared with the log since it started, and may have gone back. Wait, or start `highwater connect`."""


async def compared_server(connection: Connection) -> int | None:
    """Return when the database last caught up with the log (ms since 1970, 0: never); None if this start of the server was
    not compared with the log yet.
    """
    try:
        caught_up_ms: int | None = await connection.fetchval(QUERIES["compared_server"])
    except asyncpg.UndefinedTableError:  # before `highwater init` made our tables there is nothing to compare
        return 0
    return caught_up_ms


async def refuse_uncompared(connection: Connection) -> None:
    """Refuse a server that was not compared with the log since it started.

    Raises:
        NotComparedError: it was not.
    """
    if await compared_server(connection) is None:
        raise NotComparedError(
            "PostgreSQL has started and is not compared with the log yet; `highwater connect` and the API do it"
        )


async def _kept_as_it_is(_connection: Any) -> None:
    """Do nothing: a connection without session locks or settings needs no cleaning."""


async def open_pool(
    url: str | None, *, size_max: int = 10, is_cleaned: bool = True, admit: Admit | None = refuse_uncompared
) -> asyncpg.Pool[asyncpg.Record]:
    """Open a pool of connections in UTC.

    Args:
        url: address of the server.
        size_max: maximum number of connections.
        is_cleaned: whether session state (locks, settings) is reset when a connection is returned, which costs a round
            trip;
            False if the connections are used only for transactions.
        admit: decides about each new connection; None for commands, which may also use a server that has gone back.

    Raises:
        ConfigurationError: no address is known.
        AccessRefusedError: the server refuses the credentials, or is not trusted.
        UnavailableError: the server does not answer.
    """
    if url is None:
        raise ConfigurationError("DATABASE_URL is not set; `highwater up` sets it for its own processes")

    async def begin(connection: Any) -> None:
        await probed(connection)
        if admit is not None:
            await admit(connection)

    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=size_max,
            command_timeout=STATEMENT_SECONDS_MAX,
            timeout=5.0,
            max_inactive_connection_lifetime=_UNUSED_SECONDS,
            server_settings=dict(SESSION),
            init=begin,
            reset=None if is_cleaned else _kept_as_it_is,
        )
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error


def is_closed(pool: asyncpg.Pool[asyncpg.Record]) -> bool:
    """Return whether a pool was closed, and has to be opened again."""
    return pool.is_closing()


async def open_connection(
    url: str, *, admit: Admit | None = refuse_uncompared, **options: Any
) -> asyncpg.Connection[asyncpg.Record]:
    """Open a connection of the caller's own; `options` are asyncpg's, with session settings added to `SESSION`, `admit` as
    of `open_pool`.

    Raises:
        AccessRefusedError: the server refuses the credentials, or is not trusted.
        UnavailableError: the server does not answer.
    """
    try:
        settings = {**SESSION, **options.pop("server_settings", {})}
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, server_settings=settings, **options)
        try:
            await probed(connection)
            if admit is not None:
                await admit(connection)
        except BaseException:
            connection.terminate()
            raise
    except (*AWAY, *REFUSED) as error:
        raise connecting_error(error) from error
    return connection


def connecting_error(error: BaseException) -> UnavailableError:
    """Return the error for a failure to connect: the server is unavailable, refuses us, or is not trusted."""
    untrusted = tls_refusal(error)
    if untrusted is not None:
        return AccessRefusedError(f"the server of DATABASE_URL is not trusted (sslrootcert, sslmode): {untrusted}")
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return AccessRefusedError("DATABASE_URL: sslmode asks for TLS, which the server does not have")
    if isinstance(error, (*REFUSED, asyncpg.ClientConfigurationError)):
        return AccessRefusedError(f"DATABASE_URL is refused: {error}")
    if isinstance(error, NotComparedError):
        return UnavailableError(str(error))
    return UnavailableError(f"PostgreSQL does not answer: {str(error) or type(error).__name__}")


@asynccontextmanager
async def transaction(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """Run one transaction at READ COMMITTED; an unavailable server is an `UnavailableError`."""
    async with reading(pool) as connection, connection.transaction(), _closed_when_silent(connection):
        yield connection


async def notify(tx: Connection, channel: str) -> None:
    """Wake the listeners of a channel once the transaction is committed: a hint without content, which may be lost."""
    await tx.execute(f"NOTIFY {channel}")


@asynccontextmanager
async def snapshot(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """Yield a connection for read-only statements that see one snapshot; errors as of `reading`."""
    async with (
        reading(pool) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
        _closed_when_silent(connection),
    ):
        yield connection


@asynccontextmanager
async def snapshot_with(pool: asyncpg.Pool[asyncpg.Record], settings: Mapping[str, str]) -> AsyncIterator[Connection]:
    """Yield the same with settings of the server, which hold until its end: with its beginning they are one round trip.

    asyncpg does not know of the transaction, so there are no cursors and none within it.
    """
    local = "".join(f"; SET LOCAL {name} = '{value}'" for name, value in settings.items())
    async with reading(pool) as connection, _closed_when_silent(connection):
        try:
            await connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{local}")
            yield connection
        except BaseException:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")


@asynccontextmanager
async def reading(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Connection]:
    """Yield a connection for statements that need no common snapshot; an unavailable server is an `UnavailableError`.

    A connection whose statement takes too long is closed; `pool.fetch(…, timeout=…)` would wait for a hanging server to
    confirm that it cancelled the statement.
    """
    with converting_to_unavailable():
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection, _closed_when_silent(connection):
            yield connection


@asynccontextmanager
async def _closed_when_silent(connection: Connection) -> AsyncIterator[None]:
    """Close the connection if a statement got no answer in time: a rollback or a reset would get none either."""
    try:
        yield
    except TimeoutError as error:
        connection.terminate()
        raise StatementTimeoutError("a statement got no answer within its time") from error


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
    """Return the row of a statement that always returns one; `seconds_max` is a limit of its own."""
    row = await connection.fetchrow(statement, *arguments, timeout=seconds_max)
    assert row is not None, statement
    return row


@contextmanager
def converting_to_unavailable() -> Iterator[None]:
    """Convert an unavailable server, or one that failed for reasons of its own, to an `UnavailableError`."""
    try:
        yield
    except REFUSED as error:  # of a connection that a pool opens later
        raise connecting_error(error) from error
    except AWAY as error:
        raise UnavailableError(_unavailable_because(error)) from error
    except RuntimeError as error:
        if not is_unavailable(error):
            raise
        raise UnavailableError(f"PostgreSQL is unavailable: {error}") from error


def is_unavailable(error: BaseException) -> bool:
    """Return whether an error means that the server is unavailable: `AWAY`, or uvloop's error before asyncpg notices a
    cut connection.
    """
    return isinstance(error, AWAY) or (isinstance(error, RuntimeError) and "the handler is closed" in str(error))


def _unavailable_because(error: BaseException) -> str:
    """Return the reason; a server that failed a statement did answer, so it is not called unavailable."""
    if isinstance(error, NotComparedError):
        return str(error)
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, _SERVER_IS_AWAY):
        return f"PostgreSQL did not carry out a statement ({_sqlstate(error)}): {error}"
    return f"PostgreSQL is unavailable: {str(error) or type(error).__name__}"


def _sqlstate(error: asyncpg.PostgresError) -> str:
    return getattr(error, "sqlstate", None) or ""


def is_of_the_store(error: BaseException) -> bool:
    """Return whether an error is not the data's fault: the work is repeated without end, and nothing is dropped.

    Among PostgreSQL's errors only the SQLSTATE classes 22 (data exception) and 23 (integrity constraint violation) are
    the data's fault. All others (a cancelled statement, a full disk, a missing table) are the server's or ours.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _sqlstate(error)[:2] not in _FAULTS_OF_DATA
    return isinstance(error, UnavailableError) or is_unavailable(error)
