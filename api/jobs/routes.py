"""Jobs: submitted, shown, listed, revoked, approved and watched; the decks that they make.

Invariants. A job is an event first. The limits of its organization are checked before that, so that a refusal at once
names the limit (R2.33); the sink checks again, and its decision is final. A repeat with the same `Idempotency-Key` is
the same job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID, uuid4, uuid5

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from highwater.api.core import conditional
from highwater.api.core.access import Access, OwnedBy, Scope, access, declared
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import Version
from highwater.api.core.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    PaymentRequiredError,
    UnprocessableError,
)
from highwater.api.core.guard import Called, Caller, GuardedRoute, Org
from highwater.api.core.idempotency import idempotency_key, published_once
from highwater.api.core.openapi import NOT_MODIFIED, problems, stream
from highwater.api.core.paging import (
    LIMIT_DEFAULT,
    Cursor,
    Limit,
    decode_cursor,
    foreign_cursor,
    page_of,
    require_known_parameters,
)
from highwater.api.core.plan_limits import require_job_allowed
from highwater.api.core.resources import DECK, JOB, known, require_job_args
from highwater.api.core.services import Services, Wired
from highwater.api.core.uuids import canonical_uuid
from highwater.api.jobs.answers import Job, JobsOfOrganization, Presentation
from highwater.api.jobs.services import WiredJobs
from highwater.api.jobs.stream import EventStream
from highwater.api.jobs.timeline import JobTimeline, job_timeline
from highwater.connectors.jobs import read_model as job_reads
from highwater.connectors.jobs.read_model import JobRead
from highwater.schemas.envelope import iso_from_ms, iso_from_ms_or_none
from highwater.schemas.jobs import CONTROL, JOB_SUBMITTED
from highwater.schemas.json_events import event_from_json
from highwater.streams.checks import TS_MS_MAX, TS_MS_MIN, check_id
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.args import check_outline, parse_args
from highwater.streams.jobs.states import JobStatus, Kind
from highwater.streams.jobs.validation import APPROVE, RESTART, REVOKE

REVOKED_REASON, RESTARTED_REASON, APPROVED_REASON = "revoked", "restarted", "approved"
# The UUID namespace of jobs with an idempotency key; any constant, but it must never change.
_JOBS = UUID("1f6c2a0e-52d7-4c11-9d4e-6f0b8f5f3c27")
_ENTRY_ID = re.compile("([0-9]{1,18})(?:-0)?")
ACCEPTED = HTTPStatus.ACCEPTED
# The same for a job's page, its events and its socket.
READ_JOB = Access(Role.VIEWER, Scope.JOBS, OwnedBy.JOB, limit=RateLimit.PLAN, cost=1)
# The dashboard enables its buttons by it, too.
RESTART_JOB = Access(Role.EDITOR, Scope.JOBS, OwnedBy.JOB, limit=RateLimit.PLAN, cost=1)
APPROVE_JOB = Access(Role.EDITOR, Scope.JOBS, OwnedBy.JOB, limit=RateLimit.PLAN, cost=1)
REVOKE_JOB = Access(Role.EDITOR, Scope.JOBS, OwnedBy.JOB, own=Role.VIEWER, limit=RateLimit.PLAN, cost=1)
SUBMIT_JOB = Access(Role.EDITOR, Scope.JOBS, OwnedBy.SUBMISSION, limit=RateLimit.PLAN, cost=1)

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


class JobSubmission(BaseModel):
    """A job to submit. A session supplies the organization; a key that is bound to a user supplies the user."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    organization_id: str | None = None
    user_id: str | None = None
    args: dict[str, Any]
    expires_at: str | int | None = None


class Approval(BaseModel):
    """An approval of an outline; `outline` replaces the one that waits."""

    model_config = ConfigDict(extra="forbid", strict=True)
    outline: dict[str, Any] | None = None


class JobAccepted(BaseModel):
    """An accepted job, or an accepted request about a job."""

    job_id: str
    positions: list[str]


async def _job_id(job_id: Annotated[str, Path(description="id returned by POST /api/jobs")]) -> str:
    return canonical_uuid("job_id", job_id)


async def _presentation_id(presentation_id: Annotated[str, Path(description="the id of the job that made it")]) -> str:
    return canonical_uuid("presentation_id", presentation_id)


JobId = Annotated[str, Depends(_job_id)]
PresentationId = Annotated[str, Depends(_presentation_id)]


def job_id_of(organization_id: str, user_id: str, key_text: str | None) -> str:
    """Return the id of a job: for a user's key always the same, and without a key a fresh one."""
    if key_text is None:
        return str(uuid4())
    return str(uuid5(_JOBS, orjson.dumps([organization_id, user_id, key_text]).decode()))


@router.post("/api/jobs", status_code=ACCEPTED, summary="Submit a job", responses=problems(PaymentRequiredError))
@declared(SUBMIT_JOB)
async def post_job(request: Request, body: JobSubmission, called: Called, services: Wired) -> JobAccepted:
    """Submits a job; `GET /api/jobs/{id}` and its events report the outcome."""
    organization_id, user_id = called.submission(body.organization_id, body.user_id)
    key_text = idempotency_key(request)
    job_id = job_id_of(organization_id, user_id, key_text)
    document = {"job_id": job_id, "kind": body.kind, "organization_id": organization_id, "user_id": user_id}
    event = event_from_json(
        JOB_SUBMITTED,
        {**document, "args": _json_text("args", body.args), "ts": services.clock(), "expires_at": body.expires_at},
    )
    encoded = services.publisher.encode(JOB_SUBMITTED, event)

    async def read() -> JobRead | None:
        return await known(services, JOB, job_id)

    async def publish() -> list[str]:
        args = parse_args(body.kind, event["args"])
        await require_job_args(services, called.principal, organization_id, args)
        await require_job_allowed(services, organization_id, body.kind, args)
        return await services.publisher.publish(JOB_SUBMITTED, [encoded])

    first, positions = await published_once(key_text, read, publish)
    if first is not None:
        _require_same(first, event)
        positions = [first.position]
    return JobAccepted(job_id=job_id, positions=positions)


def _json_text(name: str, value: dict[str, Any]) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:  # a surrogate, or a number that no reader accepts
        raise UnprocessableError(f"{name}: {error}", field=name) from error


def _require_same(first: JobRead, event: dict[str, Any]) -> None:
    """Refuse a key that was used for another job, and one whose id another owner has taken."""
    owner, named = (first.organization_id, first.user_id), (event["organization_id"], event["user_id"])
    if owner != named:
        raise UnprocessableError("the id of this Idempotency-Key is taken; use another key", field="Idempotency-Key")
    is_same = first.kind == event["kind"] and first.expires_ms == event["expires_at"]
    if not (is_same and parse_args(first.kind, first.args) == parse_args(event["kind"], event["args"])):
        raise UnprocessableError(
            f"Idempotency-Key was used for another job, {first.job_id}", field="Idempotency-Key", job_id=first.job_id
        )


@router.get(
    "/api/jobs/{job_id}",
    summary="Get a job; supports ETags",
    response_model=None,
    responses=answer(Job) | NOT_MODIFIED,
)
@declared(READ_JOB)
async def get_job(request: Request, job_id: JobId, called: Called, services: Wired) -> Response:
    """Its status, progress and cost, and where to find its result."""
    found = await called.found_fresh(request, JOB, job_id)
    version = Version("job", found.version, found.caused_by)
    return conditional.answer_version(request, "job", job_document(found), version, services.clock())


@router.get(
    "/api/jobs/{job_id}/timeline",
    summary="Get the timeline of a job; supports ETags",
    response_model=None,
    responses=answer(JobTimeline) | NOT_MODIFIED,
)
@declared(READ_JOB)
async def get_job_timeline(request: Request, job_id: JobId, called: Called, services: Wired) -> Response:
    """The input of the job, and each step with its calls of the language model."""
    found = await called.found_fresh(request, JOB, job_id)
    calls = await job_reads.calls(services.database.require(), job_id)
    # Each part only grows, and every change of the document makes one of them grow.
    number = found.version + sum(call["sends"] + 1 + (call["outcome"] is not None) for call in calls)
    version = Version("job-timeline", number, found.caused_by)
    return conditional.answer_version(request, "job_timeline", job_timeline(found, calls), version, services.clock())


def job_document(job: JobRead) -> dict[str, Any]:
    """Return the state of a job, as it is served."""
    result = None if job.result is None else orjson.loads(job.result)
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "organization_id": job.organization_id,
        "user_id": job.user_id,
        "status": job.status,
        "waiting_for": _waiting_for(job),
        "progress_pct": job.progress_pct,
        "steps_done": job.steps_done,
        "steps_total": job.steps_total,
        "result": result,
        "result_url": result_url(job.kind, job.job_id, result),
        "error": job.error,
        "tokens": job.tokens,
        "cost_usd": float(job.cost_usd),
        "cost_cents": job.cost_cents,
        "created_at": iso_from_ms(job.created_ms),
        "updated_at": iso_from_ms(job.updated_ms),
        "completed_at": iso_from_ms_or_none(job.completed_ms),
        "expires_at": _time(job.expires_ms),
        "last_event_id": f"{job.seq}-0",
        "position": job.position,
    }


def _waiting_for(job: JobRead) -> dict[str, Any] | None:
    if not job.waits_for_approval:
        return None
    told = {"event": "approval", "until": iso_from_ms_or_none(job.approval_until_ms)}
    return told if job.outline is None else {**told, "outline": orjson.loads(job.outline)}


def result_url(kind: str, job_id: str, result: Mapping[str, Any] | None) -> str | None:
    """Return the address of a job's result; None before it has ended, and if it has no page of its own."""
    if result is None or kind == Kind.INGESTION:
        return None
    if kind == Kind.GENERATION:
        return f"/api/presentations/{job_id}" if "presentation_id" in result else None
    elsewhere: str | None = result.get("url")
    return elsewhere or f"/api/blobs/{result['sha256']}"


def _time(ms: int | None) -> str | int | None:
    """Return a time from outside, which may be beyond the range of datetime."""
    return ms if ms is None or not TS_MS_MIN <= ms <= TS_MS_MAX else iso_from_ms(ms)


@router.delete("/api/jobs/{job_id}", status_code=ACCEPTED, summary="Revoke a job")
@declared(REVOKE_JOB)
async def delete_job(request: Request, job_id: JobId, called: Called, services: Wired) -> JobAccepted:
    """The job is not started any more; further writes by its worker are rejected. An ended job stays as it is."""
    await called.found_fresh(request, JOB, job_id)
    return await _controlled(services, job_id, REVOKE, REVOKED_REASON)


async def _controlled(services: Services, job_id: str, action: str, reason: str, **more: Any) -> JobAccepted:
    event = {"job_id": job_id, "action": action, "reason": reason, "ts": services.clock(), **more}
    return JobAccepted(job_id=job_id, positions=await services.publisher.commands(CONTROL, [event]))


@router.post(
    "/api/jobs/{job_id}/restart",
    status_code=ACCEPTED,
    summary="Restart a failed job from its checkpoint",
    responses=problems(PaymentRequiredError, ConflictError),
)
@declared(RESTART_JOB)
async def post_job_restart(request: Request, job_id: JobId, called: Called, services: Wired) -> JobAccepted:
    """The job continues after its last stored step, so nothing is done or paid twice. The organization's limits must
    allow a new job. Only a failed job can be restarted; a revoked or expired job cannot.
    """
    found = await called.found_fresh(request, JOB, job_id)
    if found.status != JobStatus.FAILED:
        told = f"only a failed job can be restarted; {job_id} is {found.status}"
        raise ConflictError(told, job_id=job_id, job_status=found.status)
    await require_job_allowed(services, found.organization_id, found.kind, parse_args(found.kind, found.args))
    return await _controlled(services, job_id, RESTART, RESTARTED_REASON)


@router.post(
    "/api/jobs/{job_id}/approve",
    status_code=ACCEPTED,
    summary="Approve the outline of a deck",
    responses=problems(ConflictError),
)
@declared(APPROVE_JOB)
async def post_job_approval(
    request: Request, job_id: JobId, called: Called, services: Wired, body: Approval | None = None
) -> JobAccepted:
    """Makes the slides of a job that waits for the approval of its outline (`await_approval`), as it is or as it is given
    here. Only the first approval counts.
    """
    found = await called.found_fresh(request, JOB, job_id)
    outline = None if body is None or body.outline is None else _json_text("outline", body.outline)
    if outline is not None:
        check_outline("outline", outline)
    if not found.waits_for_approval:
        told = f"the outline of {job_id} is not waiting for approval; the job is {found.status}"
        raise ConflictError(told, job_id=job_id, job_status=found.status)
    return await _controlled(services, job_id, APPROVE, APPROVED_REASON, outline=outline)


@router.get(
    "/api/organizations/{org:id}/jobs",
    summary="List the jobs of an organization, newest first",
    response_model=None,
    responses=answer(JobsOfOrganization),
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.LISTED, limit=RateLimit.PLAN, cost=1)
async def get_jobs(
    request: Request,
    org: Org,
    called: Called,
    services: Wired,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
    status: Annotated[JobStatus | None, Query(description="only jobs with this status")] = None,
    kind: Annotated[Kind | None, Query(description="only jobs of this kind")] = None,
    user_id: Annotated[str | None, Query(description="only jobs of this user")] = None,
) -> Response:
    """Paged. A caller that is bound to a user outside the organization sees that user's jobs only. Unknown parameters are
    rejected, so that a misspelt filter is never ignored.
    """
    check_id("org", org)
    require_known_parameters(request, ("limit", "cursor", "status", "kind", "user_id"))
    owned_by = listed_user(called, org, user_id)
    await services.fresh(request, JOB.fed_by)
    before = _list_place(cursor)
    pool = services.database.require()
    wanted = job_reads.JobFilter(owned_by, status, kind)
    found = await job_reads.jobs_of_organization(pool, org, before, wanted, limit + 1)
    page, next_cursor = page_of(found, limit, lambda job: (job.created_ms, job.job_id))
    return conditional.uncached(
        {"organization_id": org, "jobs": [job_document(job) for job in page], "next_cursor": next_cursor}
    )


def listed_user(called: Caller, org: str, user_id: str | None) -> str | None:
    """Return the one user whose jobs a caller reads in an organization; None: all of its jobs. `user_id`: the requested
    one.

    Raises:
        ForbiddenError: the caller may not read the jobs of that user, or of the organization.
    """
    only = called.listed(org)
    if only is not None and user_id not in (None, only):
        raise ForbiddenError(f"the jobs of {user_id} cannot be read with this key", field="user_id")
    return only or user_id


def _list_place(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return job_reads.PLACE_MAX
    at_ms, job_id = decode_cursor(cursor, int, str)
    try:
        place = int(at_ms), canonical_uuid("cursor", str(job_id))
    except UnprocessableError as error:
        raise foreign_cursor() from error
    if not TS_MS_MIN <= place[0] <= TS_MS_MAX:
        raise foreign_cursor()
    return place


# -- progress
# ------------------------------------------------------------------------------------------------------------


def place_after(last_event_id: str | None, job: JobRead) -> int:
    """Return the number after which a listener is served; 0 without an id.

    Raises:
        BadRequestError: it is not the id of an event of this job.
    """
    if last_event_id is None or not last_event_id.strip():
        return 0
    found = _ENTRY_ID.fullmatch(last_event_id.strip())
    if found is None or int(found[1]) > job.seq:
        raise BadRequestError("the last event id does not belong to this job", field="Last-Event-ID")
    return int(found[1])


@router.get(
    "/api/jobs/{job_id}/events",
    summary="Stream the progress of a job as server-sent events",
    response_class=Response,
    responses={**stream("An event for each step."), 204: {"description": "There are no more events."}},
)
@declared(READ_JOB)
async def get_events(request: Request, job_id: JobId, called: Called, services: Wired, jobs: WiredJobs) -> Response:
    """From the first event, or after `Last-Event-ID`, until the job ends. 204: no more events; do not reconnect."""
    found = await called.found_fresh(request, JOB, job_id)
    last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    after = place_after(last, found)
    if found.has_ended and after >= found.seq:
        return Response(status_code=int(HTTPStatus.NO_CONTENT), headers={"Cache-Control": conditional.CACHE_NEVER})
    jobs.watchers.audience.check_room()
    jobs.watchers.audience.places.check(called.principal)
    authorization = request.headers.get("authorization")

    async def is_still_allowed() -> bool:
        return await services.authenticator.is_still_valid(authorization)

    return EventStream(jobs.watchers, job_id, after, called.principal, is_still_allowed)


# -- decks
# ----------------------------------------------------------------------------------------------------------------


@router.get(
    "/api/presentations/{presentation_id}",
    summary="Get a presentation; supports ETags",
    response_model=None,
    responses=answer(Presentation) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.JOBS, OwnedBy.DECK, limit=RateLimit.PLAN, cost=1)
async def get_presentation(
    request: Request, presentation_id: PresentationId, called: Called, services: Wired, jobs: WiredJobs
) -> Response:
    """Its slides and its number of views, including views that are not yet stored."""
    found = await called.found_fresh(request, DECK, presentation_id)
    document = {
        "presentation_id": presentation_id,
        "organization_id": found.organization_id,
        "user_id": found.user_id,
        "title": found.title,
        "slides": orjson.Fragment(found.slides),
        "view_count": await jobs.views.shown(presentation_id, found.view_count),
        "created_at": iso_from_ms(found.created_ms),
        "position": found.position,
    }
    # The stored part of the views only grows; the rest, which is lost with Redis, is only in the ETag.
    version = Version("presentation", 1 + found.view_count, found.position)
    return conditional.answer_version(request, "presentation", document, version, services.clock())
