"""Restarts failed queries in bulk: planned by GET, executed by POST, both by one decision.

Invariant: that of `api/core/restarts.py`. A query continues with the first stage without a stored result, in a new run
whose id is a function of the failed one's: a repeated request makes one run. A cancelled query has not failed, and a
restarted one is not found again. Queries of an organization that has reached a limit are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from fastapi import APIRouter, Query, Request
from pydantic import Field

from highwater.api.core.access import Access, OwnedBy, Scope, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.errors import ForbiddenError, PaymentRequiredError
from highwater.api.core.guard import Called, GuardedRoute
from highwater.api.core.plan_limits import require_plan_allows
from highwater.api.core.resources import RUN
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
from highwater.api.core.uuids import canonical_user
from highwater.api.queries.answers import QueryRestarts
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.queries.read_model import FailedRun
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.queries import RUN_CONTROLLED
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
from highwater.streams.queries.restarts import Expected, expected_cost, resumed_stage, stages_from
from highwater.streams.queries.states import Stage
from highwater.streams.queries.validation import RESTART

router = APIRouter(tags=["queries"], route_class=GuardedRoute)

PLAN_RESTARTS = Access(Role.VIEWER, Scope.QUERIES, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=1)
RESTART_QUERIES = Access(Role.ADMIN, Scope.QUERIES, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=5)
# The UUID namespace of runs that restart failed ones; any constant, but it must never change.
_RESTARTS = UUID("0f3a3c0e-55a3-4a53-9f5b-0d2f1d9c6a41")
# The cost of a stage's calls is estimated from those of the last week.
_COSTS_MS = 7 * 86_400_000
_ORGANIZATION = "Only queries that this organization pays for."
_STAGE = "Only queries that continue with this stage."
_USER = "Only queries of this user."
AskedStage = Literal["analyzer", "assembler", "responder"]


class QueryRestartsRequest(RestartsAsked):
    """Which failed queries are restarted; `request_ids`: only these of them, as a plan has listed them."""

    organization_id: str | None = Field(None, max_length=CHARACTERS_MAX, description=_ORGANIZATION)
    stage: AskedStage | None = Field(None, description=_STAGE)
    request_ids: list[str] | None = Field(None, max_length=RESTARTS_MAX)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the stored runs and the expected cost; the organizations that have reached a limit, and why."""

    plan: RestartPlan
    runs: Sequence[FailedRun]
    expected: Expected
    refusals: Mapping[str, str]
    left_out: Mapping[str, int]


@router.get(
    "/api/queries/restart",
    summary="Plan a restart of failed queries",
    response_model=None,
    responses=answer(QueryRestarts),
)
@declared(PLAN_RESTARTS)
async def get_query_restarts(
    request: Request,
    called: Called,
    services: Wired,
    reason: Annotated[str, Query(max_length=CHARACTERS_MAX, description=REASON)] = "",
    stage: Annotated[AskedStage | None, Query(description=_STAGE)] = None,
    organization_id: Annotated[str | None, Query(max_length=CHARACTERS_MAX, description=_ORGANIZATION)] = None,
    user_id: Annotated[str | None, Query(max_length=CHARACTERS_MAX, description=_USER)] = None,
    begin: Annotated[str | None, Query(alias="from", max_length=TIME_CHARACTERS_MAX, description=FROM)] = None,
    end: Annotated[str | None, Query(alias="to", max_length=TIME_CHARACTERS_MAX, description=TO)] = None,
) -> QueryRestarts:
    """Shows which queries would be restarted, up to 500, why they failed, and what the restart is expected to cost."""
    del called
    await services.fresh(request, RUN.fed_by)
    asked = {"reason": reason, "stage": stage, "organization_id": organization_id, "user_id": user_id}
    wanted = QueryRestartsRequest.model_validate({**asked, "from": begin, "to": end})
    return document_of(await _planned(services, wanted), [], is_executed=False)


@router.post(
    "/api/queries/restart",
    status_code=HTTPStatus.ACCEPTED,
    summary="Restart failed queries together (admin)",
    response_model=None,
    responses=answer(QueryRestarts, status=HTTPStatus.ACCEPTED),
)
@declared(RESTART_QUERIES)
async def post_query_restarts(
    request: Request, body: QueryRestartsRequest, called: Called, services: Wired
) -> QueryRestarts:
    """Restarts each of them in a run of its own, as `POST /api/query/{request_id}/restart` does; up to 500 at once."""
    del called
    await services.fresh(request, RUN.fed_by)
    planned = await _planned(services, body)
    ts = services.clock()
    events = [_event(run, ts) for run in planned.runs]
    positions = await services.publisher.commands(RUN_CONTROLLED, events) if events else []
    return document_of(planned, positions, is_executed=True)


def _event(run: FailedRun, ts: int) -> dict[str, Any]:
    return {
        "request_id": run.request_id,
        "user_id": run.user_id,
        "action": RESTART,
        "stage": _stage(run).value,
        "new_request_id": new_id_of(run.request_id),
        "ts": ts,
    }


def new_id_of(request_id: str) -> str:
    """Return the id of the run that restarts a failed one."""
    return str(uuid5(_RESTARTS, request_id))


async def _planned(services: Services, body: QueryRestartsRequest) -> Planned:
    """Gather the failed runs, the limits of their organizations, and the costs of calls; and decide."""
    if body.organization_id is not None:
        check_id("organization_id", body.organization_id)
    pool = services.database.require()
    user_id = None if body.user_id is None else canonical_user("user_id", body.user_id)
    span, only = body.span_ms(), body.request_ids
    read = await query_reads.failed_runs(pool, body.organization_id, user_id, span, LOOKED_AT_MAX + 1, request_ids=only)
    restart_filter = RestartFilter(body.reason, body.stage)
    found = [run for run in read if restart_filter.finds(_failed(run))]
    refusals = await _refusals(services, {run.organization_id for run in found if run.organization_id is not None})
    left_out = Counter(run.organization_id for run in found if run.organization_id in refusals)
    plan = plan_restarts([_failed(run) for run in read if run.organization_id not in refusals], restart_filter)
    by_id = {run.request_id: run for run in read}
    runs = [by_id[work.id] for work in plan.work]
    lately = await query_reads.stage_costs(pool, services.clock() - _COSTS_MS)
    expected = expected_cost(map(_stage, runs), lately)
    return Planned(plan, runs, expected, refusals, {str(name): count for name, count in left_out.items()})


async def _refusals(services: Services, organizations: set[str]) -> dict[str, str]:
    """Return the organizations that have reached a limit, with the reason."""
    found = {}
    for name in sorted(organizations):
        try:
            await require_plan_allows(services, name, is_query=True)
        except (ForbiddenError, PaymentRequiredError) as error:
            found[name] = str(error)
    return found


def _stage(run: FailedRun) -> Stage:
    return resumed_stage(has_analysis=run.has_analysis, has_context=run.has_context)


def _failed(run: FailedRun) -> FailedWork:
    stage = _stage(run)
    return FailedWork(run.request_id, run.user_id, run.error, stage.value, len(stages_from(stage)), run.failed_ms)


def document_of(planned: Planned, positions: Sequence[str], *, is_executed: bool) -> QueryRestarts:
    """The answer."""
    found: Any = members_of(planned.plan, positions, noun="queries", is_executed=is_executed)
    return found | {  # type: ignore[no-any-return]
        "refusals": [
            {"organization_id": name, "queries": planned.left_out[name], "reason": reason}
            for name, reason in planned.refusals.items()
        ],
        "stages_left": planned.plan.left,
        "expected_tokens": planned.expected.tokens,
        "expected_cost_usd": planned.expected.cost_usd,
        "queries": [_line(run) for run in planned.runs],
    }


def _line(run: FailedRun) -> Any:
    return {
        "request_id": run.request_id,
        "new_request_id": new_id_of(run.request_id),
        "organization_id": run.organization_id,
        "user_id": run.user_id,
        "query": run.query,
        "error": run.error,
        "stage": _stage(run).value,
        "failed_at": iso_from_ms(run.failed_ms),
    }
