"""A database for each test: the state of a whole store (its active basis) is not shared with other tests.

The migrations run once per server, in a database that others are then copies of: an empty one takes half a second of the
processor to migrate and a tenth of that to copy, and some three hundred tests want one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from tests.conftest import Stack
from tests.integration.connecting import context_of, fresh

# Has our tables and no rows; it has its name once that is so.
_EMPTY = "highwater_empty"
# By the broker's address: a client has threads and connections, which hardly a test of a database needs.
_ADMINS: dict[str, Admin] = {}


async def make_database(admin_url: str, name: str) -> str:
    """A fresh database with our tables on the same server; returns its address."""
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", _EMPTY):
            unfinished = fresh("unfinished").replace("-", "_")
            await connection.execute(f"CREATE DATABASE {unfinished}")
            async with await open_pool(_beside(admin_url, unfinished)) as pool:
                await migrate(pool)
            await connection.execute(f"ALTER DATABASE {unfinished} RENAME TO {_EMPTY}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {_EMPTY}")
    finally:
        await connection.close()
    return _beside(admin_url, name)


@asynccontextmanager
async def own_database(stack: Stack) -> AsyncIterator[ProcessContext]:
    """The session's parts, on an empty database with all tables."""
    name = fresh("db").replace("-", "_")
    url = await make_database(stack.database, name)
    if stack.kafka not in _ADMINS:
        _ADMINS[stack.kafka] = Admin(stack.settings().kafka_client())
    async with await open_pool(url, size_max=10) as pool:
        yield await context_of(stack, pool, _ADMINS[stack.kafka])
    connection = await asyncpg.connect(stack.database)
    await connection.execute(f"DROP DATABASE {name}")
    await connection.close()


async def allow_restarted(admin_url: str) -> None:
    """Mark the server as compared with the log in every database: connectors and the API do it, and not every test has one."""
    connection = await asyncpg.connect(admin_url)
    try:
        names = await connection.fetch("SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate")
    finally:
        await connection.close()
    for (name,) in names:
        connection = await asyncpg.connect(_beside(admin_url, name))
        try:
            if await connection.fetchval("SELECT to_regclass('compared_servers') IS NOT NULL"):
                await connection.execute("UPDATE compared_servers SET started_at = pg_postmaster_start_time()")
        finally:
            await connection.close()


async def address_of(stack: Stack, context: ProcessContext) -> str:
    """The address of this context's database."""
    return _beside(stack.database, await context.pool.fetchval("SELECT current_database()"))


def _beside(url: str, name: str) -> str:
    address, _, options = url.partition("?")
    return f"{address.rsplit('/', 1)[0]}/{name}" + (f"?{options}" if options else "")
