"""The watch over the mirror in Redis, beside the first batch."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from highwater.connectors.feeds.mirror import Mirror

# The watch looks a time or two before it waits.
_LOOKS_MAX = 10


class CountedStop(asyncio.Event):
    """A stop that notices a watch that asks again and again without waiting: nothing else in the process would run."""

    looks = 0

    def is_set(self) -> bool:
        """Count it."""
        self.looks += 1
        if self.looks > _LOOKS_MAX:
            pytest.fail("the watch never waits")
        return super().is_set()


async def test_the_watch_waits_while_the_first_batch_begins_to_rewrite():
    """A batch that found the mirror lost has begun to rewrite and is not mirrored yet: it gets the event loop."""
    nothing = cast("Any", None)
    mirror = Mirror(nothing, nothing, nothing, nothing, tick_seconds=30)
    mirror._rewritten_to = ("", "")
    stop = CountedStop()
    watching = asyncio.create_task(mirror.watch(stop))
    await asyncio.sleep(0)
    stop.set()
    await watching
