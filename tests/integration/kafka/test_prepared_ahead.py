"""A batch that is prepared while the one before it is stored: it is used, or read again. Nothing is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.schemas.errors import FencedError, UnavailableError
from tests.conftest import Stack
from tests.integration.connecting import fresh, running, until
from tests.integration.kafka.making import Case, names
from tests.integration.kafka.tally import own_topic

DEADLINE_SECONDS = 60.0


@pytest.fixture
async def case(stack: Stack, context: ProcessContext) -> AsyncIterator[Case]:
    """A topic of two partitions and a group of the test's own."""
    topic = fresh("test.ahead")
    async with own_topic(context, topic) as made:
        yield Case(stack, made, topic)


class Watched:
    """A consumer whose first batch is not stored before a second one is prepared; then `act` decides its outcome."""

    def __init__(self, case: Case, act: Callable[[], Awaitable[None]], **more: object) -> None:
        self.prepared: list[list[str]] = []
        self.applied: list[list[str]] = []
        self._act = act
        self.consumer: BatchConsumer = case.consumer(
            batch_max=10, on_prepare=self._on_prepare, on_apply=self._on_apply, **more
        )

    async def _on_prepare(self, events: Sequence[Event]) -> None:
        self.prepared.append([event.value["user_id"] for event in events])

    async def _on_apply(self, events: Sequence[Event]) -> None:
        self.applied.append([event.value["user_id"] for event in events])
        if len(self.applied) == 1:
            await until(lambda: len(self.prepared) >= 2, "the next batch is prepared", DEADLINE_SECONDS)
            await self._act()


async def nothing() -> None:
    """The first batch is stored."""


async def unavailable() -> None:
    """The first batch is repeated; the prepared second one waits for its turn."""
    raise UnavailableError("for a moment")


async def fenced() -> None:
    """The first batch is void, and all is read again from the stored positions."""
    raise FencedError("by the test")


async def broken() -> None:
    """The first batch is tried in halves."""
    raise ValueError("by the test")


@pytest.mark.parametrize(("act", "applied"), [(nothing, 1), (unavailable, 2), (fenced, 2), (broken, 2)])
async def test_whatever_becomes_of_the_first_batch_all_is_stored_once(
    case: Case, act: Callable[[], Awaitable[None]], applied: int
):
    """Each event once and in the order of the log; a stored event was prepared in the same batch."""
    case.send(names(25), 0)
    watched = Watched(case, act)
    async with running(watched.consumer):
        await case.all_stored(names(25))
    assert watched.prepared[0][0] == names(1)[0]
    assert sum(names(1)[0] in batch for batch in watched.applied) == applied
    assert await case.positions() == {0: 25, 1: 0}
    rows = await case.context.pool.fetch('SELECT id FROM tally WHERE "group" = $1 ORDER BY "offset"', case.group)
    assert names(25) == [row["id"] for row in rows]


async def test_what_was_prepared_ahead_is_not_prepared_again(case: Case):
    """A batch whose turn comes is the one that was prepared."""
    case.send(names(40), 0)
    watched = Watched(case, nothing)
    async with running(watched.consumer):
        await case.all_stored(names(40))
    assert watched.prepared == watched.applied


async def test_a_stop_leaves_what_was_prepared_to_the_next(case: Case):
    """The batch running is stored, the one that was prepared is not, and the next consumer reads it."""
    case.send(names(25), 0)
    stop = asyncio.Event()

    async def stopping() -> None:
        stop.set()

    watched = Watched(case, stopping)
    await watched.consumer.run(stop)
    assert watched.applied == watched.prepared[:1]
    assert len(watched.applied[0]) == (await case.positions())[0]
    assert watched.applied[0] == await case.stored()
    async with running(case.consumer()):
        await case.all_stored(names(25))


async def test_a_cancelled_consumer_leaves_both_batches_to_the_next(case: Case):
    """Neither the batch running nor the prepared one is stored, and both are read again."""
    case.send(names(25), 0)
    held = asyncio.Event()

    async def hold() -> None:
        held.set()
        await asyncio.Event().wait()

    watched = Watched(case, hold)
    task = asyncio.create_task(watched.consumer.run(asyncio.Event()))
    await asyncio.wait_for(held.wait(), DEADLINE_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await case.stored() == []
    async with running(case.consumer()):
        await case.all_stored(names(25))


async def test_what_cannot_be_prepared_ahead_is_dealt_with_at_its_turn(case: Case):
    """A `prepare` that fails ahead of its turn, and then no more, stops nothing and loses nothing."""
    failed: list[int] = []
    stored: list[int] = []

    async def prepare(events: Sequence[Event]) -> None:
        if not stored and events[0].record.offset > 0:
            failed.append(len(events))
            raise UnavailableError("not yet")

    async def apply(events: Sequence[Event]) -> None:
        if not stored:
            await until(lambda: failed, "the next batch was tried", DEADLINE_SECONDS)
        stored.append(len(events))

    case.send(names(25), 0)
    async with running(case.consumer(batch_max=10, on_prepare=prepare, on_apply=apply)):
        await case.all_stored(names(25))
    assert failed
