"""Queries: submitted, followed, cancelled, restarted, listed and shown with their history.

Invariants. A query is an event first; no request waits for its answer (R1.12). A repeat with the same `Idempotency-Key`
is the same request, for which nothing is stored: the id is a function of user and key. A run is readable by its user,
and by keys that are bound to no one.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4, uuid5

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict

from highwater.api.core import conditional
from highwater.api.core.access import Access, OwnedBy, Scope, access, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import Version
from highwater.api.core.errors import ConflictError, PaymentRequiredError, UnprocessableError
from highwater.api.core.guard import Called, Caller, GuardedRoute, User
from highwater.api.core.idempotency import idempotency_key, published_once
from highwater.api.core.openapi import NOT_MODIFIED, problems
from highwater.api.core.paging import LIMIT_DEFAULT, Cursor, Limit, number_before, page_of
from highwater.api.core.plan_limits import require_plan_allows
from highwater.api.core.resources import RUN, RUN_HISTORY, known
from highwater.api.core.services import Services, Wired
from highwater.api.core.uuids import canonical_user, canonical_uuid
from highwater.api.queries.answers import QueriesOfUser, QueryCompleted, QueryFailed, QueryProcessing, QueryTimeline
from highwater.api.queries.timeline import served_sources, timeline_document
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.queries.read_model import Run, RunLine
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.queries import QUERY_SUBMITTED, RUN_CONTROLLED
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.queries.states import Stage, Status
from highwater.streams.queries.validation import CANCEL, RESTART

# R1.3: 50 to 100 ms in all. The broker takes about 10; one check of an up-to-date sink is enough, and one that is
# behind is not waited for.
SINK_WAIT_MS = 25
# The UUID namespace of requests with an idempotency key; any constant, but it must never change.
_REQUESTS = UUID("6f0c6f5e-7b62-4f0e-9a3c-2f8f6a2f7d10")
router = APIRouter(tags=["queries"], route_class=GuardedRoute)
ACCEPTED = HTTPStatus.ACCEPTED
READ_RUN = Access(Role.VIEWER, Scope.QUERIES, OwnedBy.RUN, limit=RateLimit.CALLER, cost=1)
# For both methods, and for a command on the socket.
CANCEL_RUN = Access(Role.EDITOR, Scope.QUERIES, OwnedBy.RUN, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
# The dashboard enables its buttons by it, too.
ASK = Access(Role.EDITOR, Scope.QUERIES, OwnedBy.QUERY, limit=RateLimit.PLAN, cost=1)
RESTART_RUN = Access(Role.ADMIN, Scope.QUERIES, OwnedBy.RUN, limit=RateLimit.PLAN, cost=1)


class Question(BaseModel):
    """A user's question. A bound key or session may omit the user and the organization that pays."""

    model_config = ConfigDict(extra="forbid", strict=True)
    user_id: str | None = None
    organization_id: str | None = None
    query: str


class Restart(BaseModel):
    """The stage to restart from."""

    model_config = ConfigDict(extra="forbid", strict=True)
    stage: Literal["analyzer", "assembler", "responder"]


class QueryAccepted(BaseModel):
    """An accepted query."""

    request_id: str
    status: Literal["processing"] = "processing"
    positions: list[str]


class Cancelling(BaseModel):
    """An accepted cancellation. A run that has already ended stays as it ended."""

    request_id: str
    positions: list[str]


class Restarted(BaseModel):
    """The new run."""

    request_id: str
    restarted_from: str
    status: Literal["processing"] = "processing"
    positions: list[str]


async def _run_id(request_id: Annotated[str, Path(description="id returned by POST /api/query")]) -> str:
    return canonical_uuid("request_id", request_id)


async def _listed_user(user: User) -> str:
    return canonical_user("user_id", user)


RunId = Annotated[str, Depends(_run_id)]
ListedUser = Annotated[str, Depends(_listed_user)]


def named_user(called: Caller, user_id: str | None) -> str:
    """Return the asking user, by the one form of the id; errors as of `Caller.user`."""
    return canonical_user("user_id", called.user(user_id))


def request_id_of(user_id: str, key: str | None) -> str:
    """Return the id of a request: for a user's key always the same, and without a key a fresh one."""
    return str(uuid4() if key is None else uuid5(_REQUESTS, f"{user_id}/{key}"))


@router.post("/api/query", status_code=ACCEPTED, summary="Ask", responses=problems(PaymentRequiredError))
@declared(ASK)
async def post_query(request: Request, body: Question, called: Called, services: Wired) -> QueryAccepted:
    """Submits a query; its status, its timeline and the WebSocket report the outcome. The organization pays."""
    user_id = named_user(called, body.user_id)
    organization_id = called.payer(body.organization_id)
    key = idempotency_key(request)
    request_id = request_id_of(user_id, key)
    asked = {"request_id": request_id, "user_id": user_id, "query": body.query}
    event = {**asked, "ts": services.clock(), "organization_id": organization_id}
    encoded = services.publisher.encode(QUERY_SUBMITTED, event)

    async def read() -> Run | None:
        return await known(services, RUN, request_id)

    async def publish() -> list[str]:
        if organization_id is not None:
            await require_plan_allows(services, organization_id, is_query=True)
        return await services.publisher.publish(QUERY_SUBMITTED, [encoded], sink_wait_ms=SINK_WAIT_MS)

    first, positions = await published_once(key, read, publish)
    if first is not None:
        _require_same(first, event)
        positions = [first.position]
    return QueryAccepted(request_id=request_id, positions=positions)


def _require_same(first: Run, event: Mapping[str, Any]) -> None:
    """Refuse a key that was used for another query, and one whose id another user has taken."""
    if first.user_id != event["user_id"]:
        raise UnprocessableError("the id of this Idempotency-Key is taken; use another key", field="Idempotency-Key")
    if (first.query, first.organization_id) != (event["query"], event["organization_id"]):
        raise UnprocessableError(
            f"Idempotency-Key was used for another query, request {first.request_id}",
            field="Idempotency-Key",
            request_id=first.request_id,
        )


def status_document(run: Run) -> dict[str, Any]:
    """Return the outcome of a run (R1.29)."""
    if run.status == Status.COMPLETED:
        document: dict[str, Any] = {
            "request_id": run.request_id,
            "status": "completed",
            "answer": run.answer or "",
        }
        if run.sources is not None:
            document["sources"] = served_sources(run.sources)
        return {**document, "archive_status": run.archive_status}
    if run.status == Status.FAILED:
        return {"request_id": run.request_id, "status": "failed", "error": run.error or ""}
    return {"request_id": run.request_id, "status": "processing", "state": run.status}


def _tag(position: str) -> str:
    """Return what distinguishes a run from another of the same id: an erased one may be requested again with its key."""
    return position.partition("/")[2].replace("/", ".")


@router.get(
    "/api/query/{request_id}/status",
    summary="Get the status of a query; supports ETags",
    response_model=None,
    responses=answer(QueryProcessing, QueryCompleted, QueryFailed) | NOT_MODIFIED,
)
@declared(READ_RUN)
async def get_status(request: Request, request_id: RunId, called: Called, services: Wired) -> Response:
    """`processing`, `completed` with the answer, or `failed` with the error."""
    found = await called.found_fresh(request, RUN, request_id)
    version = Version(f"run-{_tag(found.position)}", found.version, found.caused_by)
    return conditional.answer_version(request, "query", status_document(found), version, services.clock())


@router.get(
    "/api/query/{request_id}/timeline",
    summary="Get the timeline of a query; supports ETags",
    response_model=None,
    responses=answer(QueryTimeline) | NOT_MODIFIED,
)
@declared(READ_RUN)
async def get_timeline(request: Request, request_id: RunId, called: Called, services: Wired) -> Response:
    """Each stage with its model calls, and each event with its position in the log."""
    found = await called.found_fresh(request, RUN_HISTORY, request_id)
    caused_by = found.events[-1]["position"] if found.events else found.caused_by
    version = Version(f"timeline-{_tag(found.position)}", found.version, caused_by)
    return conditional.answer_version(request, "query_timeline", timeline_document(found), version, services.clock())


@router.get(
    "/api/users/{user:id}/queries",
    summary="List a user's queries, newest first",
    response_model=None,
    responses=answer(QueriesOfUser),
)
@access(Role.VIEWER, Scope.QUERIES, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def get_queries(
    request: Request, user: ListedUser, services: Wired, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Response:
    """Paged; empty for a user without queries."""
    await services.fresh(request, RUN.fed_by)
    before = number_before(cursor, query_reads.PLACE_MAX)
    found = await query_reads.runs_of_user(services.database.require(), user, before, limit + 1)
    page, next_cursor = page_of(found, limit, lambda run: (run.ordinal,))
    return conditional.uncached({"user_id": user, "queries": [_line(run) for run in page], "next_cursor": next_cursor})


def _line(run: RunLine) -> dict[str, Any]:
    ended = {Status.COMPLETED: "completed", Status.FAILED: "failed"}
    return {
        "request_id": run.request_id,
        "query": run.query,
        "status": ended.get(Status(run.status), "processing"),
        "state": run.status,
        "archive_status": run.archive_status,
        "error": run.error,
        "restarted_from": run.restarted_from,
        "created_at": iso_from_ms(run.created_ms),
        "completed_at": None if run.completed_ms is None else iso_from_ms(run.completed_ms),
        "position": run.position,
    }


@router.post("/api/query/{request_id}/cancel", status_code=ACCEPTED, summary="Cancel a query")
@declared(CANCEL_RUN)
async def post_cancel(request: Request, request_id: RunId, called: Called, services: Wired) -> Cancelling:
    """The query fails as cancelled, in whichever stage it is; one that has ended stays as it is."""
    found = await called.found_fresh(request, RUN, request_id)
    return Cancelling(request_id=request_id, positions=await publish_cancel(services, found))


@router.delete("/api/query/{request_id}", status_code=ACCEPTED, summary="Cancel a query")
@declared(CANCEL_RUN)
async def delete_query(request: Request, request_id: RunId, called: Called, services: Wired) -> Cancelling:
    """Same as `POST /api/query/{request_id}/cancel`."""
    return await post_cancel(request, request_id, called, services)


async def publish_cancel(services: Services, run: Run) -> list[str]:
    """Publish that a run is to be cancelled; return the positions."""
    return await services.publisher.one(RUN_CONTROLLED, _control(services, run, CANCEL), sink_wait_ms=SINK_WAIT_MS)


@router.post(
    "/api/query/{request_id}/restart",
    status_code=ACCEPTED,
    summary="Restart a query from a stage (admin)",
    responses=problems(ConflictError, PaymentRequiredError),
)
@declared(RESTART_RUN)
async def post_query_restart(
    request: Request, request_id: RunId, body: Restart, called: Called, services: Wired
) -> Restarted:
    """Starts a new run that takes over the results of the earlier stages; the former run stays as it is."""
    found = await called.found_fresh(request, RUN, request_id)
    has_inputs = {Stage.ANALYZER: True, Stage.ASSEMBLER: found.has_analysis, Stage.RESPONDER: found.has_context}
    if not has_inputs[Stage(body.stage)]:
        raise ConflictError(f"query {request_id} cannot begin again from the {body.stage}: it never reached that stage")
    if found.organization_id is not None:
        await require_plan_allows(services, found.organization_id, is_query=True)
    new_id = str(uuid4())
    event = _control(services, found, RESTART) | {"stage": body.stage, "new_request_id": new_id}
    positions = await services.publisher.one(RUN_CONTROLLED, event, sink_wait_ms=SINK_WAIT_MS)
    return Restarted(request_id=new_id, restarted_from=request_id, positions=positions)


def _control(services: Services, run: Run, action: str) -> dict[str, Any]:
    of_run = {"request_id": run.request_id, "user_id": run.user_id, "action": action}
    return {**of_run, "stage": None, "new_request_id": None, "ts": services.clock()}
