"""Every error of the API as RFC 9457 `application/problem+json`; a browser at a wrong address gets a page instead.

The status follows the class of the error: a retriable error is a 503 with `Retry-After`, an invalid event a 422 that
names the field, and an unexpected error a 500 that reveals nothing internal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.routing import Match

from highwater.api.core.plain_pages import HEADERS, not_found_page
from highwater.api.core.problems import INVALID_EVENT, PROBLEM_TYPE, ProblemKind, document_of, kind_of
from highwater.connectors.pages.reads import DocumentPendingError, NoSuchDocumentError
from highwater.schemas.errors import HighwaterError, InvalidEventError
from highwater.streams.telemetry import get_log

# Default of `Retry-After` when the error gives no time.
RETRY_AFTER_MS_DEFAULT = 1000

# A session id is in the path of the request that ends it, the token of a public link in that of its page.
_TOKEN = re.compile("(hw[a-z]_)[^/]+")
_log = get_log("api")


class ProblemError(HighwaterError):
    """The request cannot be served as it is. Read `detail` and change it."""

    status = HTTPStatus.BAD_REQUEST
    kind: ProblemKind | None = None  # None: the general one of the status

    def __init__(self, message: str | None = None, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})
        self.members = members


class BadRequestError(ProblemError):
    """The request is malformed. Correct it."""


class UnauthorizedError(ProblemError):
    """The request needs a valid API key or session in `Authorization: Bearer`. Send one."""

    status = HTTPStatus.UNAUTHORIZED


class PaymentRequiredError(ProblemError):
    """The organization has reached a limit of its plan. `limit` names what is used up; change the plan."""

    status = HTTPStatus.PAYMENT_REQUIRED


class ForbiddenError(ProblemError):
    """The key's role or user does not allow this. Use another key."""

    status = HTTPStatus.FORBIDDEN


class NotFoundError(ProblemError):
    """There is no such resource. Check the identifiers."""

    status = HTTPStatus.NOT_FOUND


class NotAcceptableError(ProblemError):
    """The client accepts none of the available content codings. Allow `identity`, `gzip` or `br` in `Accept-Encoding`."""

    status = HTTPStatus.NOT_ACCEPTABLE


class ConflictError(ProblemError):
    """The request conflicts with the state of the resource. Read `detail`, and the resource."""

    status = HTTPStatus.CONFLICT


class GoneError(ProblemError):
    """The resource was retracted. Nothing to do."""

    status = HTTPStatus.GONE


class TooLargeError(ProblemError):
    """The request body is larger than the API accepts. Send it in parts."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnprocessableError(ProblemError):
    """The content breaks a rule. `field` names it."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class TooManyRequestsError(ProblemError):
    """Too many requests from this address. Wait as long as `Retry-After` says."""

    status = HTTPStatus.TOO_MANY_REQUESTS


def problem(
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
    kind: ProblemKind | None = None,
) -> Response:
    """Return the response of one problem; `members` are RFC 9457 extension members. Without a kind, the kind of the
    status applies.
    """
    document = {**document_of(kind or kind_of(status), status, detail), **(members or {})}
    answer = {"Cache-Control": "no-store", **(headers or {})}
    return Response(orjson.dumps(document), int(status), answer, media_type=PROBLEM_TYPE)


def problem_of(error: HighwaterError) -> Response:
    """Return the response for one of our errors."""
    if isinstance(error, ProblemError):
        return problem(error.status, str(error), headers=error.headers, members=error.members, kind=error.kind)
    if isinstance(error, InvalidEventError):
        members = {"reason": error.reason} | ({"field": error.field} if error.field else {})
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), members=members, kind=INVALID_EVENT)
    if isinstance(error, NoSuchDocumentError):
        return problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, DocumentPendingError):
        return _pending(error)
    members = getattr(error, "members", {})
    if error.retriable:
        headers = {"Retry-After": str(_retry_after_seconds(error))}
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers=headers, members=members)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), members=members)


def _retry_after_seconds(error: HighwaterError) -> int:
    return max(1, math.ceil((error.retry_after_ms or RETRY_AFTER_MS_DEFAULT) / 1000))


def _pending(error: HighwaterError) -> Response:
    """Return a 202: the resource is being built (R4.29). It has no ETag and is not cached, since it represents no
    version.
    """
    headers = {"Cache-Control": "no-store", "Retry-After": str(_retry_after_seconds(error))}
    document = {"status": "pending", "detail": str(error)}
    return Response(orjson.dumps(document), int(HTTPStatus.ACCEPTED), headers, media_type="application/json")


def _field_of(location: Sequence[Any]) -> str:
    """`body.channels.3` -> `channels.3`: the location in the request, without the part that names body or query."""
    return ".".join(str(part) for part in location[1:]) or str(location[0] if location else "")


async def _on_highwater_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HighwaterError)
    return problem_of(error)


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{"field": _field_of(fault["loc"]), "detail": fault["msg"]} for fault in error.errors()]
    first = faults[0] if faults else {"field": "", "detail": "the request is not valid"}
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{first['field']}: {first['detail']}",
        members={"field": first["field"], "errors": faults},
    )


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND and _is_for_a_person(request):
        return HTMLResponse(not_found_page(unquote(request.url.path)), error.status_code, HEADERS)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods_at(request)))
    return problem(error.status_code, str(error.detail), headers=headers)


def _is_for_a_person(request: Request) -> bool:
    """Return whether a browser shows the answer to a person: it accepts HTML, and the path is not a route of the API."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")


def _methods_at(request: Request) -> set[str]:
    """Return the methods of every route at this path: each route knows only its own (RFC 9110, section 15.5.6)."""
    found: set[str] = set()
    for context in iter_route_contexts(request.app.router.routes):
        methods = getattr(context.original_route, "methods", None)
        if methods and context.original_route.matches(dict(request.scope))[0] is not Match.NONE:
            found |= methods
    return found | {"HEAD"} if "GET" in found else found


def path_without_tokens(path: str) -> str:
    """Return a path for a log: a session and a public link in it work like a key."""
    return _TOKEN.sub(r"\1…", path)


async def _on_unforeseen(request: Request, error: Exception) -> Response:
    # The server also logs the traceback; here it is linked to the request.
    _log.error("request failed", path=path_without_tokens(request.url.path), method=request.method, error=repr(error))
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an unforeseen error; it is in the log of the API")


def install(app: FastAPI) -> None:
    """Register handlers that turn every error into a problem."""
    app.add_exception_handler(HighwaterError, _on_highwater_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unforeseen)
