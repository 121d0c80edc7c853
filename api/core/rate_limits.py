"""Limits of requests by the minute: who is counted, by which plan, and what every answer of a limited route says of it.

Laws. A request is counted, and refused, before its body is read and before anything is asked of another part (R2.29). Every
answer of a limited route carries what is left, an error too. While Redis is away everything is allowed, and that is counted
(R2.31): a limit protects from too much, and a lost Redis is no reason to serve nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from highwater.api.core.auth import PRINCIPAL, Principal, authenticated
from highwater.api.core.errors import TooManyRequestsError
from highwater.api.core.proxies import address_of
from highwater.connectors.identity.organizations import Organization
from highwater.connectors.identity.rate_limits import Counted, RateLimits, Whose
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock
from highwater.streams.identity.plans import Plan, plan_of
from highwater.streams.identity.rate_limits import WINDOW_SECONDS, Verdict, decide
from highwater.streams.telemetry import RATE_LIMIT_OPEN, RATE_LIMITED, get_log

# A key of the settings that is bound to nobody is the operator's own; one of a user has the plan of that user.
PLAN_OF_UNBOUND_KEYS = "enterprise"

_log = get_log("api")


class _Judged(NamedTuple):
    """One of the limits that a request stands under."""

    name: str
    limit: int
    verdict: Verdict


class RateLimiter:
    """Admits requests, or refuses them."""

    def __init__(
        self,
        counts: RateLimits,
        read_limits: Callable[[str], Awaitable[Organization]],
        plans: Mapping[str, Plan],
        clock: Clock,
    ) -> None:
        """`read_limits` says what an organization may where Redis holds no copy of that."""
        self._counts = counts
        self._read_limits = read_limits
        self._plans = plans
        self._clock = clock

    async def admit(self, principal: Principal) -> dict[str, str]:
        """Count a request; what its answer says of the limits, nothing where there are none.

        Raises:
            TooManyRequestsError: the minute is full; says when the next begins.
        """
        whose = _whose(principal)
        if whose.key_id is None and whose.user_id is None:
            return {}  # an open API, and nobody is named
        now_ms = self._clock()
        try:
            counted = await self._counts.count(whose, now_ms)
        except RedisAwayError:
            RATE_LIMIT_OPEN.inc()
            return {}
        limit = await self._limit(principal, counted)
        named = (("key", counted.of_key), ("user", counted.of_user))
        judged = [_Judged(name, limit, decide(count, limit, now_ms)) for name, count in named if count is not None]
        headers = limit_headers(judged)
        violated = [one.name for one in judged if not one.verdict.is_allowed]
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
        """Requests a minute by the plan of who asks: of the organization, else of the session or the user."""
        if counted.limit is not None:
            return counted.limit
        if principal.organization_id is not None:
            try:
                return (await self._read_limits(principal.organization_id)).plan.requests_per_minute
            except UnavailableError as error:
                _log.debug("the plan of the session is taken", reason=str(error))
        named = principal.plan or counted.plan
        if named is None and principal.user_id is None:
            named = PLAN_OF_UNBOUND_KEYS
        return plan_of(named, self._plans).requests_per_minute


def _whose(principal: Principal) -> Whose:
    plan_of_user = principal.user_id if principal.session_id is None else None
    return Whose(principal.key_id, principal.user_id, principal.organization_id, plan_of_user)


def limit_headers(judged: Sequence[_Judged]) -> dict[str, str]:
    """The fields of draft-ietf-httpapi-ratelimit-headers, and the older ones, which know one limit: the one with least left."""
    least = min(judged, key=lambda one: one.verdict.remaining)
    policies = [f'"{one.name}";q={one.limit};w={WINDOW_SECONDS}' for one in judged]
    left = [f'"{one.name}";r={one.verdict.remaining};t={one.verdict.reset_seconds}' for one in judged]
    return {
        "RateLimit-Policy": ", ".join(policies),
        "RateLimit": ", ".join(left),
        "X-RateLimit-Limit": str(least.limit),
        "X-RateLimit-Remaining": str(least.verdict.remaining),
    }


class LimitedRoute(APIRoute):
    """A route under the limits: `APIRouter(route_class=LimitedRoute)`.

    Not a dependency, since FastAPI reads the body before those and drops their headers from an error.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request, then answer it."""
        if scope["method"] not in (self.methods or ()):  # answered with 405
            await super().handle(scope, receive, send)
            return
        services = scope["app"].state.services
        authorization = Headers(scope=scope).get("authorization")
        principal = await authenticated(services.authenticator, authorization, address_of(scope))
        told = await services.rate_limiter.admit(principal)
        fields = [(name.lower().encode(), value.encode()) for name, value in told.items()]

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        scope[PRINCIPAL] = principal
        await super().handle(scope, receive, send_with_limits)
