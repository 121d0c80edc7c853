"""Restarts failed jobs of an organization in bulk: planned by GET, executed by POST, both by one decision.

Invariant: that of `api/core/restarts.py`. A job continues after its last stored step, if its organization may run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from highwater.api.core.access import Access, OwnedBy, Scope, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.errors import ForbiddenError, PaymentRequiredError
from highwater.api.core.guard import Called, GuardedRoute, Org
from highwater.api.core.openapi import problems
from highwater.api.core.plan_limits import require_plan_allows
from highwater.api.core.resources import JOB
from highwater.api.core.restarts import (
    CHARACTERS_MAX,
    FROM,
    REASON,
    TIME_CHARACTERS_MAX,
    TO,
    RestartsAsked,
    members_of,
)
from highwater.api.core.services import Services, Wired
from highwater.api.jobs.answers import JobRestarts
from highwater.api.jobs.routes import RESTARTED_REASON, listed_user
from highwater.connectors.jobs import read_model as job_reads
from highwater.connectors.jobs.read_model import JobRead
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.jobs import CONTROL
from highwater.streams.checks import check_id
from highwater.streams.engines.restarts import (
    LOOKED_AT_MAX,
    RESTARTS_MAX,
    FailedWork,
    RestartFilter,
    RestartPlan,
    plan_restarts,
)
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.args import parse_args
from highwater.streams.jobs.states import Kind
from highwater.streams.jobs.validation import RESTART

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)

PLAN_RESTARTS = Access(Role.VIEWER, Scope.JOBS, OwnedBy.LISTED, limit=RateLimit.PLAN, cost=1)
RESTART_JOBS = Access(Role.ADMIN, Scope.JOBS, OwnedBy.LISTED, limit=RateLimit.PLAN, cost=5)
_STEPS_MAX = 1_000_000
_STEP = "Only those that failed after this many steps."


class RestartsRequest(RestartsAsked):
    """Which failed jobs are restarted; `job_ids`: only these of them, as a plan has listed them."""

    step: int | None = Field(None, ge=0, le=_STEPS_MAX, description=_STEP)
    kind: Kind | None = Field(None, strict=False, description="Only jobs of this kind.")
    job_ids: list[str] | None = Field(None, max_length=RESTARTS_MAX)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the stored jobs, and why the organization may not restart them, if so."""

    plan: RestartPlan
    jobs: Sequence[JobRead]
    refusal: ForbiddenError | PaymentRequiredError | None


@router.get(
    "/api/organizations/{org:id}/jobs/restart",
    summary="Plan a restart of failed jobs",
    response_model=None,
    responses=answer(JobRestarts),
)
@declared(PLAN_RESTARTS)
async def get_job_restarts(
    request: Request,
    org: Org,
    called: Called,
    services: Wired,
    reason: Annotated[str, Query(max_length=CHARACTERS_MAX, description=REASON)] = "",
    step: Annotated[int | None, Query(ge=0, le=_STEPS_MAX, description=_STEP)] = None,
    kind: Annotated[Kind | None, Query(description="Only jobs of this kind.")] = None,
    user_id: Annotated[str | None, Query(max_length=CHARACTERS_MAX, description="Only those of this user.")] = None,
    begin: Annotated[str | None, Query(alias="from", max_length=TIME_CHARACTERS_MAX, description=FROM)] = None,
    end: Annotated[str | None, Query(alias="to", max_length=TIME_CHARACTERS_MAX, description=TO)] = None,
) -> JobRestarts:
    """Shows which jobs would be restarted, up to 500, and why they failed; nothing is changed."""
    check_id("org", org)
    owned_by = listed_user(called, org, user_id)
    await services.fresh(request, JOB.fed_by)
    asked = {"reason": reason, "step": step, "kind": kind, "user_id": user_id, "from": begin, "to": end}
    wanted = RestartsRequest.model_validate(asked)
    return document_of(await _planned(services, org, owned_by, wanted), [], is_executed=False)


@router.post(
    "/api/organizations/{org:id}/jobs/restart",
    status_code=HTTPStatus.ACCEPTED,
    summary="Restart failed jobs together (admin)",
    response_model=None,
    responses={**answer(JobRestarts, status=HTTPStatus.ACCEPTED), **problems(PaymentRequiredError)},
)
@declared(RESTART_JOBS)
async def post_job_restarts(
    request: Request, org: Org, body: RestartsRequest, called: Called, services: Wired
) -> JobRestarts:
    """Restarts each of them after its last stored step, as `POST /api/jobs/{job_id}/restart` does; up to 500 at once."""
    check_id("org", org)
    owned_by = listed_user(called, org, body.user_id)
    await services.fresh(request, JOB.fed_by)
    planned = await _planned(services, org, owned_by, body)
    if planned.refusal is not None:
        raise planned.refusal
    ts = services.clock()
    events = [{"job_id": job.id, "action": RESTART, "reason": RESTARTED_REASON, "ts": ts} for job in planned.plan.work]
    positions = await services.publisher.commands(CONTROL, events) if events else []
    return document_of(planned, positions, is_executed=True)


async def _planned(services: Services, org: str, owned_by: str | None, body: RestartsRequest) -> Planned:
    """Gather the failed jobs, and decide; `whose`: those of one user."""
    pool = services.database.require()
    span = body.span_ms()
    read = await job_reads.failed_jobs(pool, org, owned_by, body.kind, span, LOOKED_AT_MAX + 1, job_ids=body.job_ids)
    plan = plan_restarts([_failed(job) for job in read], RestartFilter(body.reason, body.step))
    by_id = {job.job_id: job for job in read}
    jobs = [by_id[job.id] for job in plan.work]
    return Planned(plan, jobs, await _refusal(services, org, jobs))


def _failed_ms(job: JobRead) -> int:
    return job.updated_ms if job.completed_ms is None else job.completed_ms


def _failed(job: JobRead) -> FailedWork:
    left = job.steps_total - job.steps_done
    return FailedWork(job.job_id, job.user_id, job.error or "", job.steps_done, left, _failed_ms(job))


async def _refusal(
    services: Services, org: str, jobs: Sequence[JobRead]
) -> ForbiddenError | PaymentRequiredError | None:
    """Return why the organization may not run these jobs, all of them together; the sink checks each again."""
    if not jobs:
        return None
    args = [parse_args(job.kind, job.args) for job in jobs]
    try:
        await require_plan_allows(
            services,
            org,
            is_new_deck=any(job.kind == Kind.GENERATION for job in jobs),
            documents={name for one in args for name in one.documents},
            features={name for one in args for name in one.features},
        )
    except (ForbiddenError, PaymentRequiredError) as error:
        return error
    return None


def document_of(planned: Planned, positions: Sequence[str], *, is_executed: bool) -> JobRestarts:
    """The answer."""
    found: Any = members_of(planned.plan, positions, noun="jobs", is_executed=is_executed)
    return found | {  # type: ignore[no-any-return]
        "refusal": None if planned.refusal is None else str(planned.refusal),
        "steps_left": planned.plan.left,
        "jobs": [_line(job) for job in planned.jobs],
    }


def _line(job: JobRead) -> Any:
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "user_id": job.user_id,
        "error": job.error or "",
        "steps_done": job.steps_done,
        "steps_total": job.steps_total,
        "failed_at": iso_from_ms(_failed_ms(job)),
    }
