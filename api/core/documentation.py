"""Adds to the OpenAPI document what applies to every route: the refusals of the entrance and of the connection.

Invariant: every status that any request may receive is in the document, with its form.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from highwater.api.core.problems import KINDS, PROBLEM_TYPE

_PROBLEM = "Problem"
_SCHEMA = {
    "title": _PROBLEM,
    "description": "RFC 9457; members beside these depend on the problem.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri-reference",
            "enum": [kind.type for kind in KINDS],
            "description": "The kind of problem. The API has a page at this path that explains what to do.",
        },
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, in one sentence."},
        "field": {"type": "string", "description": "422: the invalid field of the request."},
        "errors": {
            "type": "array",
            "description": "422: every invalid field.",
            "items": {"type": "object", "properties": {"field": {"type": "string"}, "detail": {"type": "string"}}},
        },
        "line": {"type": "integer", "description": "422: the line number of an invalid NDJSON line."},
        "reason": {"type": "string", "description": "422: a short name of the rule, for programs."},
        "limit": {"type": "string", "description": "402, 403: the limit of the plan that is reached."},
        "violated-policies": {
            "type": "array",
            "description": "429: the limits of `RateLimit-Policy` that are reached.",
            "items": {"type": "string"},
        },
        "not_ready": {
            "type": "array",
            "description": "503 of /readyz: the unavailable services.",
            "items": {"type": "string"},
        },
        "degraded": {"type": "object", "description": "503 of /readyz: what works only partly."},
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
_WRITES: dict[int, str] = {
    HTTPStatus.FORBIDDEN: "The request comes from a page of another site, or the key lacks permission."
}
_BODIES: dict[int, str] = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is larger than the API accepts.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The route does not accept this media type or `Content-Encoding`.",
}
_SAFE = ("get", "head", "options")
_METHODS = (*_SAFE, "post", "put", "patch", "delete")


def add_problem(document: dict[str, Any]) -> None:
    """Add the form of every error."""
    document.setdefault("components", {}).setdefault("schemas", {}).setdefault(_PROBLEM, _SCHEMA)


def add_refusals(document: dict[str, Any]) -> None:
    """Add to each operation the refusals that it does not declare."""
    add_problem(document)
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
                operation.setdefault("responses", {}).setdefault(str(int(status)), problem_response(told))


def problem_response(description: str) -> dict[str, Any]:
    """Return the OpenAPI response of a problem."""
    return {
        "description": description,
        "content": {PROBLEM_TYPE: {"schema": {"$ref": f"#/components/schemas/{_PROBLEM}"}}},
    }
