"""`highwater upgrade --check` on the real parts: what it says of them, and that it changes nothing."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import asyncpg

from highwater.api.cli.upgrade import check_upgrade
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.migrate import known_migrations
from tests.conftest import Stack
from tests.integration.commands import run
from tests.integration.databases import address_of, own_database


async def test_it_tells_what_init_would_do_and_who_is_connected(stack: Stack) -> None:
    """A database at the last migration but one, schemas that the registry has, and a role of an older version beside ours."""
    *applied, last = known_migrations()
    async with own_database(stack) as context:
        await context.pool.execute("DELETE FROM schema_migrations WHERE name = $1", last)
        url = await address_of(stack, context)
        found = await _checks(stack, url)
        assert found["migrations"] == ("ok", f"1 to apply: {last}")
        assert found["schemas"][0] == "ok"
        assert found["roles"][0] == "ok"
        older = await asyncpg.connect(url, server_settings={"application_name": "highwater/0.0.1"})
        try:
            state, told = (await _checks(stack, url))["roles"]
        finally:
            await older.close()
        assert state == "warning"
        assert told.startswith(f"of several versions: 0.0.1 (1 connection), {version('highwater')} (")
        assert await _applied(context) == applied


async def _checks(stack: Stack, url: str) -> dict[str, tuple[str, str]]:
    found = await check_upgrade(stack.settings(DATABASE_URL=url))
    return {check.name: (check.state, check.detail) for check in found}


async def _applied(context: ProcessContext) -> list[str]:
    return [row["name"] for row in await context.pool.fetch("SELECT name FROM schema_migrations ORDER BY name")]


async def test_it_does_nothing_else(environment: dict[str, str]) -> None:
    """Without --check it says so: exit status 2."""
    done = await asyncio.to_thread(run, environment, "upgrade")
    assert (done.returncode, done.stdout) == (2, "")
    assert "only `highwater upgrade --check` is known" in done.stderr
