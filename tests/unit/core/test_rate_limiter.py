"""The one limiter: to which caller a call belongs, by which limit it is judged, and how this process counts while Redis is
unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from highwater.api.core.access import PUBLIC, Access, Scope
from highwater.api.core.auth import OPEN, Principal, Role
from highwater.api.core.errors import TooLargeError, TooManyRequestsError
from highwater.api.core.rate_limits import ADDRESSES_MAX, RateLimiter
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.identity.rate_limits import CallCounts, Counted, RateSubject
from highwater.connectors.redis.link import RedisLink
from highwater.streams.identity.plans import PLANS
from highwater.streams.identity.rate_limits import LIVE_WINDOW_MS, RateLimit, RecentCalls
from highwater.streams.telemetry import CALLS_METERED, LIVE_REFUSED
from tests.unit.identity.limit_cases import CASES, START_MS, WINDOW_MS, LimitCase

ADDRESS = Access(Role.VIEWER, Scope.LEAGUE, limit=RateLimit.ADDRESS, cost=1)
PLAN = Access(Role.VIEWER, Scope.JOBS, limit=RateLimit.PLAN, cost=3)
CALLER = Access(Role.VIEWER, Scope.FEEDS, limit=RateLimit.CALLER, cost=1)


class Numbers(CallCounts):
    """Counts in memory, as Redis would."""

    def __init__(self) -> None:
        self.asked: list[tuple[RateSubject, int]] = []

    async def count(self, subject: RateSubject, _now_ms: int, cost: int = 1) -> Counted:
        """The number of the call among those of the same caller."""
        self.asked.append((subject, cost))
        total = sum(one for of, one in self.asked if of == subject)
        return Counted(total if subject.key_id else None, total if subject.user_id else None)


async def _no_limits(_organization_id: str) -> Organization:
    raise AssertionError("nobody has an organization here")


def _limiter(clock: Callable[[], int], counts: CallCounts | None = None, calls_max: int = 2) -> RateLimiter:
    away = RedisLink(None)
    local = RecentCalls(calls_max, LIVE_WINDOW_MS, ADDRESSES_MAX)
    return RateLimiter(counts or CallCounts(away, calls_max), local, _no_limits, PLANS, clock, caller_per_minute=4)


def _request(address: str = "192.0.2.7") -> Any:
    return {"type": "http", "headers": [], "client": (address, 1)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_process_counts_addresses_as_the_rule_says(case: LimitCase) -> None:
    """The copy in the process answers each case, and one address is nothing to another."""
    local = RecentCalls(case.requests_max, WINDOW_MS, ADDRESSES_MAX)
    for step in case.steps:
        now_ms = START_MS + step.after_ms
        assert local.count("a", now_ms).retry_after_ms == step.retry_after_ms, step
    assert local.count("b", START_MS).retry_after_ms == 0


def test_addresses_are_bounded_and_the_one_that_asked_longest_ago_goes() -> None:
    """A flood of addresses takes no more memory, and does not free the one that asks."""
    local = RecentCalls(1, WINDOW_MS, 3)
    for name in ("a", "b", "c"):
        assert local.count(name, START_MS).retry_after_ms == 0
    assert local.count("a", START_MS).retry_after_ms > 0
    assert local.count("d", START_MS).retry_after_ms == 0
    assert len(local) == 3
    assert local.count("a", START_MS).retry_after_ms > 0
    assert local.count("b", START_MS).retry_after_ms == 0


async def test_without_redis_the_process_limits_addresses_by_itself() -> None:
    """The request after the last admitted one is refused with whole seconds to wait, at least one, and is counted."""
    now_ms = START_MS
    limiter = _limiter(lambda: now_ms)
    refused = LIVE_REFUSED._value.get()
    await limiter.admit(ADDRESS, OPEN, _request())
    now_ms += 100
    await limiter.admit(ADDRESS, OPEN, _request())
    now_ms += 9_899
    with pytest.raises(TooManyRequestsError) as caught:
        await limiter.admit(ADDRESS, OPEN, _request())
    assert caught.value.headers["Retry-After"] == "1"
    assert LIVE_REFUSED._value.get() == refused + 1
    now_ms += 1
    await limiter.admit(ADDRESS, OPEN, _request())
    with pytest.raises(TooManyRequestsError):
        await limiter.admit(ADDRESS, OPEN, _request())
    await limiter.admit(ADDRESS, OPEN, _request("192.0.2.8"))
    counted = _request("192.0.2.9")
    for _ in range(5):
        await limiter.admit(ADDRESS, OPEN, counted)  # one request, checked several times


async def test_a_call_counts_for_what_it_costs() -> None:
    """Ten a minute hold three calls of three; a body with several tasks in it counts for each of them; the meter says so."""
    counts = Numbers()
    limiter, viewer = _limiter(lambda: START_MS, counts), Principal(Role.VIEWER, "ada", key_id="k")
    before = CALLS_METERED.labels("plan", "jobs")._value.get()
    told = [await limiter.admit(PLAN, viewer, _request()) for _ in range(3)]
    assert [one["X-RateLimit-Remaining"] for one in told] == ["7", "4", "1"]
    with pytest.raises(TooManyRequestsError):
        await limiter.admit(PLAN, viewer, _request(), cost=2)
    assert CALLS_METERED.labels("plan", "jobs")._value.get() - before == 11


async def test_what_no_minute_holds_is_no_matter_of_waiting() -> None:
    """A body with more tasks than the plan has in a minute is too large: no `Retry-After` would help."""
    viewer = Principal(Role.VIEWER, "ada", key_id="k")
    with pytest.raises(TooLargeError, match="send them in parts") as caught:
        await _limiter(lambda: START_MS, Numbers()).admit(PLAN, viewer, _request(), cost=11)
    assert "Retry-After" not in caught.value.headers


@pytest.mark.parametrize(
    ("principal", "subject"),
    [
        (Principal(Role.EDITOR, "ada", key_id="k"), RateSubject(None, "ada", by_plan=False)),
        (Principal(Role.EDITOR, None, organization_id="acme", key_id="k"), RateSubject("k", by_plan=False)),
        (Principal(Role.EDITOR, key_id="k"), None),
        (Principal(Role.ADMIN, "ada", key_id="k"), None),
        (OPEN, None),
    ],
)
async def test_what_costs_little_is_limited_for_users_and_organizations(
    principal: Principal, subject: RateSubject | None
) -> None:
    """A bound caller has one count for all keys of a user, besides that of the plan; an operator's programs are not counted."""
    counts = Numbers()
    limiter = _limiter(lambda: START_MS, counts)
    for _ in range(4):
        told = await limiter.admit(CALLER, principal, _request())
        assert bool(told) is (subject is not None)
    assert {asked for asked, _ in counts.asked} == ({subject} if subject is not None else set())
    if subject is not None:
        with pytest.raises(TooManyRequestsError):
            await limiter.admit(CALLER, principal, _request())


async def test_what_has_no_limit_is_not_counted() -> None:
    """No counter is read, and no header is sent."""
    counts = Numbers()
    assert await _limiter(lambda: START_MS, counts).admit(PUBLIC, OPEN, _request()) == {}
    assert counts.asked == []


@pytest.mark.parametrize(
    ("limit", "cost", "is_said"),
    [
        (None, None, False),
        (RateLimit.PLAN, None, False),
        (RateLimit.PLAN, 0, False),
        (RateLimit.NONE, 1, False),
        (RateLimit.ADDRESS, 2, False),
        (RateLimit.NONE, 0, True),
        (RateLimit.PLAN, 10, True),
        (RateLimit.ADDRESS, 1, True),
    ],
)
def test_a_declaration_names_a_limit_and_a_cost(limit: RateLimit | None, cost: int | None, *, is_said: bool) -> None:
    """Only an unlimited operation costs nothing; a limit per address counts calls only."""
    assert Access(Role.VIEWER, limit=limit, cost=cost).has_limit is is_said
