"""What a rebalance waits for, and the offset to which it returns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher, FetchError
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import GroupLoadInProgressError, NoOffsetForPartitionError
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v1, OffsetFetchResponse_v3
from faust.types import TP

from highwater.streams.app import _Consumer
from highwater.streams.folding import Handover
from highwater.streams.folding_consumer import _unpacked, refused_as_a_whole


class Message:
    """A record that an agent has processed; its other copies are ignored."""

    acked, refcount = False, 1


class Consumer(_Consumer):  # type: ignore[misc]
    """The library's consumer without its transport; notes when it commits."""

    should_stop = False

    def __init__(self, *agents: Any) -> None:
        self.transport = SimpleNamespace(agents=agents)
        self.loop = None
        self.committed = 0

    async def commit_and_end_transactions(self) -> None:
        """Note it."""
        self.committed += 1


async def test_a_rebalance_waits_for_events_under_way_and_nothing_else():
    """Not for messages whose copies were thrown away unseen: the library waits for those without end."""
    agent = SimpleNamespace(is_at_event=True)
    consumer = Consumer(agent, SimpleNamespace(is_at_event=False))
    consumer._unacked_messages = {Message()}
    waiting = asyncio.create_task(consumer.wait_empty())
    await asyncio.sleep(0.05)
    assert (waiting.done(), consumer.committed) == (False, 0)
    agent.is_at_event = False
    await asyncio.wait_for(waiting, 5)
    assert consumer.committed == 1


PLACE = TP("league.match-changed", 5)


class Thread:
    """The library's client in a thread: a fetch ends on demand, and its position is then after its last record."""

    def __init__(self) -> None:
        self.position = 0
        self.may_end = asyncio.Event()
        self.waits: list[float] = []
        self.is_empty = False

    async def getmany(self, _partitions: object, timeout: float) -> dict[TP, list[int]]:  # noqa: ASYNC109 (the library's)
        """Two records from its position on."""
        self.waits.append(timeout)
        await self.may_end.wait()
        if self.is_empty:
            return {}
        self.position += 2
        return {PLACE: [self.position - 2, self.position - 1]}

    async def seek_to_committed(self) -> dict[TP, int]:
        """Go back to where the group is."""
        self.position = 1
        return {PLACE: 1}

    async def seek_wait(self, offsets: dict[TP, int]) -> None:
        """Go to an offset."""
        self.position = offsets[PLACE]


class Moving(Consumer):
    """One that fetches."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = Thread()
        self._stops, self._empty_fetches, self._is_still = 0, 0, asyncio.Event()
        self._is_still.set()
        self.can_resume_flow, self.suspend_flow = asyncio.Event(), asyncio.Event()
        self._read_offset, self._committed_offset = {}, {}
        self._handover, self._acked_index = Handover(()), {}

    def assignment(self) -> set[TP]:
        """All of them."""
        return {PLACE}


@pytest.mark.parametrize("way", ["perform_seek", "seek_wait"])
async def test_offsets_move_while_no_fetch_is_under_way(way: str):
    """Records fetched before the reset are dropped, later ones are read: nothing is skipped."""
    consumer = Moving()
    consumer.resume_flow()
    fetch = asyncio.create_task(consumer._getmany({PLACE}, 1.0))
    await asyncio.sleep(0)
    consumer.stop_flow()
    seek = asyncio.create_task(consumer.perform_seek() if way == "perform_seek" else consumer.seek_wait({PLACE: 1}))
    await asyncio.sleep(0.01)
    assert not seek.done()
    consumer._thread.may_end.set()
    await asyncio.wait_for(seek, 5)
    assert await fetch == {}
    assert await consumer._getmany({PLACE}, 1.0) == {PLACE: [1, 2]}


async def test_going_back_stops_the_flow():
    """It stops until the caller has emptied the queues; earlier deliveries would be dropped with them."""
    consumer = Moving()
    consumer.resume_flow()
    await asyncio.wait_for(consumer.perform_seek(), 5)
    assert not consumer.flow_active
    consumer.resume_flow()
    consumer._thread.may_end.set()
    assert await consumer._getmany({PLACE}, 1.0) == {PLACE: [1, 2]}


async def test_a_consumer_to_which_nothing_comes_fetches_less_often():
    """After twenty fetches that found nothing each waits four times as long, until a record comes."""
    consumer = Moving()
    consumer.resume_flow()
    consumer._thread.may_end.set()
    consumer._thread.is_empty = True
    for _ in range(30):
        await consumer._getmany({PLACE}, 5.0)
    consumer._thread.is_empty = False
    for _ in range(2):
        await consumer._getmany({PLACE}, 5.0)
    assert consumer._thread.waits == [0.2] * 21 + [0.8] * 10 + [0.2]


def test_the_worker_reads_by_the_thread_that_unpacks_in_batches(monkeypatch: pytest.MonkeyPatch):
    """Another one would unpack a whole backlog, and take a coordinator that loads for a group without offsets."""
    consumer = Consumer()
    consumer.beacon = None
    monkeypatch.setattr("highwater.streams.folding_consumer.Thread", lambda reader, **_: ("unpacks", reader))
    assert consumer._new_consumer_thread() == ("unpacks", consumer)


@pytest.mark.parametrize(("topic", "is_passed_over"), [("users-changelog", True), ("feeds.channel-advanced", False)])
async def test_a_changelog_waits_for_its_seek(topic: str, is_passed_over: bool):
    """A fetch from before a rebalance asks for changelogs that recovery has not sought yet; a group without an offset ends it."""
    failed, place = TP(topic, 6), TP("channels-changelog", 1)
    assigned = SubscriptionState()
    assigned.assign_from_user([failed, place])
    fetcher = Fetcher(AIOKafkaClient(bootstrap_servers="127.0.0.1:1"), assigned, auto_offset_reset="none")
    fetcher._records[failed] = FetchError(error=NoOffsetForPartitionError(failed), backoff=0)
    try:
        unpacked = _unpacked(fetcher, {failed, place}, (), {"users-changelog", "channels-changelog"})
        if is_passed_over:
            assert await unpacked == {}
        else:
            with pytest.raises(NoOffsetForPartitionError):
                await unpacked
    finally:
        await fetcher.close()


async def test_a_coordinator_that_loads_is_not_a_group_without_offsets():
    """Its answer has one error and no partition: it is raised, and the client asks again; other answers pass."""
    answers = iter([OffsetFetchResponse_v3(0, [], GroupLoadInProgressError.errno), known := OffsetFetchResponse_v1([])])

    async def send(_node: int, _request: object) -> object:
        return next(answers)

    request = OffsetFetchRequest("highwater-feeds", [("streams.tick", [0])])
    with pytest.raises(GroupLoadInProgressError):
        await refused_as_a_whole(send, 1, request)
    assert await refused_as_a_whole(send, 1, request) is known
