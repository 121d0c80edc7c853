"""The OpenAPI document is fit for generated clients: ids and names that say what they are, every problem with a page."""

from __future__ import annotations

import re
from collections import Counter
from http import HTTPStatus
from typing import Any

import httpx2
import orjson
import pytest

from highwater.api.app import create_app
from highwater.api.core.docs import page_of
from highwater.api.core.errors import ProblemError
from highwater.api.core.problems import BY_NAME, KINDS, PREFIX, kind_of
from highwater.api.core.refused_connections import refusal_of
from highwater.streams.settings import read_settings

METHODS = ("get", "put", "post", "delete")


@pytest.fixture(scope="module")
def application() -> Any:
    """The application as it is served."""
    return create_app(read_settings({}))


def test_operation_ids_are_the_names_of_functions(application: Any) -> None:
    """Each once, without the path, so that a generated client has `get_feed` and keeps it."""
    found = [item[method]["operationId"] for item in application.openapi()["paths"].values() for method in item]
    assert [name for name, times in Counter(found).items() if times > 1] == []
    assert [name for name in found if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name) or "_api_" in name] == []


def test_schemas_have_names_of_the_domain(application: Any) -> None:
    """No two models share one, which FastAPI would tell apart by the paths of their modules."""
    assert [name for name in application.openapi()["components"]["schemas"] if "__" in name] == []


# Media types of answers that are no JSON, and why a client has no type for them.
JSON = {"application/json", "application/feed+json"}
NOT_JSON = {
    "text/event-stream": "events, until the client leaves",
    "application/x-ndjson": "lines of JSON, as they are found",
    "application/atom+xml": "a feed, RFC 4287",
    "text/csv; charset=utf-8": "a file",
    "application/vnd.apache.parquet": "a file",
    "application/octet-stream": "a document as it was put",
    "*/*": "a document as it was put",
    "text/plain": "the format of Prometheus",
}


def test_every_answer_has_a_schema_with_a_name(application: Any) -> None:
    """Each JSON answer has one, so that a generated client knows its members; each other media type is listed with the reason."""
    document = application.openapi()
    untyped = []
    for path, item in document["paths"].items():
        for operation in (item[method] for method in METHODS if method in item):
            answers = {status: one for status, one in operation["responses"].items() if status < "300"}
            assert answers, path
            for status, one in answers.items():
                for kind, content in one.get("content", {"nothing": {}}).items():
                    schema = content.get("schema", {})
                    is_named = all("$ref" in part for part in schema.get("anyOf", [schema]))
                    if kind not in NOT_JSON and not (kind in JSON and is_named) and status != "204":
                        untyped.append(f"{operation['operationId']} {status} {kind}: {schema}")
    assert untyped == []


def test_every_schema_is_whole(application: Any) -> None:
    """Every reference leads to a schema, every schema is referred to, and every object says which members it has."""
    document = application.openapi()
    schemas = document["components"]["schemas"]
    named = re.findall(r"#/components/schemas/(\w+)", orjson.dumps(document).decode())
    assert set(named) == set(schemas)
    open_objects = [
        name
        for name, schema in schemas.items()
        if schema.get("type") == "object" and not schema.get("properties") and "additionalProperties" not in schema
    ]
    assert open_objects == []


def test_what_an_operation_asks_for_is_a_scheme(application: Any) -> None:
    """Each operation names schemes of the document, or is for everybody; none is named that no operation takes."""
    document = application.openapi()
    schemes = set(document["components"]["securitySchemes"])
    asked, public = set(), set()
    for path, item in document["paths"].items():
        for operation in (item[method] for method in METHODS if method in item):
            names = {name for one in operation.get("security", ()) for name in one}
            asked |= names
            if not names:
                public.add(path)
    assert asked == schemes
    assert public == {"/healthz", "/readyz", "/metrics", "/api/shared/{token}"}


def test_the_page_shows_the_examples(application: Any) -> None:
    """As they are sent: the method, the path with its parts, and the body."""
    page = page_of(application.openapi())
    assert "PUT /api/users/ada/subscriptions\n{" in page
    assert "GET /api/insights/kafka/kafka%231\n" in page
    assert "GET /api/chunks/search?ns=docs&amp;q=read+the+log\n" in page


def test_every_error_that_is_documented_has_a_kind(application: Any) -> None:
    """A status that an operation names stands for one kind, with that status."""
    document = application.openapi()
    statuses = {
        int(status)
        for item in document["paths"].values()
        for method in METHODS
        for status in item.get(method, {}).get("responses", {})
        if status >= "400"
    }
    assert {status for status in statuses if kind_of(status).status != status} == set()
    assert len(BY_NAME) == len(KINDS)
    assert document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"] == [kind.type for kind in KINDS]


def test_every_error_of_the_code_has_a_kind() -> None:
    """Also one that no operation names."""
    left, found = [ProblemError], set()
    while left:
        one = left.pop()
        left += one.__subclasses__()
        found.add(one.status)
    assert {status for status in found if kind_of(status).status != status} == set()
    assert kind_of(HTTPStatus.IM_A_TEAPOT).name == "bad-request"
    assert kind_of(HTTPStatus.BAD_GATEWAY).name == "internal-error"


async def test_the_type_of_a_problem_leads_to_its_page(application: Any) -> None:
    """Relative to the API that sent it; the page says what to do."""
    transport = httpx2.ASGITransport(app=application, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        refused = (await http.get(f"{PREFIX}no-such")).json()
        assert refused["type"] == "/problems/not-found"
        page = await http.get(refused["type"])
        assert page.status_code == HTTPStatus.OK
        assert "Check the ids" in page.text
        listed = (await http.get("/problems")).text
        for kind in KINDS:
            assert kind.type in listed
            assert (await http.get(kind.type)).status_code == HTTPStatus.OK


def test_a_connection_that_is_refused_is_told_the_type() -> None:
    """Before there is an application."""
    assert b'"type":"/problems/request-timeout"' in refusal_of(HTTPStatus.REQUEST_TIMEOUT)


async def test_a_wrong_address_is_a_page_for_a_browser_and_a_problem_for_a_program(application: Any) -> None:
    """The page shows where to continue; a route of the API is a problem for both."""
    transport = httpx2.ASGITransport(app=application, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        html = {"Accept": "text/html,application/xhtml+xml"}
        page = await http.get("/no<such", headers=html)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "/no&lt;such" in page.text
        assert 'href="/"' in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for path, headers in (("/no", {}), ("/api/no", html)):
            assert (await http.get(path, headers=headers)).headers["content-type"] == "application/problem+json"
