"""Responses to connections that are refused before a request reaches the application (`protocol.py`)."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from highwater.api.core.policies import PLAIN
from highwater.api.core.problems import PROBLEM_TYPE, document_of, kind_of

_DETAILS = {
    HTTPStatus.BAD_REQUEST: "the request is not HTTP/1.1",
    HTTPStatus.REQUEST_TIMEOUT: "the request did not arrive in time",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the fields of the request are too large",
    HTTPStatus.SERVICE_UNAVAILABLE: "there are too many connections",
    HTTPStatus.TOO_MANY_REQUESTS: "there are too many connections from this address",
}


def refusal_of(status: HTTPStatus) -> bytes:
    """Return the whole response, in the form of every other error; the connection closes after it."""
    body = orjson.dumps(document_of(kind_of(status), status, _DETAILS[status]))
    fields = [
        *PLAIN,
        (b"content-type", PROBLEM_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        fields.append((b"retry-after", b"5"))
    return b"".join(
        [STATUS_LINE[int(status)], *(name + b": " + value + b"\r\n" for name, value in fields), b"\r\n", body]
    )
