"""PostgreSQL: the pool, the migrations, and the statements in `sql/*.sql` by name.

Every statement that the product runs stands in that folder, one file a subsystem, so that a reader finds all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from highwater.schemas.errors import ConfigurationError, UnavailableError

_FOLDER = Path(__file__).parent
# An arbitrary constant that only the migrations lock; the outbox uses the two-number form of advisory locks.
_MIGRATION_LOCK = 4_815_162_342
# A statement that takes longer than this is stuck (the longest, reading 20,000 vectors, takes well under a second).
STATEMENT_SECONDS_MAX = 60.0

# How long somebody waits for a free connection before he is told to come again.
ACQUIRE_SECONDS = 5.0

Connection = Any  # asyncpg's Connection or a pool's proxy of it; the stubs tell them apart, the callers do not

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
# Worth another attempt: another transaction stood in the way.
CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.LockNotAvailableError,
)


def _load_queries(folder: Path) -> dict[str, str]:
    queries: dict[str, str] = {}
    for path in sorted(folder.glob("*.sql")):
        blocks = re.split(r"^-- name: (\w+)\s*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        for name, body in zip(blocks[::2], blocks[1::2], strict=True):
            if name in queries:
                raise ConfigurationError(f"{path.name} names {name} a second time")
            queries[name] = body.strip()
    return queries


QUERIES: Mapping[str, str] = _load_queries(_FOLDER / "sql")


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
    except AWAY as error:
        raise UnavailableError(f"PostgreSQL does not answer: {error or type(error).__name__}") from error


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


@contextmanager
def unavailable_when_away() -> Iterator[None]:
    """A server that is away is an `UnavailableError`."""
    try:
        yield
    except AWAY as error:
        raise UnavailableError(f"PostgreSQL is away: {error or type(error).__name__}") from error


def _migrations() -> list[tuple[str, str]]:
    return [(path.stem, path.read_text(encoding="utf-8")) for path in sorted((_FOLDER / "migrations").glob("*.sql"))]


async def migrate(pool: asyncpg.Pool[asyncpg.Record]) -> list[str]:
    """Apply the migrations not yet applied, each in order, all under one lock; returns their names.

    Raises:
        ConfigurationError: an applied migration was changed since.
    """
    applied = []
    async with transaction(pool) as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        await tx.execute("CREATE TABLE IF NOT EXISTS schema_migrations (name text PRIMARY KEY, sha256 text NOT NULL)")
        known = {row["name"]: row["sha256"] for row in await tx.fetch("SELECT name, sha256 FROM schema_migrations")}
        for name, text in _migrations():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if name not in known:
                await tx.execute(text)
                await tx.execute("INSERT INTO schema_migrations VALUES ($1, $2)", name, digest)
                applied.append(name)
            elif known[name] != digest:
                raise ConfigurationError(f"migration {name} was changed after it was applied; write a new one instead")
    return applied
