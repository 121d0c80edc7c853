"""Requests of an address to live pages, counted over all processes: one script in Redis, one round trip (R4.36).

The law is that of `streams/league/limits.py`: in no window are more admitted than the limit, and what is refused does not count.
The times are those of the processes' clocks; a clock that differs from the others shifts the window by as much.
"""

from __future__ import annotations

from typing import Any

from highwater.connectors.redis.keys import LIVE_REQUESTS, key
from highwater.connectors.redis.link import RedisLink
from highwater.streams.league.limits import LIVE_WINDOW_MS

# KEYS[1] the times, the newest first; ARGV now, most, window. Answers 0, or in how many ms a refused one may come again.
# The list is at most as long as the limit, so its last place alone tells whether there is room. Times after now (a clock was
# moved back) are rewritten as now, as `admit` does. The key goes a window after its last request.
_ADMIT = """
local now, most, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now then
    for place, at in ipairs(redis.call('LRANGE', KEYS[1], 0, most - 1)) do
        if tonumber(at) <= now then break end
        redis.call('LSET', KEYS[1], place - 1, ARGV[1])
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local oldest = redis.call('LINDEX', KEYS[1], most - 1)
if oldest and tonumber(oldest) > now - window then return tonumber(oldest) + window - now end
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, most - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 0
"""


class LiveRequests:
    """Admits requests of addresses, over all processes that share a Redis."""

    def __init__(self, link: RedisLink, requests_max: int, window_ms: int = LIVE_WINDOW_MS) -> None:
        self._link = link
        self._requests_max = requests_max
        self._window_ms = window_ms
        self._script: Any = link.client.register_script(_ADMIT) if link.client is not None else None

    async def retry_after_ms(self, address: str, now_ms: int) -> int:
        """0: admitted, and counted; else in how many ms it may come again.

        Raises:
            RedisAwayError: nobody can tell over all processes.
        """
        self._link.require()
        keys, args = [key(LIVE_REQUESTS, address=address)], [now_ms, self._requests_max, self._window_ms]
        return int(await self._link.run(self._script(keys=keys, args=args)))
