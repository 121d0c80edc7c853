"""How often an address may ask for live pages (R4.36): who asks, and whether it is admitted.

Laws. Every answer counts, a 304 too. Whose address it is was decided before (`proxies.py`). Over all processes Redis counts;
while it is away each process counts by itself, by the same rule.
"""

from __future__ import annotations

from collections import OrderedDict

from starlette.types import Scope

from highwater.api.core.errors import TooManyRequestsError
from highwater.api.core.proxies import address_of
from highwater.connectors.league.live_requests import LiveRequests
from highwater.connectors.redis.link import RedisAwayError
from highwater.streams.clock import Clock
from highwater.streams.league.limits import LIVE_WINDOW_MS, admit
from highwater.streams.telemetry import LIVE_REFUSED

# Addresses counted by one process while Redis is away: 20,000 of 15 times each take about 15 MB. The one that asked longest ago
# is forgotten and begins anew: who has so many addresses is not held by a limit per address anyway.
ADDRESSES_MAX = 20_000

# In the scope of a request that was counted, what came of it: the short cut counts before it steps aside.
_CHECKED = "highwater.live_retry_after_ms"


class LocalRequests:
    """The requests that this process admitted."""

    def __init__(self, requests_max: int, window_ms: int = LIVE_WINDOW_MS, addresses_max: int = ADDRESSES_MAX) -> None:
        self._requests_max = requests_max
        self._window_ms = window_ms
        self._addresses_max = addresses_max
        self._times: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def retry_after_ms(self, address: str, now_ms: int) -> int:
        """0: admitted, and counted; else in how many ms it may come again."""
        admission = admit(self._times.get(address, ()), now_ms, self._requests_max, self._window_ms)
        self._times[address] = admission.times
        self._times.move_to_end(address)
        if len(self._times) > self._addresses_max:
            self._times.popitem(last=False)
        return admission.retry_after_ms


class LiveLimit:
    """Refuses what is too much."""

    def __init__(self, shared: LiveRequests, local: LocalRequests, clock: Clock) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock

    async def check(self, scope: Scope) -> None:
        """Count this request: once, however often it is checked.

        Raises:
            TooManyRequestsError: the address has asked too often; says when it may come again.
        """
        if _CHECKED not in scope:
            scope[_CHECKED] = await self._retry_after_ms(scope)
            if scope[_CHECKED]:
                LIVE_REFUSED.inc()
        if scope[_CHECKED]:
            # Rounded up: who comes a part of a second too early is refused again.
            raise TooManyRequestsError(headers={"Retry-After": str(-(-scope[_CHECKED] // 1000))})

    async def _retry_after_ms(self, scope: Scope) -> int:
        address = address_of(scope)
        now_ms = self._clock()
        try:
            return await self._shared.retry_after_ms(address, now_ms)
        except RedisAwayError:
            return self._local.retry_after_ms(address, now_ms)
