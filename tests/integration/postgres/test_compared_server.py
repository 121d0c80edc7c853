"""A server that has started is not used before it was compared with the log, and one that went back catches up first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from highwater.connectors.backup.comparing import Comparison
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.postgres.pool import open_connection, open_pool
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped
from highwater.schemas.errors import UnavailableError
from highwater.streams.settings import Settings
from tests.conftest import Stack
from tests.integration.connecting import codec_of, send
from tests.integration.databases import address_of, own_database

CatchUp = Callable[[Mapping[Place, int]], Awaitable[None]]


class Server:
    """A database whose server has started again."""

    def __init__(self, stack: Stack, context: ProcessContext, settings: Settings) -> None:
        self.stack = stack
        self.context = context
        self.settings = settings

    def comparison(self, catch_up: CatchUp | None = None) -> Comparison:
        """The comparison of a process."""
        context = self.context
        return Comparison(self.settings, context.admin, context.registry.codec, context.clock, catch_up)

    async def refusal(self, comparison: Comparison) -> str:
        """Why the process gets no connection."""
        with pytest.raises(UnavailableError) as refused:
            await open_pool(self.settings.database, admit=comparison.admit)
        await comparison.close()
        return str(refused.value)

    async def admits(self, comparison: Comparison) -> bool:
        """Whether it gets one, and then any other process."""
        assert self.settings.database is not None
        async with await open_pool(self.settings.database, size_max=1, admit=comparison.admit) as pool:
            await pool.fetchval("SELECT 1")
        await comparison.close()
        await (await open_connection(self.settings.database)).close()
        return True

    async def go_back(self) -> Place:
        """Let the log have a record of the outbox with a version and an id that the database lacks; its partition."""
        event = VersionBumped(key="feed:went-back", version=7, etag="e", caused_by="", bumped_at=1, reason="")
        value = (await codec_of(self.stack)).encode(VERSION_BUMPED, event)
        (at,) = await asyncio.to_thread(
            send, self.stack.kafka, VERSION_BUMPED, [("feed:went-back", value, [("ce_id", b"outbox-999999999")])]
        )
        ids = await self.context.admin.topic_ids([VERSION_BUMPED])
        await self.context.pool.execute(
            "INSERT INTO positions VALUES ('cache', $1, $2, $3, $4)", *at[:2], ids[VERSION_BUMPED], at.offset
        )
        return at[:2]


@pytest.fixture
async def server(stack: Stack) -> AsyncIterator[Server]:
    """A database with our tables; its row names an earlier start."""
    async with own_database(stack) as context:
        await context.pool.execute("UPDATE compared_servers SET started_at = 'epoch'")
        yield Server(stack, context, stack.settings(DATABASE_URL=await address_of(stack, context)))


async def test_a_server_that_lost_nothing_is_used_once_it_was_compared(server: Server) -> None:
    """Connections are refused before, and one process compares for all."""
    assert server.settings.database is not None
    with pytest.raises(UnavailableError, match="not compared with the log yet"):
        await open_connection(server.settings.database)
    assert await server.admits(server.comparison())


async def test_a_server_that_went_back_catches_up_before_it_is_used(server: Server) -> None:
    """A process without sinks waits for one with them; an interrupted catch-up is repeated from the same positions."""
    place = await server.go_back()
    assert "lacks commits that the log knows" in await server.refusal(server.comparison())

    begun: list[Mapping[Place, int]] = []

    async def interrupted(starts: Mapping[Place, int]) -> None:
        begun.append(starts)
        await server.context.pool.execute("UPDATE positions SET next = next + 1")
        raise UnavailableError("the process was stopped")

    async def complete(starts: Mapping[Place, int]) -> None:
        begun.append(starts)

    assert "the process was stopped" in await server.refusal(server.comparison(interrupted))
    comparison = server.comparison(complete)
    assert await server.admits(comparison)
    assert begun[0] == begun[1]
    assert place in begun[0]
    assert (comparison.caught_up_ms or 0) > 0  # consumers read their positions again
    assert await server.context.pool.fetchval("SELECT count(*) FROM restore_progress") == 0


async def test_a_restore_in_progress_is_not_compared(server: Server) -> None:
    """It replaces the database, so the numbers of this moment prove nothing."""
    await server.context.pool.execute("INSERT INTO restore_progress (began_at, source) VALUES ('epoch', 'a backup')")
    assert "a restore from a backup is in progress" in await server.refusal(server.comparison())
