"""Serves documents over HTTP: conditional reads, codings, and how long a cache may keep them.

Invariants. A 304 reads heads and never a payload. One weak ETag names a version in every coding (RFC 9110, section
8.8.1). A body is of exactly the version in its headers; if a version was overtaken between the two it is read again.

A client's own cache revalidates each time (`Cache-Control: no-cache`): a browser that may use a stale copy would
silently show the version before an acknowledged write. A shared cache that is configured for it (`CDN-Cache-Control`,
RFC 9213) may do what the server does itself: serve a stale page while it fetches the new one, or on an error, until its
stale TTL ends; but never to a read with `X-Min-Position` (`Vary`). A page that requires a key may not be stored by a
shared cache, which would serve it to callers without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from fastapi import Request, Response

from highwater.api.core.access import Access
from highwater.api.core.conditional import CACHE_PRIVATE, CACHE_PUBLIC, JSON, condition, is_match, version_headers
from highwater.api.core.encodings import Encoding, negotiate
from highwater.api.core.errors import NotAcceptableError
from highwater.api.core.guard import ASKER
from highwater.api.pages.services import PageServices
from highwater.api.pages.sources import DocumentSource, Source
from highwater.connectors.pages.reads import Served
from highwater.schemas.errors import UnavailableError
from highwater.streams.pages.kinds import Resource
from highwater.streams.pages.refresh import Freshness
from highwater.streams.telemetry import CONDITIONAL_GETS

# A shared cache that may serve a stale page must not serve it to a read with positions.
VARY = "Accept-Encoding, X-Min-Position"
# Each attempt follows a bump between head and payload; a document is bumped at most every few seconds.
ATTEMPTS_MAX = 3


class OvertakenError(UnavailableError):
    """The document changed each time it was read. Try again."""


async def serve(request: Request, pages: PageServices, found: Resource) -> Response:
    """Return a document, or 304 if the client has it; errors as of `serve_source`."""
    return await serve_source(request, pages, DocumentSource(pages.documents, found))


async def serve_source(request: Request, pages: PageServices, source: Source) -> Response:
    """Return a page, or 304 if the client has it.

    Raises:
        BadRequestError: `X-Min-Position` names a position that cannot be reached.
        NotAcceptableError: the client accepts no available coding.
        NoSuchDocumentError: the document does not exist.
        DocumentPendingError: it is being built.
        UnavailableError: a service is unavailable, or the positions were not reached in time.
    """
    is_positioned = await pages.core.fresh(request, source.topics)
    declaration: Access = request.scope[ASKER].declaration
    is_shared = pages.core.authenticator.without_key(may_be_public=declaration.may_be_public) is not None
    encoding = _encoding(request, source.encodings)
    for _ in range(ATTEMPTS_MAX):
        served, of = await source.read(is_positioned=is_positioned)
        headers = document_headers(served, is_shared=is_shared and not source.is_private)
        if is_match(condition(request), served.head.etag):
            return _not_modified(source.name, headers)
        body = await source.payload(of, encoding)
        if body is not None:
            return _sent(source.name, headers, body, encoding)
    raise OvertakenError


def document_headers(served: Served, *, is_shared: bool) -> dict[str, str]:
    """Return the headers of a document, the same with a body and without."""
    headers = version_headers(served.head, CACHE_PUBLIC if is_shared else CACHE_PRIVATE)
    if is_shared:
        stale_seconds = min(served.stale_left_seconds, served.options.stale_while_revalidate_seconds)
        headers["CDN-Cache-Control"] = (
            f"public, max-age=0, stale-while-revalidate={stale_seconds}, stale-if-error={stale_seconds}"
        )
    headers["Vary"] = VARY
    headers["Age"] = str(served.age_seconds)
    if served.freshness is not Freshness.FRESH:
        headers["X-Stale"] = "true"
    return headers


def _encoding(request: Request, available: Sequence[Encoding]) -> Encoding:
    fields = request.headers.getlist("accept-encoding")
    encoding = negotiate(", ".join(fields) if fields else None, available)
    if encoding is None:
        raise NotAcceptableError(headers={"Vary": "Accept-Encoding"})
    return encoding


def _not_modified(kind: str, headers: dict[str, str]) -> Response:
    CONDITIONAL_GETS.labels(kind, "not_modified").inc()
    return Response(status_code=int(HTTPStatus.NOT_MODIFIED), headers=headers)


def _sent(kind: str, headers: dict[str, str], body: bytes, encoding: Encoding) -> Response:
    CONDITIONAL_GETS.labels(kind, "sent").inc()
    if encoding != "identity":
        headers["Content-Encoding"] = encoding
    return Response(body, headers=headers, media_type=JSON)
