"""The limits of organizations, and the change of their plan (R2.32 to R2.34).

Invariants. A change is published as an event first. It is stored, and the cached copy of the limits deleted, before the
answer; if that fails, the event is durable and its sink does it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import uncached
from highwater.api.core.guard import GuardedRoute, Org
from highwater.api.core.services import Services, Wired
from highwater.api.core.times import time_of
from highwater.api.identity.answers import OrganizationLimits, PlanChanged
from highwater.connectors.identity import organizations
from highwater.connectors.identity.organizations import Organization, PlanWord
from highwater.connectors.postgres.pool import transaction
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import PLAN_CHANGED
from highwater.schemas.positions import Cause
from highwater.streams.identity.plans import FEATURES, UNLIMITED
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import get_log

LIMIT_TOPICS = frozenset({PLAN_CHANGED})

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)
_log = get_log("api")


class PlanRequest(BaseModel):
    """The new plan of an organization. Omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", strict=True)
    plan: Literal["free", "pro", "team", "enterprise"]
    subscription_status: Literal["active", "trialing", "past_due", "suspended"] | None = None
    period_end: str | None = None


@router.get(
    "/api/organizations/{org:id}/limits",
    summary="Get the limits of an organization",
    response_model=None,
    responses=answer(OrganizationLimits),
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.ORGANIZATION, limit=RateLimit.PLAN, cost=1)
async def get_limits(
    request: Request,
    org: Org,
    services: Wired,
) -> Response:
    """Its plan and the plan's limits. Unknown organizations are on the free plan."""
    await services.fresh(request, LIMIT_TOPICS)
    document = limits_document(await services.organizations.read_limits(org))
    return uncached(document)


def limits_document(found: Organization) -> OrganizationLimits:
    """Return the limits for a response; an absent limit is shown as unlimited (R2.32)."""
    plan = found.plan
    return {
        "organization_id": found.organization_id,
        "plan_name": plan.name,
        "max_presentations_per_month": _limit(plan.max_presentations_per_month),
        "ai_tokens_per_month": _limit(plan.ai_tokens_per_month),
        "max_file_size_mb": plan.max_file_size_mb,
        "storage_gb": plan.storage_gb,
        "requests_per_minute": plan.requests_per_minute,
        "features": {name: name in plan.features for name in FEATURES},
        "subscription_status": found.status,
        "period_end": None if found.period_end_ms is None else iso_from_ms(found.period_end_ms),
    }


def _limit(value: int | None) -> int | Literal["unlimited"]:
    return UNLIMITED if value is None else value


@router.put(
    "/api/organizations/{org:id}/plan",
    status_code=HTTPStatus.ACCEPTED,
    summary="Change an organization's plan (admin)",
    response_model=None,
    responses=answer(PlanChanged, status=HTTPStatus.ACCEPTED),
)
@access(Role.ADMIN, Scope.ADMIN, OwnedBy.ORGANIZATION, limit=RateLimit.PLAN, cost=1)
async def put_organization_plan(org: Org, body: PlanRequest, services: Wired) -> PlanChanged:
    """Sets the plan and, if given, the subscription status and the end of the paid period."""
    period_end = _period_end(body.period_end)
    event = {
        "organization_id": org,
        "plan": body.plan,
        "ts": services.clock(),
        "subscription_status": body.subscription_status,
        "period_end": period_end,
    }
    taken = await services.publisher.taken(PLAN_CHANGED, event)
    cause = Cause(taken.arrived_ms, str(taken))
    word = PlanWord(body.plan, body.subscription_status, period_end, cause)
    try:
        await _act(services, org, word)
    except UnavailableError as error:
        _log.warning("a change of plan is left to its sink", organization_id=org, reason=str(error))
    return {"organization_id": org, "plan": body.plan, "positions": [str(taken)]}


async def _act(services: Services, org: str, word: PlanWord) -> None:
    async with transaction(services.database.require()) as tx:
        await organizations.store_words(tx, [(org, word)], services.clock())
    await services.organizations.forget(org)


def _period_end(text: str | None) -> int | None:
    return None if text is None else time_of(text, "period_end")
