"""Leases on a real server: they end with their time or their session, and a former owner stores nothing more."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from highwater.connectors.engines.liveness import Liveness
from highwater.connectors.feeds.build_locks import BuildLocks
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.leases import LeaseKind, LeaseLostError, Leases, holding
from highwater.connectors.postgres.pool import open_connection
from highwater.connectors.postgres.sessions import keep_alive
from tests.conftest import Stack
from tests.integration.connecting import fresh, until

KIND = LeaseKind.CHUNK_INDEXES
EPOCH = "SELECT epoch FROM leases WHERE kind = $1 AND name = $2"


@pytest.fixture
async def session(stack: Stack, context: ProcessContext) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A session of a test's own, which it may end."""
    made = await open_connection(str(stack.database))
    yield made
    made.terminate()


async def test_a_lease_that_ran_out_is_another_owners(context: ProcessContext, session: Any):
    """One owner at a time; past its time another follows under a higher epoch, and the first can neither renew nor give up."""
    name = fresh("lease")
    first, second = Leases(KIND, seconds=0.5), Leases(KIND, seconds=60)
    async with context.pool.acquire() as other:
        assert [name] == await first.take(session, [name])
        assert await second.take(other, [name]) == []
        assert await first.renew(session, all_of_them=True) == []
        assert [name] == list(first.held)
        before = await other.fetchval(EPOCH, KIND, name)

        async def is_followed() -> bool:
            return bool(await second.take(other, [name]))

        await until(is_followed, "the other follows")
        assert list(first.held) == []
        assert [name] == await first.renew(session, all_of_them=True)
        await first.drop(session)
        assert await other.fetchval(EPOCH, KIND, name) > before
        await second.drop(other)


async def test_a_lease_ends_with_its_session(context: ProcessContext, session: Any):
    """A worker that ends is followed at once; one whose connection was cut takes its own lease again at once."""
    name = fresh("lease")
    first, second = Leases(KIND, seconds=600), Leases(KIND, seconds=600)
    async with context.pool.acquire() as other:
        assert [name] == await first.take(session, [name])
        assert [name] == await first.take(other, [name]), "its own, of a session that is still there"
        assert await second.take(session, [name]) == []
        await first.release(other)
        assert [name] == await second.take(session, [name])
        session.terminate()

        async def is_followed() -> bool:
            return bool(await first.take(other, [name]))

        await until(is_followed, "the end of the session is seen")
        await first.drop(other)


async def test_what_was_taken_over_stores_nothing(context: ProcessContext, session: Any):
    """A worker that hung past its lease finds its transaction void, although it still believes in its lease."""
    name = fresh("lease")
    async with holding(session, context.pool, KIND, name, seconds=60) as lease:
        assert lease is not None
        async with session.transaction():
            await lease.fence(session)
        await context.pool.execute(
            "UPDATE leases SET owner = 'another', epoch = epoch + 1 WHERE kind = $1 AND name = $2", KIND, name
        )
        with pytest.raises(LeaseLostError):
            async with session.transaction():
                await lease.fence(session)
        with pytest.raises(LeaseLostError):
            lease.check()
    async with holding(session, context.pool, KIND, name) as beside:
        assert beside is None


async def test_a_worker_that_hangs_is_gone_when_its_lease_ends(context: ProcessContext, session: Any):
    """While its connection stays open: what it holds is given back after its lease, and not before."""
    me, hung = 1, 2_000_000_000
    looks, other = Liveness(me, seconds=600), Liveness(hung, seconds=1.0)
    await other.hold(session)
    async with context.pool.acquire() as connection:
        assert [await looks.gone(connection, [me, hung]) for _ in range(2)] == [[], []]

        async def is_gone() -> bool:
            return await looks.gone(connection, [me, hung]) == [hung]

        await until(is_gone, "it is gone")
        await other.renew(session)
        assert [await looks.gone(connection, [me, hung]) for _ in range(2)] == [[], []]


async def test_a_build_of_a_feed_refuses_nobody(stack: Stack, session: Any):
    """Beside a process that builds without end a reader builds as well; behind one that hangs it waits for the lease alone."""
    user = fresh("u")
    locks = BuildLocks(str(stack.database))
    await Leases(LeaseKind.FEED_BUILD, seconds=600).take(session, [user])
    async with locks.hold(user, 0.2):
        assert await session.fetchval("SELECT count(*) FROM leases WHERE kind = 'feed-build' AND name = $1", user) == 1
    await session.execute("UPDATE leases SET expires_at = now() + interval '1 second' WHERE name = $1", user)
    async with asyncio.timeout(20), locks.hold(user, 600):
        pass
    await locks.close()


async def test_a_session_ends_that_nobody_is_behind(context: ProcessContext, session: Any):
    """A transaction that a stopped process left open, and a host that is gone, are known by settings of each session."""
    settings = "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
    async with context.pool.acquire() as pooled:
        assert [await one.fetchval(settings) for one in (pooled, session)] == ["60000", "60000"]
    await session.execute("SET idle_in_transaction_session_timeout = 50")
    await session.execute("BEGIN")
    await until(session.is_closed, "the server ends the session")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with socket.socket(fileno=os.dup(client.fileno())) as same:
            keep_alive(same)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
