"""A database that a restore has not finished: nothing works on it until the restore has ended."""

from __future__ import annotations

import asyncio
import contextlib

from highwater.connectors import run
from tests.conftest import Stack
from tests.integration.connecting import until
from tests.integration.databases import address_of, own_database


async def test_connect_waits_until_a_restore_has_ended(stack: Stack) -> None:
    """It reports why it is not ready, and continues once the row is removed."""
    async with own_database(stack) as context, contextlib.AsyncExitStack() as resources:
        await context.pool.execute(
            "INSERT INTO restore_progress (began_at, source) VALUES ('epoch', 'a backup of 2026')"
        )
        settings = stack.settings(DATABASE_URL=await address_of(stack, context))
        waiting: dict[str, str] = {}
        starting = asyncio.create_task(run._surroundings(settings, waiting, asyncio.Event(), resources))
        await until(lambda: "a restore from a backup of 2026" in waiting.get("connect", ""), "connect did not wait")
        assert not starting.done()
        await context.pool.execute("DELETE FROM restore_progress")
        assert await asyncio.wait_for(starting, 60) is not None
        await resources.aclose()
