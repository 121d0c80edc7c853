"""The usage of an organization in a month (R2.35, R2.37).

Invariant: limits are checked against the displayed number, which never falls: one row of PostgreSQL, increased in the
transaction that ends a job. Redis answers only while PostgreSQL is unavailable.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.guard import GuardedRoute, Org
from highwater.api.core.services import Services, Wired
from highwater.api.jobs.answers import UsageOfMonth
from highwater.connectors.jobs import usage as stored
from highwater.connectors.jobs.usage import Amounts
from highwater.connectors.redis.keys import USAGE, key
from highwater.connectors.redis.link import RedisAwayError
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import USAGE_RECORDED
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.jobs import period_of
from highwater.streams.jobs.usage import month_of

USAGE_TOPICS = frozenset({USAGE_RECORDED})

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


@router.get(
    "/api/organizations/{org:id}/usage",
    summary="Get the usage of an organization in a month",
    response_model=None,
    responses=answer(UsageOfMonth),
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.ORGANIZATION, limit=RateLimit.PLAN, cost=1)
async def get_usage(
    request: Request,
    org: Org,
    services: Wired,
    period: Annotated[str | None, Query(description="YYYY-MM in UTC; default: the current month")] = None,
) -> Response:
    """Presentations, slides, tokens and cents of jobs that ended in the month, failed and revoked ones included. Also says
    where the numbers come from, and up to when. `tokens` without `built_in_tokens` count towards `ai_tokens_per_month`.
    """
    month = period_of(services.clock()) if period is None else period
    month_of(month)
    await services.fresh(request, USAGE_TOPICS)
    try:
        document: dict[str, Any] | None = await _of_postgres(services, org, month)
    except UnavailableError:
        copy = await _of_redis(services, org, month)
        if copy is None:
            raise
        document = copy
    return uncached(document)


async def _of_postgres(services: Services, org: str, period: str) -> dict[str, Any]:
    found = await stored.usage_of(services.database.require(), org, period)
    amounts = Amounts(found.presentations, found.slides, found.tokens, found.cost_cents)
    document = _document(org, period, amounts, source="postgresql", upto_seq=found.upto_seq, upto_ms=found.upto_ms)
    return {**document, "built_in_tokens": found.built_in_tokens}


async def _of_redis(services: Services, org: str, period: str) -> dict[str, Any] | None:
    """Return the usage in Redis; None if that is incomplete, or Redis is unavailable too."""
    names = [*Amounts._fields, "seq", "at"]
    try:
        found = await services.link.run(services.link.require().hmget(key(USAGE, org=org, period=period), names))
    except RedisAwayError:
        return None
    if any(value is None for value in found):
        return None
    *amounts, seq, at_ms = map(int, found)
    return _document(org, period, Amounts(*amounts), source="redis", upto_seq=seq, upto_ms=at_ms)


def _document(
    org: str, period: str, amounts: Amounts, *, source: str, upto_seq: int, upto_ms: int | None
) -> dict[str, Any]:
    return {
        "organization_id": org,
        "period": period,
        **amounts._asdict(),
        "source": source,
        "upto_seq": upto_seq,
        "upto": None if upto_ms is None else iso_from_ms(upto_ms),
    }
