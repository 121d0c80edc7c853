"""Adds ids, reads and problems to the OpenAPI document that FastAPI derives from the routes.

Invariant. A request that the document calls valid is refused only for reasons that no schema can express (for example
the cursor of another list), and every status and media type of an answer is in the document. `documentation.py` adds
refusals that happen before routing; tests/integration/core/test_openapi_conformance.py compares all of it with a
running API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi.routing import APIRoute
from pydantic import Field

from highwater.api.core.errors import ProblemError
from highwater.api.core.problems import PROBLEM_TYPE

_PROBLEM: Mapping[str, Any] = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_METHODS = ("get", "put", "post", "delete")
# The rule of `checks.check_id`, except for the length, which counts bytes and not characters.
_ID: Mapping[str, Any] = {
    "minLength": 1,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\xa0][^\x00-\x1f\x7f-\x9f]*$",
}
_CHANNEL_PATTERN = r"^[^\x00-\x1f\x7f-\x9f*?]*[^\x00-\x20\x7f-\xa0*?.][^\x00-\x1f\x7f-\x9f*?]*$"
_UUID: Mapping[str, Any] = {
    "format": "uuid",
    "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
}
_FORMS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("job_id", "request_id", "presentation_id", "presentation"), _UUID),
    # Of a requested rebuild.
    "position": {"pattern": r"^feeds\.rebuild-demanded/(0|[1-9][0-9]{0,5})/(0|[1-9][0-9]{0,17})$"},
    "sha256": {"pattern": "^[0-9a-f]{64}$"},
}
# Ids in queries, by name; a member of a list, or null, may stand for them.
_QUERY_FORMS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("ns", "user", "organization_id"), _ID),
    "period": {"pattern": "^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(0[1-9]|1[0-2])$"},
}
# A field of a body that is an id: `Annotated[str, ID]`. The rule itself is checked where the event is.
ID = Field(json_schema_extra=dict(_ID))
# The name of a channel, by the rule of `check_channel`.
CHANNEL = Field(json_schema_extra={"minLength": 1, "pattern": _CHANNEL_PATTERN})
# Header fields of answers, by name; those of every conditional read first.
_HEADERS: Mapping[str, str] = {
    "ETag": "Names the content; send it back in `If-None-Match`.",
    "Cache-Control": "Which caches may keep the response, and for how long.",
    "X-Resource-Version": "Version of the resource; it only grows.",
    "X-Caused-By": "`topic/partition/offset` of the event that last changed it; empty if no event has.",
    "X-Pending": "How many insights wait for the user's next rebuild.",
    "X-Stale": "`true`: a newer version is being made, or PostgreSQL is unavailable or has lost the newest one.",
    "Age": "Seconds since the content was made.",
    "Content-Digest": "SHA-256 of the content (RFC 9530).",
}
# The `responses` entries of a conditional read beside its answer.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "`If-None-Match` matches the current version."}}
_VERSIONED = ("ETag", "Cache-Control", "X-Resource-Version", "X-Caused-By")
_TYPES: Mapping[str, str] = {"X-Resource-Version": "integer", "X-Pending": "integer", "Age": "integer"}
# FastAPI's own form of a 422, which no answer uses.
_UNUSED = ("HTTPValidationError", "ValidationError")


def operation_id(route: APIRoute) -> str:
    """Return the id of a route's operation: the name of its function. Clients are generated from it, so it survives a
    change of path.
    """
    return route.name


def problems(*errors: type[ProblemError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` entries for the errors that a route raises beside those of every route."""
    return {int(error.status): _response((error.__doc__ or "").split(".")[0]) for error in errors}


def fields(*names: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` entries for the header fields that an answer may have."""
    return {200: {"headers": _fields(names)}}


def _fields(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {name: {"description": _HEADERS[name], "schema": {"type": _TYPES.get(name, "string")}} for name in names}


def stream(description: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` entries of a route that answers with server-sent events."""
    return text_of_type("text/event-stream", description)


def text_of_type(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` entries of a route that answers with text of a media type."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def add_forms(document: dict[str, Any]) -> None:
    """Add to each operation the forms of its ids, and the answers common to its kind of route."""
    for path, operation in _operations(document):
        answers = operation["responses"]
        for parameter in operation.get("parameters", ()):
            forms = (
                _FORMS.get(parameter["name"], _ID) if parameter["in"] == "path" else _QUERY_FORMS.get(parameter["name"])
            )
            for schema in (parameter["schema"], *parameter["schema"].get("anyOf", ())):
                if forms is not None and schema.get("type") == "string":
                    schema.update(forms)
        if str(int(HTTPStatus.UNPROCESSABLE_ENTITY)) in answers:
            answers["422"] = _response("The content breaks a rule; `field` names it.")
        if "{" in path:
            answers.setdefault("404", _response("There is no such resource."))
        if "304" in answers:
            answers.setdefault("406", _response("The client accepts none of the available content codings."))
            named = answers["200"].get("headers", {})
            for status in ("200", "304"):
                # The fields that a route declares itself take precedence.
                answers[status]["headers"] = dict(named) if "ETag" in named else {**_fields(_VERSIONED), **named}
    for name in _UNUSED:
        document.get("components", {}).get("schemas", {}).pop(name, None)


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in _METHODS:
                yield path, operation


def _response(description: str) -> dict[str, Any]:
    return {"description": description, "content": dict(_PROBLEM)}
