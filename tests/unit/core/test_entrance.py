"""The entrance: which requests are refused before routing, and the headers of every answer."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from highwater.api.app import create_app
from highwater.api.core.policies import NAMES
from highwater.streams.settings import read_settings

EVENTS = "/api/events/feeds.user-erased"
JSON = {"Content-Type": "application/json"}
FOREIGN = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@functools.cache
def application(**named: str) -> Any:
    """An application with these settings, without services; it is made once, since it keeps nothing of a request."""
    return create_app(read_settings(named))


def client(*, keys: str | None = None, url: str = "http://127.0.0.1:8080", **named: str) -> httpx2.AsyncClient:
    """A client of an application without services: every admitted request fails there."""
    settings = {**named, **({"HIGHWATER_API_KEYS": keys} if keys else {})}
    transport = httpx2.ASGITransport(application(**settings), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=url)


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """An API without keys."""
    async with client() as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("POST", EVENTS, {"Content-Type": "text/plain", **FOREIGN}, 403),
        ("POST", EVENTS, {**JSON, **FOREIGN}, 403),
        ("POST", EVENTS, {**JSON, "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", EVENTS, {**JSON, "Origin": "null"}, 403),
        ("DELETE", "/api/users/ada/data", FOREIGN, 403),
        ("PUT", "/api/users/ada/plan", {**JSON, **FOREIGN}, 403),
        ("POST", EVENTS, {"Content-Type": "text/plain"}, 415),
        ("POST", EVENTS, {}, 415),
        ("POST", EVENTS, {**JSON, "Content-Encoding": "gzip"}, 415),
        ("GET", "/healthz", {"Host": "evil.example"}, 421),
        ("POST", EVENTS, {**JSON, "Host": "evil.example:8080"}, 421),
        ("GET", "/healthz", FOREIGN, 200),
        ("GET", "/healthz?full=1", FOREIGN, 403),
        ("GET", "/sql/export", IMAGE, 403),
        ("GET", "/browse/export?topic=x", LINK, 403),
        ("GET", "/api/records/feeds.insight-ingested", IMAGE, 403),
        ("HEAD", "/api/records/feeds.insight-ingested", IMAGE, 403),
        ("GET", "/api/nothing", LINK, 403),
        ("GET", "/nothing?query=SELECT+1&run=1", IMAGE, 403),
        ("GET", "/healthz?full=1", LINK, 200),
        ("GET", "/api/nothing", {"Sec-Fetch-Site": "same-site"}, 404),
    ],
)
async def test_what_a_page_of_another_site_may_not(
    http: httpx2.AsyncClient, method: str, path: str, headers: dict[str, str], expected: int
):
    """Neither erase users of an open API nor read them by a name of its own; a refusal is a problem, as every error is."""
    answer = await http.request(method, path, headers=headers, content=b"{}" if method not in ("GET", "HEAD") else None)
    assert answer.status_code == expected
    if expected != 200 and method != "HEAD":
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({**JSON, **FOREIGN}, False),
        ({**JSON, **FOREIGN, "Cookie": "highwater_dashboard=x"}, True),
        ({**JSON, **FOREIGN, "Cookie": "highwater_dashboard=x", "Authorization": "Bearer guess"}, False),
    ],
)
async def test_with_keys_a_key_decides_and_a_cookie_never(headers: dict[str, str], expected: bool):
    """A page that sends a key is judged by it; one that comes with a cookie alone has to be ours."""
    async with client(keys="admin:root") as guarded:
        answer = await guarded.post("/api/nothing", headers=headers, content=b"{}")
        assert answer.status_code == (403 if expected else 404)
        assert (await guarded.get("/healthz", headers={"Host": "hw.example"})).status_code == 200


async def test_a_page_of_another_site_reads_with_a_key_of_its_own():
    """The key decides; a download with the visitor's cookie is refused."""
    async with client(keys="admin:root") as guarded:
        assert (await guarded.get("/api/nothing", headers={**FOREIGN, "Authorization": "Bearer x"})).status_code == 404
        assert (await guarded.get("/sql/export", headers=LINK)).status_code == 403


@pytest.mark.parametrize(
    ("hosts", "version", "expected"),
    [(1, "1.1", 200), (0, "1.1", 400), (2, "1.1", 400), (2, "1.0", 400), (0, "1.0", 200)],
)
async def test_a_request_names_its_host_once(hosts: int, version: str, expected: int):
    """Else a proxy and the API may take it for requests of two hosts (RFC 9112, section 3.2)."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    fields = [(b"host", b"127.0.0.1")] * hosts
    scope = {"type": "http", "method": "GET", "path": "/healthz", "raw_path": b"/healthz", "query_string": b"",
             "scheme": "http", "root_path": "", "client": ("127.0.0.1", 1), "headers": fields,
             "http_version": version}  # fmt: skip
    await application()(scope, receive, send)
    assert sent[0]["status"] == expected


async def test_a_page_of_another_site_signs_nobody_in():
    """Else a browser would work under the key of an attacker."""
    async with client(keys="admin:root") as guarded:
        answer = await guarded.post("/login", data={"key": "root"}, headers=FOREIGN)
    assert answer.status_code == 403


async def test_an_allowed_origin_reads_and_writes():
    """Its preflight names what it may send; others get no word that they may."""
    async with client(HIGHWATER_ALLOWED_ORIGINS="https://app.example") as http:
        asked = {
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "authorization,x-min-position",
        }
        preflight = await http.options(EVENTS, headers={"Origin": "https://app.example", **asked})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "PUT" in preflight.headers["access-control-allow-methods"]
        assert (await http.get("/api/nothing", headers={**FOREIGN, "Origin": "https://app.example"})).status_code == 404
        answer = await http.get("/healthz", headers={"Origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "X-Resource-Version" in answer.headers["access-control-expose-headers"]
        for headers in (FOREIGN, {**FOREIGN, **asked}):
            other = await http.options(EVENTS, headers=headers)
            assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/docs", "/openapi.json", "/login", "/metrics"])
async def test_every_answer_carries_the_policies(http: httpx2.AsyncClient, path: str):
    """Pages, files and errors all have them; framing, type guessing and referrers are forbidden."""
    answer = await http.get(path)
    assert {name.decode() for name in NAMES} - set(answer.headers) == {"strict-transport-security"}
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert len(answer.headers.get_list("content-security-policy")) == 1
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("url", "named", "headers", "expected"),
    [
        ("https://hw.example", {}, {}, True),
        ("http://hw.example", {}, {}, False),
        ("http://hw.example", {}, {"X-Forwarded-Proto": "https"}, False),
        ("http://hw.example", {"HIGHWATER_TRUSTED_PROXIES": "127.0.0.1"}, {"X-Forwarded-Proto": "https"}, True),
        ("https://localhost", {}, {}, False),  # a network in which every port belongs to other programs
    ],
)
async def test_who_came_encrypted_comes_so_again(
    url: str, named: dict[str, str], headers: dict[str, str], expected: bool
):
    """HSTS and `Secure` cookies over https, as the connection or a trusted proxy says."""
    async with client(keys="admin:root", url=url, **named) as http:
        answer = await http.get("/healthz", headers=headers)
    assert ("strict-transport-security" in answer.headers) == expected


async def test_docs_load_nothing():
    """The page of the API is complete in itself: no script, no address of another site."""
    async with client() as http:
        text = (await http.get("/docs")).text
        document = (await http.get("/openapi.json")).json()
    # An address in an example is text.
    assert not re.search(r"<script|src=|https?://(?!www\.rfc-editor\.org|example\.org)", text)
    assert all(path in text for path in ("/api/query", "/api/events/{topic}", "/readyz"))
    operation = document["paths"]["/api/events/{topic}"]["post"]["responses"]
    assert {"400", "403", "408", "413", "415", "421", "429", "431", "503"} <= set(operation)
    assert "415" not in document["paths"]["/healthz"]["get"]["responses"]
