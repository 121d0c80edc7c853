"""Routes to ingest chunks and to show the outcome of an ingest.

Invariant: an ingest is a sequence of events, and its sink validates them: everything that the schema of a chunk can represent
is accepted and counted there, so that one bad chunk never costs the others (R3.24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any
from uuid import uuid4

import orjson
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.chunks import answers
from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.conditional import Version
from highwater.api.core.errors import UnprocessableError
from highwater.api.core.freshness import WRITE_WAIT_MS
from highwater.api.core.guard import Called, Caller, GuardedRoute
from highwater.api.core.openapi import ID, NOT_MODIFIED
from highwater.api.core.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, foreign_cursor, page_of
from highwater.api.core.publishing import NotTakenError
from highwater.api.core.resources import INGEST_CREATED_BY, namespace_is_open, no_ingest
from highwater.api.core.services import Services, Wired
from highwater.connectors.chunks import read_model as chunk_reads
from highwater.connectors.chunks.read_model import FIRST_PLACE, Failure, Ingest, SourceIngest
from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.json_events import event_from_json
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.checks import check_id, check_not_blank
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.identity.rate_limits import RateLimit

DECIDED = "chunks.ingest-decided"
INGEST_TOPICS: frozenset[str] = frozenset({CHUNK_SUBMITTED, INGEST_FINISHED, DECIDED})
# Per request; the body is limited too. A longer source is sent in several requests, the last of which finishes it.
CHUNKS_MAX = 10_000
# Headers and framing of a record, generously; a value that leaves no room for them is refused here.
_RECORD_OVERHEAD_BYTES = 4_096
_RUNNING = "running"

router = APIRouter(tags=["chunks"], route_class=GuardedRoute)


class IngestSubmission(BaseModel):
    """Chunks of one source. The fields `full` to `window` apply to the request with `finish`: true.

    `expected_count`: number of different chunks over all requests with this `ingest_id`; default: those of this
    request. `full`: the source has no other chunks, so all others become orphans; with `force` also if all are to be marked.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    ns: Annotated[str, ID]
    slot: Annotated[str, ID]
    source_id: Annotated[str, ID]
    ingest_id: str | None = None
    full: bool = False
    force: bool = False
    truncated: bool = False
    finish: bool = True
    expected_count: Annotated[int, Field(ge=0)] | None = None
    window: dict[str, Any] | None = None
    chunks: Annotated[list[dict[str, Any]], Field(max_length=CHUNKS_MAX)] = []


class IngestAccepted(BaseModel):
    """An accepted ingest. `positions`: the last position per partition; send them as `X-Min-Position` to read the result."""

    ingest_id: str
    positions: list[str]


@router.post("/api/chunks/ingest", status_code=HTTPStatus.ACCEPTED, summary="Ingest chunks of a source (admin)")
@access(Role.ADMIN, Scope.CHUNKS, limit=RateLimit.PLAN, cost=1)
async def post_ingest(body: IngestSubmission, services: Wired) -> IngestAccepted:
    """Publishes the chunks; `GET /api/chunks/ingest/{ingest_id}` reports their outcome."""
    ingest_id = str(uuid4()) if body.ingest_id is None else body.ingest_id
    source = {"ns": body.ns, "slot": body.slot, "source_id": body.source_id, "ingest_id": ingest_id}
    for name in ("ns", "slot", "source_id"):
        check_key_part(name, source[name])
    check_id("ingest_id", ingest_id)
    if not body.chunks and not body.finish:
        raise UnprocessableError("the request has neither chunks nor `finish`", field="chunks")
    events = [_chunk_event(number, chunk, source) for number, chunk in enumerate(body.chunks)]
    encoded = [_encoded(services, number, event) for number, event in enumerate(events)]
    ended = (
        [services.publisher.encode(INGEST_FINISHED, _end(body, source, events, services.clock()))]
        if body.finish
        else []
    )
    positions: list[str] = []
    try:
        if encoded:
            # The end event follows at once, and its position is the one to wait for.
            wait_ms = 0 if ended else WRITE_WAIT_MS
            positions += await services.publisher.publish(CHUNK_SUBMITTED, encoded, sink_wait_ms=wait_ms)
        if ended:
            positions += await services.publisher.publish(INGEST_FINISHED, ended)
    except NotTakenError as error:
        error.members["ingest_id"] = ingest_id  # repeated under the same id, accepted events change nothing
        raise
    return IngestAccepted(ingest_id=ingest_id, positions=_last_positions(positions))


def _chunk_event(number: int, chunk: dict[str, Any], source: Mapping[str, str]) -> dict[str, Any]:
    for name in source:
        if name in chunk:
            text = f"{name} is said of the request, not of a chunk"
            raise _refused(number, InvalidEventError("unknown_field", text, field=name))
    try:
        event = event_from_json(CHUNK_SUBMITTED, {**chunk, **source})
        # The sink validates everything else and counts what it refuses; an empty ingest is surely a mistake.
        check_not_blank("content", event["content"])
    except InvalidEventError as error:
        raise _refused(number, error) from error
    return event


def _encoded(services: Services, number: int, event: Mapping[str, Any]) -> tuple[str, bytes]:
    try:
        key, value = services.publisher.encode_unjudged(CHUNK_SUBMITTED, event)
    except InvalidEventError as error:
        raise _refused(number, error) from error
    if len(key) * 4 + len(value) + _RECORD_OVERHEAD_BYTES > TOPICS[CHUNK_SUBMITTED].message_bytes_max:
        raise _refused(
            number, InvalidEventError("too_large", "the chunk is larger than the largest record", field="content")
        )
    return key, value


def _refused(number: int, error: InvalidEventError) -> UnprocessableError:
    field = f"chunks.{number}" + (f".{error.field}" if error.field else "")
    return UnprocessableError(f"chunk {number}: {error}", field=field, index=number, reason=error.reason)


def _end(
    body: IngestSubmission, source: Mapping[str, str], events: Sequence[Mapping[str, Any]], now_ms: int
) -> dict[str, Any]:
    count = len({event["chunk_no"] for event in events}) if body.expected_count is None else body.expected_count
    window = None if body.window is None else _window_text(body.window)
    is_truncated = body.truncated or (body.window or {}).get("truncated") is True
    return {
        **source,
        "full": body.full,
        "expected_count": count,
        "truncated": is_truncated,
        "ts": now_ms,
        "force": body.force,
        "window": window,
    }


def _window_text(window: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(window).decode()
    except TypeError as error:  # a lone surrogate, or a number that no reader accepts
        raise UnprocessableError(f"window: {error}", field="window") from error


def _last_positions(positions: Sequence[str]) -> list[str]:
    last: dict[tuple[str, int], Position] = {}
    for text in positions:
        found = parse_position(text)
        last[found.topic, found.partition] = max(found, last.get((found.topic, found.partition), found))
    return [str(position) for position in last.values()]


# -- the outcome of an ingest
# -----------------------------------------------------------------------------------------------


@router.get(
    "/api/chunks/ingest/{ingest_id:id}",
    summary="Get the report of an ingest; supports ETags",
    response_model=None,
    responses=answer(answers.Ingest) | NOT_MODIFIED,
)
@access(Role.VIEWER, Scope.CHUNKS, OwnedBy.INGEST, limit=RateLimit.PLAN, cost=1)
async def get_ingest(
    request: Request,
    ingest_id: Annotated[str, Path(description="id returned by POST /api/chunks/ingest, or the id of a job")],
    called: Called,
    services: Wired,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """Counters over all sources, the outcome of each source (paged), and the first rejected chunks."""
    check_id("ingest_id", ingest_id)
    after = FIRST_PLACE if cursor is None else _source_place(cursor)
    await services.fresh(request, INGEST_TOPICS)
    found = await _stored(called, services, ingest_id, after, limit + 1)
    if found is None:
        found = await _accepted(called, services, ingest_id)
    if found is None:  # it may have been stored since the first read
        found = await _stored(called, services, ingest_id, after, limit + 1)
    if found is None:
        raise no_ingest(ingest_id)
    version = Version("ingest", found.version, found.caused_by)
    return conditional.answer_version(request, "ingest", ingest_document(found, limit), version, services.clock())


async def _stored(
    called: Caller, services: Services, ingest_id: str, after: tuple[str, str, str], limit: int
) -> Ingest | None:
    await called.ingest(ingest_id)
    return await chunk_reads.ingest(services.database.require(), ingest_id, after, limit)


async def _accepted(called: Caller, services: Services, ingest_id: str) -> Ingest | None:
    """Return an ingest of which nothing is stored yet, for a caller that may read the namespace of its first event.

    Raises:
        NotFoundError: the namespace is closed.
    """
    for creation in INGEST_CREATED_BY:
        event = await services.unstored.event(creation, ingest_id)
        if event is not None:
            if not called.is_operator and not await namespace_is_open(services, event.value["ns"]):
                raise no_ingest(ingest_id)
            return await creation.value(services.database.require(), event)
    return None


def _source_place(cursor: str) -> tuple[str, str, str]:
    ns, slot, source_id = decode_cursor(cursor, str, str, str)
    place = str(ns), str(slot), str(source_id)
    try:
        for part in place:
            check_id("cursor", part)
    except InvalidEventError as error:  # what PostgreSQL would not take
        raise foreign_cursor() from error
    return place


def ingest_document(found: Ingest, limit: int) -> dict[str, Any]:
    """An ingest as it is served; the four counters add up to the chunks received."""
    page, next_cursor = page_of(found.sources, limit, lambda one: (one.ns, one.slot, one.source_id))
    return {
        "ingest_id": found.ingest_id,
        "status": _status(found),
        "reason": _reason(found),
        "received": found.inserted + found.updated + found.unchanged + found.failures,
        "inserted": found.inserted,
        "updated": found.updated,
        "unchanged": found.unchanged,
        "failures": found.failures,
        "orphaned": found.orphaned,
        "window": _json(found.window),
        "created_at": iso_from_ms(found.created_ms),
        "updated_at": iso_from_ms(found.updated_ms),
        "finished_at": iso_or_none(found.decided_ms) if found.sources_done == found.sources_total else None,
        "sources_total": found.sources_total,
        "sources_done": found.sources_done,
        "statuses": found.statuses,
        "sources": [_source_document(one) for one in page],
        "next_cursor": next_cursor,
        "failed": [_failure_document(one) for one in found.failed],
    }


def _status(found: Ingest) -> str:
    """Return the status of the worst source, once all have ended."""
    is_running = found.worst is None or found.sources_done < found.sources_total
    return _RUNNING if is_running or found.worst is None else found.worst.status


def _reason(found: Ingest) -> str | None:
    """Return the reason of that status, with the name of the source if there are several."""
    worst = found.worst
    if worst is None or worst.reason is None or _status(found) == _RUNNING:
        return None
    if found.sources_total == 1:
        return worst.reason
    count = f"{found.statuses[worst.status]} of {found.sources_total} sources"
    return f"{count}, first {worst.ns} / {worst.slot} / {worst.source_id}: {worst.reason}"


def _source_document(one: SourceIngest) -> dict[str, Any]:
    return {
        "ns": one.ns,
        "slot": one.slot,
        "source_id": one.source_id,
        "status": one.status,
        "reason": one.reason,
        "full": one.is_full,
        "force": one.is_forced,
        "truncated": one.is_truncated,
        "expected_count": one.expected,
        "inserted": one.inserted,
        "updated": one.updated,
        "unchanged": one.unchanged,
        "failures": one.failures,
        "orphaned": one.orphaned,
        "window": _json(one.window),
        "created_at": iso_from_ms(one.created_ms),
        "updated_at": iso_from_ms(one.updated_ms),
        "finished_at": iso_or_none(one.decided_ms),
        "position": one.position,
    }


def _failure_document(one: Failure) -> dict[str, Any]:
    return {
        "ns": one.ns,
        "slot": one.slot,
        "source_id": one.source_id,
        "chunk_no": one.chunk_no,
        "reason": one.reason,
        "detail": one.detail,
        "position": one.position,
        "failed_at": iso_from_ms(one.failed_ms),
    }


def _json(text: str | None) -> Any:
    return None if text is None else orjson.Fragment(text)


def iso_or_none(ms: int | None) -> str | None:
    """Return a time in ISO 8601, or None."""
    return None if ms is None else iso_from_ms(ms)
