"""What the OpenAPI document says of every route alike: the refusals of the entrance and of the connection.

Law: a status that any request may be answered with is in the document, with the form that it has.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from highwater.api.core.errors import PROBLEM_TYPE

_PROBLEM = "Problem"
_SCHEMA = {
    "title": _PROBLEM,
    "description": "RFC 9457; members beside these depend on the problem.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_ANY: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "The request is malformed.",
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive in time.",
    HTTPStatus.MISDIRECTED_REQUEST: "Without API keys: `Host` is not a loopback name.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many connections, requests or wrong keys; `Retry-After` says when to try again.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The fields of the request are larger than 64 KiB.",
    HTTPStatus.SERVICE_UNAVAILABLE: "A service is unavailable, or there are too many connections.",
}
_WRITES: dict[int, str] = {HTTPStatus.FORBIDDEN: "A page of another site asks, or the key may not do this."}
_BODIES: dict[int, str] = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is larger than the API takes.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body has another media type than this route takes, or a `Content-Encoding`.",
}
_SAFE = ("get", "head", "options")
_METHODS = (*_SAFE, "post", "put", "patch", "delete")


def describe_refusals(app: FastAPI) -> None:
    """Have the application's document name them."""
    make = app.openapi

    def described() -> dict[str, Any]:
        is_made = app.openapi_schema is not None
        document = make()
        if not is_made:
            add_refusals(document)
        return document

    app.openapi = described  # type: ignore[method-assign] # as FastAPI's documentation extends it


def add_refusals(document: dict[str, Any]) -> None:
    """Add to each operation what it does not say itself."""
    document.setdefault("components", {}).setdefault("schemas", {}).setdefault(_PROBLEM, _SCHEMA)
    for path in document["paths"].values():
        for method, operation in path.items():
            if method not in _METHODS:
                continue
            wanted = dict(_ANY)
            if method not in _SAFE:
                wanted |= _WRITES
            if "requestBody" in operation:
                wanted |= _BODIES
            for status, told in wanted.items():
                operation.setdefault("responses", {}).setdefault(str(int(status)), _response(told))


def _response(told: str) -> dict[str, Any]:
    return {
        "description": told,
        "content": {PROBLEM_TYPE: {"schema": {"$ref": f"#/components/schemas/{_PROBLEM}"}}},
    }
