"""Conditional reads (RFC 9110, section 13.1.2): one weak entity tag for every encoding of a version.

Every representation has its ETag, its version and the event that caused it; a 304 has the same headers and no body.
Staleness of a 304: a plain read trusts a version for two seconds after it was read from PostgreSQL
(`connectors.redis.resource_cache.TRUSTED_MS`); a read with `X-Min-Position` asks PostgreSQL, so it is never stale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from fastapi import Request, Response

from highwater.connectors.redis.resource_cache import Head
from highwater.streams.telemetry import CONDITIONAL_GETS

JSON = "application/json"
# A copy may be stored but must be revalidated; a user's data is not for shared caches.
CACHE_PRIVATE = "private, no-cache"
CACHE_PUBLIC = "no-cache"
CACHE_NEVER = "no-store"
# One tag, or an empty element: a recipient ignores those (RFC 9110, section 5.6.1.2).
_TAG = re.compile(r'\s*(?:(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*)?(?:,|$)')


class Version(NamedTuple):
    """The served version of a resource: `name` begins its ETag, `number` only grows, `caused_by` is the event that caused it."""

    name: str
    number: int
    caused_by: str


def tag_of(name: str, payload: bytes) -> str:
    """Return an entity tag that contains a hash of its bytes: another installation or a new log never uses it for other
    bytes.
    """
    return f"{name}-{sha256(payload).hexdigest()[:16]}"


def is_match(if_none_match: str | None, etag: str) -> bool:
    """Return whether an `If-None-Match` field contains this ETag, compared weakly; `*` matches any.

    A field that is not a list of ETags matches nothing: the client then gets the representation, which is always
    correct.
    """
    if if_none_match is None:
        return False
    text = if_none_match.strip()
    if text == "*":
        return True
    place, found = 0, False
    while place < len(text):
        tag = _TAG.match(text, place)
        if tag is None:
            return False
        found = found or tag[1] == etag
        place = tag.end()
    return found


def condition(request: Request) -> str | None:
    """Return the `If-None-Match` of a request; several fields form one list (RFC 9110, section 5.3)."""
    values = request.headers.getlist("if-none-match")
    return ", ".join(values) if values else None


def version_headers(head: Head, cache_control: str) -> dict[str, str]:
    """Return the headers of every conditional answer."""
    headers = {
        "ETag": f'W/"{head.etag}"',
        "Cache-Control": cache_control,
        "X-Resource-Version": str(head.version),
    }
    # A resource that no event ever changed has no cause; the field is sent empty so that clients can rely on it.
    headers["X-Caused-By"] = head.caused_by
    return headers


def not_modified(
    kind: str, head: Head, cache_control: str = CACHE_PRIVATE, extra: Mapping[str, str] | None = None
) -> Response:
    """Return a 304 for this version."""
    CONDITIONAL_GETS.labels(kind, "not_modified").inc()
    return Response(
        status_code=int(HTTPStatus.NOT_MODIFIED), headers={**version_headers(head, cache_control), **(extra or {})}
    )


def answer(
    request: Request,
    kind: str,
    head: Head,
    payload: bytes,
    *,
    cache_control: str = CACHE_PRIVATE,
    extra: Mapping[str, str] | None = None,
    media_type: str = JSON,
) -> Response:
    """Return the representation of a version, or a 304 if the client has it."""
    if is_match(condition(request), head.etag):
        return not_modified(kind, head, cache_control, extra)
    CONDITIONAL_GETS.labels(kind, "sent").inc()
    headers = {**version_headers(head, cache_control), **(extra or {})}
    return Response(payload, headers=headers, media_type=media_type)


def answer_version(
    request: Request, kind: str, document: Any, version: Version, now_ms: int, *, cache_control: str = CACHE_PRIVATE
) -> Response:
    """Return the same for a document built from the current rows of PostgreSQL; its ETag contains a hash of its bytes."""
    payload = orjson.dumps(document)
    etag = tag_of(f"{version.name}-{version.number}", payload)
    head = Head(version.number, etag, version.caused_by, now_ms)
    return answer(request, kind, head, payload, cache_control=cache_control)


def uncached(document: Any, extra: Mapping[str, str] | None = None, *, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a document without a version, which no cache may store."""
    headers = {"Cache-Control": CACHE_NEVER, **(extra or {})}
    return Response(orjson.dumps(document), int(status), headers, media_type=JSON)
