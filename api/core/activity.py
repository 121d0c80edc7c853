"""An authenticated read as a user counts as activity of that user (R0.7): at most one event per user in five minutes.

This process enforces the limit, and Redis enforces it across processes while it is available. A duplicate event is
harmless, since activity is a maximum. Reads never wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from highwater.api.core.auth import Principal
from highwater.connectors.redis.keys import ACTIVE, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import Clock
from highwater.streams.telemetry import get_log

ACTIVITY_SECONDS = 300
ACTIVITY_MS = ACTIVITY_SECONDS * 1000
# Users remembered by one process: 100,000 take about 20 MB; a forgotten user costs one more event.
USERS_MAX = 100_000

_log = get_log("activity")


class ActivityNotes:
    """Publishes the activity of users, and remembers whose activity was published."""

    def __init__(self, clock: Clock, link: RedisLink, publish: Callable[[str, int], Awaitable[None]]) -> None:
        self._clock = clock
        self._link = link
        self._publish = publish
        self._told: OrderedDict[str, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, principal: Principal) -> None:
        """Note a request by this principal; returns at once."""
        user_id = principal.user_id
        if user_id is None:
            return
        now_ms = self._clock()
        told_ms = self._told.get(user_id)
        # A clock that was moved back must not silence a user until it has caught up.
        if told_ms is not None and 0 <= now_ms - told_ms < ACTIVITY_MS:
            return
        self._told[user_id] = now_ms
        self._told.move_to_end(user_id)
        if len(self._told) > USERS_MAX:
            self._told.popitem(last=False)
        task = asyncio.create_task(self._tell(user_id, now_ms), name="activity")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, user_id: str, now_ms: int) -> None:
        try:
            if await self._was_told_elsewhere(user_id, now_ms):
                return
            await self._publish(user_id, now_ms)
        except HighwaterError as error:
            self._told.pop(user_id, None)  # the next read tries again
            _log.warning("activity was not published", reason=str(error))

    async def _was_told_elsewhere(self, user_id: str, now_ms: int) -> bool:
        if not self._link.is_up:
            return False
        name = key(ACTIVE, user_id=user_id)
        try:
            # The stored time decides and the TTL collects garbage, so that a moved clock counts here too.
            held = await self._link.run(self._link.client.get(name))
            if held is not None and 0 <= now_ms - int(held) < ACTIVITY_MS:
                return True
            await self._link.run(self._link.client.set(name, str(now_ms), ex=ACTIVITY_SECONDS))
        except RedisAwayError:
            return False
        return False

    async def close(self) -> None:
        """Wait for events that are being published."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
