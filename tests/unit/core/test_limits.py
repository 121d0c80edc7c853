"""The limit of live pages: whose request it is, and what this process counts while Redis is away."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.api.core.errors import TooManyRequestsError
from highwater.api.core.limits import LiveLimit, LocalRequests
from highwater.connectors.league.live_requests import LiveRequests
from highwater.connectors.redis.link import RedisLink
from highwater.streams.telemetry import LIVE_REFUSED
from tests.unit.league.limit_cases import CASES, START_MS, WINDOW_MS, LimitCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_process_counts_as_the_law_says(case: LimitCase) -> None:
    """The copy in the process answers each case, and one address is nothing to another."""
    local = LocalRequests(case.requests_max, WINDOW_MS)
    for step in case.steps:
        now_ms = START_MS + step.after_ms
        assert local.retry_after_ms("a", now_ms) == step.retry_after_ms, step
    assert local.retry_after_ms("b", START_MS) == 0


def test_addresses_are_bounded_and_the_one_that_asked_longest_ago_goes() -> None:
    """A flood of addresses takes no more memory, and does not free the one that asks."""
    local = LocalRequests(1, WINDOW_MS, addresses_max=3)
    for name in ("a", "b", "c"):
        assert local.retry_after_ms(name, START_MS) == 0
    assert local.retry_after_ms("a", START_MS) > 0
    assert local.retry_after_ms("d", START_MS) == 0
    assert len(local) == 3
    assert local.retry_after_ms("a", START_MS) > 0
    assert local.retry_after_ms("b", START_MS) == 0


async def test_without_redis_the_process_limits_by_itself() -> None:
    """The request after the last admitted one is refused with whole seconds to wait, at least one, and is counted."""
    now_ms = START_MS
    shared = LiveRequests(RedisLink(None), 2)
    limit = LiveLimit(shared, LocalRequests(2), lambda: now_ms)

    def request(address: str = "192.0.2.7") -> Any:
        return {"type": "http", "headers": [], "client": (address, 1)}

    refused = LIVE_REFUSED._value.get()
    await limit.check(request())
    now_ms += 100
    await limit.check(request())
    now_ms += 9_899
    with pytest.raises(TooManyRequestsError) as caught:
        await limit.check(request())
    assert caught.value.headers["Retry-After"] == "1"
    assert LIVE_REFUSED._value.get() == refused + 1
    now_ms += 1
    await limit.check(request())
    with pytest.raises(TooManyRequestsError):
        await limit.check(request())
    await limit.check(request("192.0.2.8"))
    counted = request("192.0.2.9")
    for _ in range(5):
        await limit.check(counted)  # one request, looked at by several
