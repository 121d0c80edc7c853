"""How a document is served: read again if it was overtaken, pending, stale, and with which cache headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from highwater.api.app import create_app
from highwater.api.core.auth import Authenticator, Principal, parse_api_keys
from highwater.api.pages.documents import ATTEMPTS_MAX, document_headers
from highwater.connectors.pages.reads import DocumentPendingError, Served
from highwater.connectors.redis.resource_cache import Head
from highwater.schemas.errors import UnavailableError
from highwater.streams.pages.kinds import CacheOptions, Resource
from highwater.streams.pages.refresh import Freshness
from highwater.streams.settings import read_settings

OPTIONS = CacheOptions(30, 120, 10)


def _served(version: int = 7, freshness: Freshness = Freshness.FRESH, left_seconds: int = 140) -> Served:
    head = Head(version, f"ads-{version}", "league.ad-changed/1/22", 0)
    return Served(head, freshness, OPTIONS, 3, left_seconds)


class _Documents:
    """One document; each requested payload meets the next of `overtaken`."""

    def __init__(self) -> None:
        self.served: Served | Exception = _served()
        self.overtaken = 0
        self.positioned: list[bool] = []
        self.payloads: list[tuple[int, str]] = []

    async def read(self, found: Resource, *, is_positioned: bool = False) -> Served:
        self.positioned.append(is_positioned)
        if isinstance(self.served, Exception):
            raise self.served
        return self.served

    async def payload(self, found: Resource, head: Head, encoding: str) -> bytes | None:
        self.payloads.append((head.version, encoding))
        if self.overtaken:
            self.overtaken -= 1
            self.served = _served(head.version + 1)
            return None
        return b'{"version":%d}' % head.version


async def _no_session(_session_id: str) -> Principal | None:
    return None


class _Api:
    """An application over it."""

    def __init__(self, keys: str | None = None) -> None:
        self.documents = _Documents()
        self.is_positioned = False
        app = create_app(read_settings({}))
        services = SimpleNamespace(
            authenticator=Authenticator(parse_api_keys(keys), _no_session),
            activity=SimpleNamespace(note=lambda _principal: None),
            fresh=self._fresh,
            security=SimpleNamespace(ended=lambda _scope, _status: None),
        )
        app.state.services, app.state.pages = services, SimpleNamespace(core=services, documents=self.documents)
        transport = httpx2.ASGITransport(app)
        self.http = httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers={"Accept-Encoding": "gzip"}
        )

    async def _fresh(self, *_: Any) -> bool:
        return self.is_positioned


async def test_an_overtaken_version_is_read_again() -> None:
    """The body is of the version in the headers, with any change between head and payload."""
    api = _Api()
    api.documents.overtaken = ATTEMPTS_MAX - 1
    async with api.http as http:
        request = http.build_request("GET", "/api/ads")
        response = await http.send(request, stream=True)
        body = b"".join([part async for part in response.aiter_raw()])
    version = 7 + ATTEMPTS_MAX - 1
    assert (response.headers["x-resource-version"], body) == (str(version), b'{"version":%d}' % version)
    assert api.documents.payloads == [(number, "gzip") for number in range(7, version + 1)]


async def test_one_that_is_always_overtaken_is_503() -> None:
    """The number of attempts is bounded, and the client gets a time for its retry."""
    api = _Api()
    api.documents.overtaken = ATTEMPTS_MAX
    async with api.http as http:
        response = await http.get("/api/ads")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_a_condition_is_looked_at_anew_after_each_attempt() -> None:
    """A client that already has the intermediate version gets 304, and no payload is read for it."""
    api = _Api()
    api.documents.overtaken = 1
    async with api.http as http:
        response = await http.get("/api/ads", headers={"If-None-Match": 'W/"ads-8"'})
        assert (response.status_code, response.headers["etag"]) == (304, 'W/"ads-8"')
        api.documents.payloads.clear()
        assert (await http.get("/api/ads", headers={"If-None-Match": "*"})).status_code == 304
    assert api.documents.payloads == []


async def test_what_is_being_made_is_202_and_nobody_keeps_it() -> None:
    """It has a short body, a retry time and no ETag, also for a client that has a version."""
    api = _Api()
    api.documents.served = DocumentPendingError()
    async with api.http as http:
        for headers in ({}, {"If-None-Match": "*"}):
            response = await http.get("/api/ads", headers=headers)
            assert response.status_code == 202
            assert response.json()["status"] == "pending"
            assert (response.headers["retry-after"], response.headers["cache-control"]) == ("1", "no-store")
            assert "etag" not in response.headers


async def test_when_nothing_known_is_good_enough_it_is_503() -> None:
    """Past its stale life a document is not served, also not as a 304."""
    api = _Api()
    api.documents.served = UnavailableError("PostgreSQL is away")
    async with api.http as http:
        response = await http.get("/api/ads", headers={"If-None-Match": 'W/"ads-7"'})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("is_positioned", [False, True])
async def test_a_read_with_a_position_says_so(is_positioned: bool) -> None:
    """The awaited state is built from the facts."""
    api = _Api()
    api.is_positioned = is_positioned
    async with api.http as http:
        await http.get("/api/ads", headers={"If-None-Match": "*"})
    assert api.documents.positioned == [is_positioned]


@pytest.mark.parametrize("freshness", [Freshness.STALE, Freshness.KEPT])
async def test_staleness_is_said_in_a_header(freshness: Freshness) -> None:
    """On the 200 and on the 304; a cache may use the rest of the stale TTL."""
    api = _Api()
    api.documents.served = _served(freshness=freshness, left_seconds=17)
    async with api.http as http:
        for headers, status in (({"Accept-Encoding": "identity"}, 200), ({"If-None-Match": "*"}, 304)):
            response = await http.get("/api/ads", headers=headers)
            assert (response.status_code, response.headers["x-stale"], response.headers["age"]) == (status, "true", "3")
            expected = "public, max-age=0, stale-while-revalidate=17, stale-if-error=17"
            assert response.headers["cdn-cache-control"] == expected
            assert response.headers["cache-control"] == "no-cache"


def test_a_cache_serves_an_old_page_no_longer_than_its_stale_life() -> None:
    """A page that is good for a week more is not one that may be served old for a week."""
    headers = document_headers(_served(left_seconds=604_800), is_shared=True)
    assert headers["CDN-Cache-Control"] == "public, max-age=0, stale-while-revalidate=120, stale-if-error=120"
    private = document_headers(_served(), is_shared=False)
    assert (private["Cache-Control"], private.get("CDN-Cache-Control")) == ("private, no-cache", None)


async def test_with_keys_no_shared_cache_keeps_a_page() -> None:
    """The cache would serve it to a client without a key."""
    api = _Api("viewer:eye")
    async with api.http as http:
        headers = {"Authorization": "Bearer eye", "Accept-Encoding": "identity"}
        assert (await http.get("/api/ads", headers=headers)).headers["cache-control"].startswith("private, ")
