"""Checks every answer of an integration test against the OpenAPI document of the API that sent it.

Invariant: a status that its operation does not name fails the test, and so does JSON that differs from the document, or has an
unknown member. Paths outside the document are ignored.
"""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx2
import jsonschema_rs
import orjson

from highwater.api.app import create_app
from highwater.streams.settings import read_settings

_JSON, _PROBLEM = "application/json", "application/problem+json"
# An unforeseen answer is in no document; a test that provokes one declares it.
_UNFORESEEN = HTTPStatus.INTERNAL_SERVER_ERROR


class UndocumentedError(AssertionError):
    """An answer is not as the OpenAPI document says. Declare it with its route, or correct the route."""


class _Operation(NamedTuple):
    path: str
    pattern: re.Pattern[str]
    methods: dict[str, Any]


class DocumentedAnswers:
    """The documented answers of the operations; the validator of a schema is created on demand."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self._closed = {name: _closed(schema) for name, schema in self._schemas.items()}
        self._operations = [
            _Operation(path, _pattern(path), methods)
            # A literal path is meant before one with a parameter.
            for path, methods in sorted(document["paths"].items(), key=lambda item: (item[0].count("{"), item[0]))
        ]
        self._validators: dict[bytes, jsonschema_rs.Validator] = {}

    def check(self, method: str, path: str, status: int, content_type: str, body: bytes) -> None:
        """Check one answer; `path` as it was sent.

        Raises:
            UndocumentedError: it is not as the document says.
        """
        operation = next((one for one in self._operations if one.pattern.fullmatch(path)), None)
        if operation is None or method.lower() not in operation.methods or status == _UNFORESEEN:
            return
        name = f"{method} {operation.path}: {status}"
        answers = operation.methods[method.lower()]["responses"]
        if str(status) not in answers:
            raise UndocumentedError(f"{name} is not in the document; it names {', '.join(sorted(answers))}")
        kind = content_type.partition(";")[0]
        if kind not in (_JSON, _PROBLEM) or not body:
            return
        content = answers[str(status)].get("content", {}).get(kind)
        if content is None:
            raise UndocumentedError(f"{name} has no {kind} in the document")
        where = (method, operation.path, str(status))
        if where not in self._validators:
            self._validators[where] = self._validator(content["schema"], is_closed=kind == _JSON)
        faults = [
            f"{one.instance_path}: {one.message}" for one in self._validators[where].iter_errors(orjson.loads(body))
        ]
        if faults:
            raise UndocumentedError(f"{name} differs from the document: {'; '.join(faults)[:2_000]}\n{body[:2_000]!r}")

    def _validator(self, schema: dict[str, Any], *, is_closed: bool) -> jsonschema_rs.Validator:
        found = self._validators.get(name := orjson.dumps([schema, is_closed]))
        if found is None:
            schemas = self._closed if is_closed else self._schemas
            whole = {**(_closed(schema) if is_closed else schema), "components": {"schemas": schemas}}
            found = self._validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        return found


def _pattern(path: str) -> re.Pattern[str]:
    """The paths of an operation, as they are sent: an id is one segment, a position has slashes."""
    return re.compile(
        re.sub(r"\\{([^}]*)\\}", lambda part: ".+" if part[1] == "position" else "[^/]+", re.escape(path))
    )


def _closed(schema: Any) -> Any:
    """A schema whose objects have no members beside those that it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


@cache
def documented_answers() -> DocumentedAnswers:
    """The answers of the product; the document is the same with any settings."""
    return DocumentedAnswers(create_app(read_settings({})).openapi())


async def check_answer(response: httpx2.Response) -> None:
    """Check an answer that a client got; a hook of `httpx2.AsyncClient`. Only JSON is read, so that a stream stays one."""
    _check(response, await response.aread() if _is_json(response) else b"")


def check_answer_now(response: httpx2.Response) -> None:
    """The same, as a hook of `httpx2.Client`."""
    _check(response, response.read() if _is_json(response) else b"")


def _is_json(response: httpx2.Response) -> bool:
    return _kind(response) in (_JSON, _PROBLEM)


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0]


def _check(response: httpx2.Response, body: bytes) -> None:
    request = response.request
    path = request.url.raw_path.partition(b"?")[0].decode()
    documented_answers().check(request.method, path, response.status_code, _kind(response), body)
