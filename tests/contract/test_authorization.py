"""Every route declares what it asks of its caller, and the docs and OpenAPI say the same."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from highwater.api.app import create_app
from highwater.api.cli.authorization import PAGE, page
from highwater.api.core.access import PUBLIC, Access, Scope, access_of, declared
from highwater.api.core.auth import Role
from highwater.api.core.authorization import SOCKET, close, operations
from highwater.api.core.guard import GuardedRoute, UndeclaredAccessError
from highwater.api.dashboard.mount import ACCESS
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.settings import read_settings


@pytest.fixture(scope="module")
def application() -> Any:
    """The application as it is served."""
    return create_app(read_settings({}))


def test_every_route_declares_what_it_asks(application: Any) -> None:
    """Routes of HTTP, sockets and the pages of the dashboard; those that need no key are these and no others."""
    found = list(operations(application.routes))
    assert {path for method, path, _ in found if method == SOCKET} == {"/api/ws", "/api/jobs/{job_id}/ws"}
    assert set(ACCESS) <= {path for _, path, _ in found}
    public = {path for _, path, access in found if access.role is None}
    described = {"/openapi.json", "/asyncapi.json", "/docs", "/problems", "/problems/{name}"}
    assert public == {
        *described, "/healthz", "/readyz", "/metrics", "/api/cache/prewarm", "/login", "/logout", "/favicon.ico",
        "/login/openid", "/login/openid/callback", "/read/static/{file}",
        "/api/shared/{token}", "/read/shared/{token}",
    }  # fmt: skip
    assert not {one for one in found if one.access.role is not None and one.access.scope is None} - {
        one for one in found if one.path == "/api/changes"
    }


def test_leagues_may_be_public_and_nothing_else(application: Any) -> None:
    """Reads without an owner: documents of leagues and the pages that show them; no user's data, no counts, no write."""
    found = {(method, path) for method, path, access in operations(application.routes) if access.may_be_public}
    season = ("table", "schedule", "results", "stats", "stats/live", "bracket")
    documents = (
        *("/api/league", "/api/matches/live", "/api/matches/{match}", "/api/matches/{match}/comments"),
        *("/api/clubs/{club}/matches", "/api/leaderboard", "/api/ads"),
        *(f"/api/league/{{season}}/{name}" for name in season),
    )
    pages = ("/read", "/read/league/{season}", "/read/league/{season}/{tab}", "/read/matches/{match}")
    assert found == {*(("GET", path) for path in documents), *(("page", path) for path in pages)}


def test_an_assistant_enters_results_alone(application: Any) -> None:
    """Beside what a viewer may; and has the pages of an administrator pushed."""
    found = {(method, path) for method, path, access in operations(application.routes) if access.also is not None}
    assert found == {
        ("POST", "/api/matches/{match}/finalize"),
        ("POST", "/api/matches/{match}/score"),
        ("page", "/read/changes"),
    }


def test_every_route_says_what_limits_it(application: Any) -> None:
    """Calls that cost money or seconds have the plan's limit; existing pages, and texts about the process, have no limit."""
    found = {(one.method, one.path): one.access for one in operations(application.routes)}
    assert all(one.has_limit for one in found.values())
    by_limit = {limit: {key for key, one in found.items() if one.limit is limit} for limit in RateLimit}
    assert by_limit[RateLimit.PLAN] >= {
        ("POST", "/api/query"), ("POST", "/api/query/{request_id}/restart"), ("POST", "/api/jobs"), ("PUT", "/api/blobs"),
        ("POST", "/api/users/{user}/rebuild"), ("GET", "/api/chunks/search"), ("POST", "/api/chunks/ingest"),
        ("GET", "/api/explain/feed/{user}"), ("GET", "/api/explain/resource/{key}"), ("POST", "/api/sessions"),
        ("page", "/browse"),
    }  # fmt: skip
    writes = {key for key in by_limit[RateLimit.NONE] if key[0] not in ("GET", "HEAD", "page")}
    assert writes == set()
    assert {path for _, path in by_limit[RateLimit.ADDRESS]} == {
        *("/api/matches/live", "/api/matches/{match}", "/api/league/{season}/stats/live", "/api/cache/prewarm"),
        "/api/shared/{token}",
    }


async def _endpoint() -> None:
    """Nothing."""


async def _declared_endpoint() -> None:
    """Nothing."""


async def _unlimited_endpoint() -> None:
    """Nothing."""


def test_a_route_without_a_declaration_stops_the_start() -> None:
    """This holds for any router: one that guards, one that does not, and a socket."""
    with pytest.raises(UndeclaredAccessError):
        APIRouter(route_class=GuardedRoute).add_api_route("/x", _endpoint)
    plain, socket = APIRouter(), APIRouter()
    plain.add_api_route("/x", _endpoint)
    socket.add_api_websocket_route("/x", _endpoint)
    for router in (plain, socket):
        application = FastAPI()
        application.include_router(router)
        with pytest.raises(UndeclaredAccessError):
            close(application)


def test_a_declaration_that_nothing_enforces_stops_the_start() -> None:
    """A router that does not guard carries public operations alone."""
    access = next(one.access for one in operations(create_app(read_settings({})).routes) if one.access != PUBLIC)
    router, application = APIRouter(), FastAPI()
    router.add_api_route("/x", declared(access)(_declared_endpoint))
    application.include_router(router)
    assert access_of(_declared_endpoint) == access
    with pytest.raises(UndeclaredAccessError):
        close(application)


@pytest.mark.parametrize(("limit", "cost"), [(None, None), (RateLimit.PLAN, None), (RateLimit.NONE, 1)])
def test_a_route_without_a_limit_stops_the_start(limit: RateLimit | None, cost: int | None) -> None:
    """A declaration of role and owner alone is insufficient, both on a route that guards and on a socket."""
    unlimited = declared(Access(Role.VIEWER, Scope.FEEDS, limit=limit, cost=cost))(_unlimited_endpoint)
    with pytest.raises(UndeclaredAccessError):
        APIRouter(route_class=GuardedRoute).add_api_route("/x", unlimited)
    router, application = APIRouter(), FastAPI()
    router.add_api_websocket_route("/x", unlimited)
    application.include_router(router)
    with pytest.raises(UndeclaredAccessError):
        close(application)


def test_the_page_is_current() -> None:
    """`docs/authorization.md` is what `python -m highwater.api.cli.authorization` writes."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_openapi_says_what_the_declarations_say(application: Any) -> None:
    """Operations that ask for a key name the scheme, 401 and 403; those that keep existence secret 404; others nothing."""
    paths = application.openapi()["paths"]
    seen = 0
    for method, path, access in operations(application.routes):
        described = paths.get(path, {}).get(method.lower())
        if described is None:
            continue
        seen += 1
        assert ("security" in described) is (access.role is not None or access.token is not None), path
        expected = {"401", "403"} if access.role is not None else {"401"} if access.token else set()
        if method != "GET":
            expected.add("403")  # a page of another site
        assert set(described["responses"]) & {"401", "403"} == expected, path
        assert "404" in described["responses"] or not access.is_secret, path
        told = {"limit": access.limit, "cost": access.cost} if access.limit is not RateLimit.NONE else None
        assert described.get("x-rate-limit") == told, path
        is_told = access.limit in (RateLimit.PLAN, RateLimit.CALLER)
        for status in {*described["responses"]} & {"200", "201", "202", "204", "304", "403", "422"}:
            assert ("RateLimit" in described["responses"][status].get("headers", {})) is is_told, (path, status)
    assert seen == sum(len(methods) for methods in paths.values())
