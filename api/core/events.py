"""Publishing to the topics that outsiders write: one JSON event, or NDJSON; either all events are accepted or none.

Invariant: every line is validated before anything is produced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, NotRequired
from uuid import UUID

import orjson
from fastapi import APIRouter, Request, Response
from typing_extensions import TypedDict

from highwater.api.core.access import Access, OwnedBy, Owner, Scope, declared, may_act_for
from highwater.api.core.answers import answer
from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, NotFoundError, PaymentRequiredError, UnprocessableError
from highwater.api.core.guard import Called, Caller, GuardedRoute
from highwater.api.core.openapi import problems
from highwater.api.core.plan_limits import require_job_allowed, require_plan_allows
from highwater.api.core.publishing import Publisher
from highwater.api.core.resources import require_job_args
from highwater.api.core.services import Services, Wired
from highwater.connectors.engines.submissions import ReadKnown
from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.jobs.submissions import known_submissions
from highwater.connectors.postgres.pool import reading
from highwater.connectors.queries.submissions import Question, known_questions, question_of
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.feeds import INSIGHT_INGESTED, InsightIngested
from highwater.schemas.jobs import JOB_SUBMITTED, JobSubmitted
from highwater.schemas.json_events import event_from_json
from highwater.schemas.positions import parse_position
from highwater.schemas.queries import QUERY_SUBMITTED, QuerySubmitted
from highwater.schemas.topics import TOPICS
from highwater.streams.feeds.repeats import find_conflicts
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.args import Submission, parse_args, submission_of
from highwater.streams.repeats import RecordedContent, conflicting

# Limit of events in one request; the body is limited too, and `highwater publish` is for files.
EVENTS_MAX = 10_000
NDJSON = "application/x-ndjson"

# How many events of a body change nothing, since their ids are stored with different content.
CONFLICTS = "X-Conflicts"

router = APIRouter(tags=["events"], route_class=GuardedRoute)


def _check_topic(name: str) -> None:
    topic = TOPICS.get(name)
    if topic is None:
        raise NotFoundError(f"there is no topic {name[:250]!r}")
    if not topic.outsider:
        raise ForbiddenError(f"{name} is written only by the system")


def _lines(body: bytes, is_ndjson: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the documents of a body with the line number on which each begins."""
    if not is_ndjson:
        yield 1, body
        return
    for number, line in enumerate(body.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _is_ndjson(content_type: str, body: bytes) -> bool:
    """Return whether the body is NDJSON: by its content type, else if the first line is a complete document."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in (NDJSON, "application/jsonl", "application/jsonlines", "application/x-jsonlines"):
        return True
    first, separator, rest = body.strip().partition(b"\n")
    if not separator or not rest.strip():
        return False
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return True


def _check_owner(called: Caller, topic: str, event: dict[str, Any]) -> None:
    """Refuse events of others: a bound key or session publishes only for its own user and organization; events without
    an owner need an unbound one.

    Raises:
        ForbiddenError: the event belongs to others.
    """
    # A query reads its user's earlier queries, so it belongs to the user, even if an organization pays.
    payer = None if topic == QUERY_SUBMITTED else event.get("organization_id")
    owner = Owner() if topic in OPERATOR_TOPICS else Owner(event.get("user_id"), payer)
    if not may_act_for(called.principal, owner):
        raise ForbiddenError(
            f"this key or session is bound to a user or organization and may publish only its own events to {topic}"
        )


def _check_id(called: Caller, topic: str, event: dict[str, Any]) -> None:
    """Refuse a UUID of version 5 from a bound key: `Idempotency-Key`s of others become such ids, which could be taken first.

    Raises:
        InvalidEventError: the id is of version 5.
    """
    field = _SUBMITTED_IDS.get(topic)
    if field is not None and not called.is_operator and UUID(event[field]).version == _DERIVED:
        message = f"{field} is a UUID of version {_DERIVED}, which idempotency keys become; send one of version 4 or 7"
        raise InvalidEventError("reserved_id", message, field=field)


# The dashboard also decides by it which buttons it shows.
PUBLISH = Access(Role.EDITOR, Scope.EVENTS, OwnedBy.EVENT, limit=RateLimit.CALLER, cost=1)
# The limits of calls that start paid work, whichever way they come.
_PAID_TOPICS = frozenset({JOB_SUBMITTED, QUERY_SUBMITTED})
# Where a submission has its id, and the version of ids that are derived from keys (RFC 9562, section 5.5).
_SUBMITTED_IDS: Mapping[str, str] = {JOB_SUBMITTED: "job_id", QUERY_SUBMITTED: "request_id"}
_DERIVED = 5
_PAID = Access(Role.EDITOR, Scope.EVENTS, OwnedBy.EVENT, limit=RateLimit.PLAN, cost=1)

# What limits its user: a bound key does not set it, not even for its own user (as `PUT /api/users/{user}/plan`).
OPERATOR_TOPICS = frozenset({"feeds.plan-changed"})
# The same roles as their own endpoints, so that publishing cannot bypass a role.
ADMIN_TOPICS = frozenset(
    {
        "feeds.rebuild-demanded",
        "feeds.user-erased",
        "league.match-finalized",
        "league.ad-changed",
        "league.rules-changed",
        "queries.run-controlled",
        "queries.prompt-changed",
        "jobs.plan-changed",
        "jobs.role-changed",
        "chunks.chunk-submitted",
        "chunks.ingest-finished",
    }
)


class PublishedEvents(TypedDict):
    """The position of each event, in order; `conflicts`: positions of events that have a known id and other content."""

    positions: list[str]
    conflicts: NotRequired[list[str]]


class _Checked(NamedTuple):
    """The events of a body, each also as its key and value."""

    events: list[Any]
    encoded: list[tuple[str, bytes]]


def _encode_all(topic: str, body: bytes, is_ndjson: bool, called: Caller, publisher: Publisher) -> _Checked:
    events: list[Any] = []
    encoded: list[tuple[str, bytes]] = []
    for number, line in _lines(body, is_ndjson):
        try:
            event = event_from_json(topic, _parsed(line))
            if topic == QUERY_SUBMITTED:
                event["organization_id"] = called.payer(event["organization_id"])
            _check_owner(called, topic, event)
            encoded.append(publisher.encode(topic, event))
            _check_id(called, topic, event)
            events.append(event)
        except InvalidEventError as error:
            where = f"line {number}: {error}" if is_ndjson else str(error)
            members: dict[str, Any] = {"line": number, "reason": error.reason}
            if error.field:
                members["field"] = error.field
            raise UnprocessableError(where, **members) from error
        if len(encoded) > EVENTS_MAX:
            raise UnprocessableError(f"more than {EVENTS_MAX} events in one request", line=number, reason="too_many")
    if not encoded:
        raise UnprocessableError("the body has no event", line=1, reason="empty")
    return _Checked(events, encoded)


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"not JSON: {error}") from error


@router.post(
    "/api/events/{topic:id}",
    status_code=HTTPStatus.ACCEPTED,
    summary="Publish one event, or several as NDJSON",
    response_model=None,
    responses={
        202: {
            **answer(PublishedEvents)[200],
            "headers": {
                CONFLICTS: {
                    "description": "Number of insights, jobs or queries with a known id and other content; absent if none.",
                    "schema": {"type": "integer"},
                }
            },
        },
        **problems(PaymentRequiredError),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"type": "object"}},
                NDJSON: {"schema": {"type": "string"}},
            },
        }
    },
)
@declared(PUBLISH)
async def publish_events(
    topic: str, request: Request, response: Response, called: Called, services: Wired
) -> PublishedEvents:
    """Validates every event, publishes all of them in order with acks=all, and returns their positions.

    An insight, a job or a query with a known id and different content changes nothing; its position is also in `conflicts`.
    """
    _check_topic(topic)
    if topic in ADMIN_TOPICS:
        called.require_role(Role.ADMIN)
        await services.security.permit(request.scope, called.principal)
    body = await request.body()
    is_ndjson = _is_ndjson(request.headers.get("content-type", ""), body)
    events, encoded = _encode_all(topic, body, is_ndjson, called, services.publisher)
    if topic in _PAID_TOPICS:
        # Each event counts like a call of the corresponding endpoint.
        await services.rate_limiter.admit(_PAID, called.principal, request.scope, cost=len(encoded))
    if topic == JOB_SUBMITTED:
        await _check_jobs(services, called, events)
    elif topic == QUERY_SUBMITTED:
        await _check_queries(services, events)
    called.note_checked()
    positions = await services.publisher.publish(topic, encoded)
    conflicts = await _conflicts(services, called.principal, topic, events, positions)
    if not conflicts:
        return {"positions": positions}
    response.headers[CONFLICTS] = str(len(conflicts))
    return {"positions": positions, "conflicts": conflicts}


async def _conflicts(
    services: Services, principal: Principal, topic: str, events: Sequence[Any], positions: Sequence[str]
) -> list[str]:
    """Return the positions of events that contradict a known id, as far as stored.

    The sinks report all of them, by `feeds.insight-conflicted` or as a dead letter (`conflicting_repeat`); here the
    sender is informed at once if possible, but not about what others have under an id.
    """
    find = _FINDERS.get(topic)
    if find is None:
        return []
    try:
        return [positions[place] for place in await find(services, principal, events, positions)]
    except UnavailableError:
        return []


async def _conflicting_insights(
    services: Services, _principal: Principal, events: Sequence[InsightIngested], positions: Sequence[str]
) -> list[int]:
    said = [(event, parse_position(position)) for event, position in zip(events, positions, strict=True)]
    ids = sorted({event["insight_id"] for event in events})
    stored = await feeds_reads.stored_insights(services.database.require(), ids)
    return [one.place for one in find_conflicts(said, stored)]


async def _conflicting_jobs(
    services: Services, principal: Principal, events: Sequence[JobSubmitted], positions: Sequence[str]
) -> list[int]:
    said = [(event["job_id"], submission_of(event)) for event in events]
    return await _conflicting_repeats(services, principal, said, positions, known_submissions, _owner_of_job)


async def _conflicting_queries(
    services: Services, principal: Principal, events: Sequence[QuerySubmitted], positions: Sequence[str]
) -> list[int]:
    said = [(event["request_id"], question_of(event)) for event in events]
    return await _conflicting_repeats(services, principal, said, positions, known_questions, _owner_of_query)


def _owner_of_job(said: Submission) -> Owner:
    return Owner(said.user_id, said.organization_id)


def _owner_of_query(said: Question) -> Owner:
    return Owner(said.user_id)  # also if an organization pays


async def _conflicting_repeats(
    services: Services,
    principal: Principal,
    said: Sequence[tuple[str, object]],
    positions: Sequence[str],
    known_of: ReadKnown[Any],
    owner_of: Callable[[Any], Owner],
) -> list[int]:
    """Return the indexes of events whose content differs from the first one under their id; `said` holds an id and a
    content each.
    """
    async with reading(services.database.require()) as connection:
        stored = await known_of(connection, sorted({name for name, _ in said}))
    known = {name: one for name, one in stored.items() if may_act_for(principal, owner_of(one.said))}
    events = [
        (name, RecordedContent(content, position)) for (name, content), position in zip(said, positions, strict=True)
    ]
    return conflicting(events, {name: RecordedContent(*one) for name, one in known.items()})


_FINDERS: Mapping[str, Callable[[Services, Principal, Sequence[Any], Sequence[str]], Awaitable[list[int]]]] = {
    INSIGHT_INGESTED: _conflicting_insights,
    JOB_SUBMITTED: _conflicting_jobs,
    QUERY_SUBMITTED: _conflicting_queries,
}


async def _check_jobs(services: Services, called: Caller, events: Sequence[JobSubmitted]) -> None:
    """Check the resources that jobs name, and the plans of their organizations, as `POST /api/jobs` does.

    Errors as of `require_job_args` and `require_job_allowed`.
    """
    for event in events:
        args = parse_args(event["kind"], event["args"])
        await require_job_args(services, called.principal, event["organization_id"], args)
        await require_job_allowed(services, event["organization_id"], event["kind"], args)


async def _check_queries(services: Services, events: Sequence[QuerySubmitted]) -> None:
    """Check the plans of the organizations, as `POST /api/query` does; raises the errors of `require_plan_allows`."""
    payers = {event["organization_id"] for event in events}
    for organization_id in sorted(one for one in payers if one is not None):
        await require_plan_allows(services, organization_id, is_query=True)
