"""A database of a test's own: what is true of a whole store (its active basis) is not shared with other tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool
from tests.conftest import Stack
from tests.integration.connecting import fresh, surroundings


@asynccontextmanager
async def own_database(stack: Stack) -> AsyncIterator[ProcessContext]:
    """The session's parts, on an empty database with all tables."""
    name = fresh("db").replace("-", "_")
    async with surroundings(stack) as around:
        await around.pool.execute(f"CREATE DATABASE {name}")
        async with await open_pool(_at(stack, name), size_max=10) as pool:
            await migrate(pool)
            yield replace(around, pool=pool)
        await around.pool.execute(f"DROP DATABASE {name}")


async def address_of(stack: Stack, around: ProcessContext) -> str:
    """Where the database of these surroundings is."""
    return _at(stack, await around.pool.fetchval("SELECT current_database()"))


def _at(stack: Stack, name: str) -> str:
    address, _, options = stack.database.partition("?")
    return f"{address.rsplit('/', 1)[0]}/{name}" + (f"?{options}" if options else "")
