"""What a rebalance waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from streams.app import _Consumer


class Message:
    """One that an agent has dealt with, and whose other copies nobody will."""

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
