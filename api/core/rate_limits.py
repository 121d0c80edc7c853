"""The rate limiter: limits calls by the declaration beside their route, and adds the limit to every answer.

Invariants. A call is counted, and refused, before its body is read and before any other service is queried (R2.29).
Every answer of a limited route shows the remaining calls, errors and 304s too. While Redis is unavailable, calls of
keys and users are allowed, and that is counted (R2.31): a limit protects from overload, and a lost Redis must not
cause a refusal of everybody. Calls per address are then counted by each process separately, by the same rule (R4.36).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from prometheus_client import Counter
from starlette.types import Scope

from highwater.api.core.access import Access
from highwater.api.core.auth import ANONYMOUS, Principal, Role
from highwater.api.core.errors import TooLargeError, TooManyRequestsError
from highwater.api.core.proxies import address_of
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.identity.rate_limits import CallCounts, Counted, RateSubject
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock
from highwater.streams.identity.plans import Plan, plan_of
from highwater.streams.identity.rate_limits import (
    WINDOW_SECONDS,
    RateLimit,
    RecentCalls,
    Verdict,
    decide,
)
from highwater.streams.telemetry import CALLS_METERED, LIVE_REFUSED, RATE_LIMIT_OPEN, RATE_LIMITED, get_log

# An unbound key of the settings is the operator's own; a user's key has that user's plan.
PLAN_OF_UNBOUND_KEYS = "enterprise"
# Addresses counted by one process while Redis is unavailable: 20,000 with 15 times each take about 15 MB. The least
# recent one is forgotten and starts again: a limit per address does not stop a client with that many addresses anyway.
ADDRESSES_MAX = 20_000
# In the scope of a request whose address was counted: the outcome. The shortcut counts before it leaves a request to
# ASGI.
COUNTED = "highwater.live_retry_after_ms"

_log = get_log("api")


class _Judged(NamedTuple):
    """One of the limits that apply to a request."""

    name: str
    limit: int
    verdict: Verdict


class RateLimiter:
    """Admits calls, or refuses them."""

    def __init__(
        self,
        counts: CallCounts,
        local: RecentCalls,
        read_limits: Callable[[str], Awaitable[Organization]],
        plans: Mapping[str, Plan],
        clock: Clock,
        *,
        caller_per_minute: int,
    ) -> None:
        """`read_limits` returns the plan of an organization when Redis holds no copy of it."""
        self._caller_per_minute = caller_per_minute
        self._counts = counts
        self._local = local
        self._read_limits = read_limits
        self._plans = plans
        self._clock = clock

    async def admit(
        self, declaration: Access, principal: Principal, scope: Scope, *, cost: int | None = None
    ) -> dict[str, str]:
        """Count a call of an operation; return the rate-limit headers of its answer, empty if it has no limit.

        Args:
            declaration: the operation's declaration, with its limit.
            principal: the caller.
            scope: the request.
            cost: how many calls it counts as, where its body decides that; None: as declared.

        Raises:
            TooManyRequestsError: the limit is reached; says when the next call is allowed.
            TooLargeError: it costs more than the limit of a whole minute.
        """
        limit = declaration.limit
        if limit is None or limit is RateLimit.NONE:
            return {}
        if limit is RateLimit.ADDRESS or principal is ANONYMOUS:
            await self._admit_address(declaration, scope)
            return {}
        counted = cost if cost is not None else declaration.cost or 1
        CALLS_METERED.labels(limit, declaration.scope or "any").inc(counted)
        return await self._admit_caller(_subject(principal, limit), principal, limit, counted)

    # -- keys and users -------------------------------------------------------------------------------------------------

    async def _admit_caller(
        self, subject: RateSubject, principal: Principal, kind: RateLimit, cost: int
    ) -> dict[str, str]:
        if subject.key_id is None and subject.user_id is None:
            return {}  # an open API, and no caller is named
        now_ms = self._clock()
        try:
            counted = await self._counts.count(subject, now_ms, cost)
        except RedisAwayError:
            RATE_LIMIT_OPEN.inc()
            return {}
        limit = self._caller_per_minute if kind is RateLimit.CALLER else await self._limit(principal, counted)
        named = (("key", counted.of_key), ("user", counted.of_user))
        judged = [_Judged(name, limit, decide(count, limit, now_ms)) for name, count in named if count is not None]
        headers = limit_headers(judged)
        violated = [one.name for one in judged if not one.verdict.is_allowed]
        if cost > limit:
            raise TooLargeError(
                f"one request with {cost} tasks, and the plan has {limit} a minute; send them in parts", headers=headers
            )
        if violated:
            RATE_LIMITED.labels(violated[0]).inc()
            wait = judged[0].verdict.reset_seconds
            raise TooManyRequestsError(
                f"this {violated[0]} has had the {limit} requests of this minute; the next begins in {wait} s",
                headers={**headers, "Retry-After": str(wait)},
                **{"violated-policies": violated},
            )
        return headers

    async def _limit(self, principal: Principal, counted: Counted) -> int:
        """Return the caller's requests per minute by the plan of the organization, else of the session or the user."""
        if counted.limit is not None:
            return counted.limit
        if principal.organization_id is not None:
            try:
                return (await self._read_limits(principal.organization_id)).plan.requests_per_minute
            except UnavailableError as error:
                _log.debug("using the plan of the session", reason=str(error))
        named = principal.plan or counted.plan
        if named is None and principal.user_id is None:
            named = PLAN_OF_UNBOUND_KEYS
        return plan_of(named, self._plans).requests_per_minute

    # -- addresses ------------------------------------------------------------------------------------------------------

    def ask_address(self, declaration: Access, scope: Scope) -> asyncio.Future[int]:
        """Count a call of an address without waiting; `judge_address` reads the result."""
        _metered(declaration).inc()
        return self._counts.ask(address_of(scope), self._clock())

    def judge_address(self, scope: Scope, reply: asyncio.Future[int]) -> int:
        """Return 0 if the call is admitted, else after how many ms it may be repeated. `reply` is done."""
        try:
            retry_after_ms = reply.result()
        except RedisAwayError:
            retry_after_ms = self._local.count(address_of(scope), self._clock()).retry_after_ms
        if retry_after_ms:
            LIVE_REFUSED.inc()
            RATE_LIMITED.labels("address").inc()
        return retry_after_ms

    async def _admit_address(self, declaration: Access, scope: Scope) -> None:
        """Count this request by its address: once, however often it is checked."""
        if COUNTED not in scope:
            told = self.ask_address(declaration, scope)
            with suppress(RedisAwayError):
                await told
            scope[COUNTED] = self.judge_address(scope, told)
        if scope[COUNTED]:
            # Rounded up: a client that retries a fraction of a second too early is refused again.
            raise TooManyRequestsError(headers={"Retry-After": str(-(-scope[COUNTED] // 1000))})


@cache
def _metered(declaration: Access) -> Counter:
    """Return the counter for an operation that is limited by address."""
    return CALLS_METERED.labels(RateLimit.ADDRESS, declaration.scope or "any")


def _subject(principal: Principal, limit: RateLimit) -> RateSubject:
    """Return the counted subject. An operator's own programs are not limited in cheap calls."""
    if limit is RateLimit.CALLER:
        if principal.role is Role.ADMIN or not principal.is_bound:
            return RateSubject()
        key_id = principal.key_id if principal.user_id is None else None
        return RateSubject(key_id, principal.user_id, by_plan=False)
    plan_of_user = principal.user_id if principal.session_id is None else None
    return RateSubject(principal.key_id, principal.user_id, principal.organization_id, plan_of_user)


def limit_headers(judged: Sequence[_Judged]) -> dict[str, str]:
    """Return the fields of draft-ietf-httpapi-ratelimit-headers, and the older ones, which show one limit: the one with
    the fewest calls left.
    """
    least = min(judged, key=lambda one: one.verdict.remaining)
    policies = [f'"{one.name}";q={one.limit};w={WINDOW_SECONDS}' for one in judged]
    left = [f'"{one.name}";r={one.verdict.remaining};t={one.verdict.reset_seconds}' for one in judged]
    return {
        "RateLimit-Policy": ", ".join(policies),
        "RateLimit": ", ".join(left),
        "X-RateLimit-Limit": str(least.limit),
        "X-RateLimit-Remaining": str(least.verdict.remaining),
    }
