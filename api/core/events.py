"""Publishing to the topics that outsiders write: one JSON event, or NDJSON; all of it is taken or none of it.

Law: every line is validated before anything is produced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter, Request

from highwater.api.core.access import Owner, Scope, Whose, access, may_act_for
from highwater.api.core.auth import Role
from highwater.api.core.errors import ForbiddenError, NotFoundError, UnprocessableError
from highwater.api.core.guard import Asker, Called, GuardedRoute
from highwater.api.core.publishing import Publisher
from highwater.api.core.resources import require_job_args
from highwater.api.core.services import Services, Wired
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import JOB_SUBMITTED
from highwater.schemas.json_events import event_from_json
from highwater.schemas.topics import TOPICS
from highwater.streams.jobs.args import parse_args

# Events in one request; the body is bounded too, and a file belongs to `highwater publish`.
EVENTS_MAX = 10_000
NDJSON = "application/x-ndjson"

router = APIRouter(tags=["events"], route_class=GuardedRoute)


def _check_topic(name: str) -> None:
    topic = TOPICS.get(name)
    if topic is None:
        raise NotFoundError(f"there is no topic {name[:250]!r}")
    if not topic.outsider:
        raise ForbiddenError(f"{name} is written by the system alone")


def _lines(body: bytes, is_ndjson: bool) -> Iterator[tuple[int, bytes]]:
    """The documents of a body with the number of the line each begins on."""
    if not is_ndjson:
        yield 1, body
        return
    for number, line in enumerate(body.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _is_ndjson(content_type: str, body: bytes) -> bool:
    """As the client says; one that says nothing of the kind sends lines when the first line is a document by itself."""
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


def _check_owner(called: Asker, topic: str, event: dict[str, Any]) -> None:
    """A bound key or session publishes what is its user's and its organization's own; what is nobody's own takes an unbound one.

    Raises:
        ForbiddenError: the event is of others.
    """
    owner = Owner(event.get("user_id"), event.get("organization_id"))
    if not may_act_for(called.principal, owner):
        raise ForbiddenError(f"this key or session is bound and may publish only what is its own to {topic}")


# As their own endpoints are: nobody gets round a role by the other door.
_ADMIN_TOPICS = frozenset(
    {
        "feeds.rebuild-demanded",
        "feeds.user-erased",
        "league.match-finalized",
        "league.ad-changed",
        "queries.run-controlled",
        "queries.prompt-changed",
        "jobs.plan-changed",
        "jobs.role-changed",
        "chunks.chunk-submitted",
        "chunks.ingest-finished",
    }
)


def _encode_all(
    topic: str, body: bytes, is_ndjson: bool, called: Asker, publisher: Publisher
) -> list[tuple[str, bytes]]:
    encoded = []
    for number, line in _lines(body, is_ndjson):
        try:
            event = event_from_json(topic, _parsed(line))
            _check_owner(called, topic, event)
            encoded.append(publisher.encode(topic, event))
        except InvalidEventError as error:
            where = f"line {number}: {error}" if is_ndjson else str(error)
            members: dict[str, Any] = {"line": number, "reason": error.reason}
            if error.field:
                members["field"] = error.field
            raise UnprocessableError(where, **members) from error
        if len(encoded) > EVENTS_MAX:
            raise UnprocessableError(f"more than {EVENTS_MAX} events in one request", line=number, reason="too_many")
    if not encoded:
        raise UnprocessableError("the body holds no event", line=1, reason="empty")
    return encoded


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"not JSON: {error}") from error


@router.post(
    "/api/events/{topic:id}",
    status_code=HTTPStatus.ACCEPTED,
    summary="Publish one event, or many as NDJSON",
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
@access(Role.EDITOR, Scope.EVENTS, Whose.EVENT)
async def publish_events(topic: str, request: Request, called: Called, services: Wired) -> dict[str, list[str]]:
    """Validate every event, produce them in order with acks=all, and answer with their positions."""
    _check_topic(topic)
    if topic in _ADMIN_TOPICS:
        called.require_role(Role.ADMIN)
        await services.security.permit(request.scope, called.principal)
    body = await request.body()
    is_ndjson = _is_ndjson(request.headers.get("content-type", ""), body)
    encoded = _encode_all(topic, body, is_ndjson, called, services.publisher)
    if topic == JOB_SUBMITTED:
        await _check_jobs(services, called, encoded)
    called.note_checked()
    return {"positions": await services.publisher.publish(topic, encoded)}


async def _check_jobs(services: Services, called: Asker, encoded: Sequence[tuple[str, bytes]]) -> None:
    """What jobs name is checked as `POST /api/jobs` checks it; errors as of `require_job_args`."""
    for _, value in encoded:
        event = services.registry.require().decode(JOB_SUBMITTED, value)
        args = parse_args(event["kind"], event["args"])
        await require_job_args(services, called.principal, event["organization_id"], args)
