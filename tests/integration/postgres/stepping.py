"""Statements of several actors on a real server, one at a time, in an order drawn by a seed.

Invariant: a seed gives the same order every time. An actor has one turn per statement; one that waits for a lock keeps its turn
until it has it, and the others continue meanwhile. Nothing depends on the clock: times are set, never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from random import Random  # noqa: TID251 (seeded: the same order in every run)
from typing import Any

# The actor of a statement; tasks inherit it.
_ACTOR: ContextVar[Actor] = ContextVar("actor")
# How long the server is given to answer before it is asked whether it has the actor wait for a lock.
_LOOK_SECONDS = 0.003
_SECONDS_MAX = 60.0


class Actor:
    """One of those whose statements are put in an order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: asyncio.Future[None] | None = None  # waits for it; None while a statement is in progress
        self.is_over = False
        self.is_blocked = False  # as the server said last
        self.server_pid: int | None = None
        self.moved = asyncio.Event()

    def wants_turn(self) -> asyncio.Future[None]:
        """Wait for the next turn."""
        self.turn = asyncio.get_running_loop().create_future()
        self.is_blocked = False
        self.moved.set()
        return self.turn

    @property
    def is_at_rest(self) -> bool:
        """Whether it has no statement in progress."""
        return self.is_over or self.turn is not None


class Interleaving:
    """Actors, dice, and a connection without locks; `order` is the actor of each turn."""

    def __init__(self, seed: int, monitor: Any) -> None:
        self.dice = Random(seed)
        self.order: list[str] = []
        self._monitor = monitor
        self._actors: list[Actor] = []

    async def run(self, works: Sequence[tuple[str, Coroutine[Any, Any, None]]]) -> None:
        """Run actors to their ends.

        Raises:
            AssertionError: all that are left wait for each other.
        """
        tasks = [self._started(name, work) for name, work in works]
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                while not all(actor.is_over for actor in self._actors):
                    await self._all_settled()
                    waiting = [actor for actor in self._actors if actor.turn is not None]
                    if not waiting:
                        assert not await self._are_all_blocked(), f"all wait for each other after {self.order}"
                        continue
                    chosen = self.dice.choice(waiting)
                    self.order.append(chosen.name)
                    turn, chosen.turn = chosen.turn, None
                    chosen.moved.clear()
                    assert turn is not None
                    turn.set_result(None)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one

    def _started(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        actor = Actor(name)
        self._actors.append(actor)

        async def acting() -> None:
            _ACTOR.set(actor)
            try:
                await work
            finally:
                actor.is_over = True
                actor.moved.set()

        return asyncio.create_task(acting(), name=name)

    async def _all_settled(self) -> None:
        """Wait until all actors are; a released lock lets another one continue."""
        while True:
            for actor in self._actors:
                await self._settled(actor)
            if all([actor.is_at_rest or await self._is_blocked(actor) for actor in self._actors]):
                return

    async def _settled(self, actor: Actor) -> None:
        """Wait until an actor has done what its turn was for, or waits for a lock."""
        while not actor.is_at_rest:
            # One that has been found to wait for a lock is asked after first: most likely it still does.
            if not actor.is_blocked:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(actor.moved.wait(), _LOOK_SECONDS)
                    continue
            if await self._is_blocked(actor):
                return

    async def _is_blocked(self, actor: Actor) -> bool:
        actor.is_blocked = bool(
            actor.server_pid is not None
            and await self._monitor.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", actor.server_pid)
        )
        return actor.is_blocked

    async def _are_all_blocked(self) -> bool:
        return all([await self._is_blocked(actor) for actor in self._actors if not actor.is_over] or [False])


class Stepped:
    """A connection whose statements wait for their turn."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        """Statements by their methods; everything else as it is."""
        found = getattr(self._connection, name)
        if name not in ("fetch", "fetchval", "fetchrow", "execute", "executemany", "copy_records_to_table"):
            return found

        async def in_turn(*arguments: Any, **more: Any) -> Any:
            await self.turn()
            return await found(*arguments, **more)

        return in_turn

    async def turn(self) -> None:
        """Wait for the turn of the calling actor."""
        actor = _ACTOR.get()
        actor.server_pid = self._connection.get_server_pid()
        await actor.wants_turn()

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        """A transaction; its commit has a turn of its own."""
        async with self._connection.transaction(**options):
            yield
            await self.turn()


class SteppedPool:
    """Hands out one connection, to one at a time, as a pool does."""

    def __init__(self, connection: Any) -> None:
        self._stepped = Stepped(connection)
        self._free = asyncio.Lock()

    @asynccontextmanager
    async def acquire(self, **_options: Any) -> AsyncIterator[Stepped]:
        """The connection."""
        async with self._free:
            yield self._stepped
