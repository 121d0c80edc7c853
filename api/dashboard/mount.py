"""The dashboard as a part of the API's application: its paths, and when its library is loaded.

Invariants. The API starts and serves without it: its library is loaded, and sampling begins, once a browser requests a
page. A path that is not a page falls through to the API. Nothing is fetched from elsewhere, and only scripts of the
page itself run: the policy sent with each page forbids anything else.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.api.core.access import PUBLIC, Access
from highwater.api.core.access import Scope as Subsystem
from highwater.api.core.auth import Role
from highwater.api.core.errors import problem
from highwater.api.core.icon import icon
from highwater.api.core.policies import CONTENT_SECURITY_POLICY, page_policy
from highwater.api.dashboard import assets
from highwater.api.dashboard.browsing import EXPORT_PATH
from highwater.api.dashboard.export import SQL_EXPORT_PATH, export, export_query
from highwater.api.dashboard.openid import CALLBACK_PATH, SIGN_IN_PATH, OpenIdSignIn
from highwater.api.dashboard.sign_in import SignIn
from highwater.api.records.searches import SEARCH
from highwater.api.sql.queries import QUERY
from highwater.connectors.identity.issuer import ClientCredentials
from highwater.streams.clock import monotonic_seconds
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import get_log

if TYPE_CHECKING:
    from highwater.api.dashboard.hub import Hub
    from highwater.api.dashboard.services import DashboardServices


def _page_of(subsystem: Subsystem) -> Access:
    """Return the access to a page whose figures were sampled for all browsers; the rest it reads from `/api`."""
    return Access(Role.VIEWER, subsystem, limit=RateLimit.CALLER, cost=1)


# Where a page finds the dashboard that serves it, and the nonce of its own scripts.
SCOPE_KEY = "highwater.dashboard"
ICON_PATH = "/favicon.ico"
# A visitor without a session is redirected to `/login`; a page's reads of `/api` are declared there, and its other
# reads are for operators (`View.sees_all`).
ACCESS: Mapping[str, Access] = {
    **dict.fromkeys(("/", "/topics", "/topics/{name}", "/dead-letters"), _page_of(Subsystem.SYSTEM)),
    **dict.fromkeys(("/groups", "/groups/{name}", "/schemas", "/schemas/{name}"), _page_of(Subsystem.SYSTEM)),
    **dict.fromkeys(("/user", "/policies", "/insight"), _page_of(Subsystem.FEEDS)),
    # It reads a topic and decodes the displayed records.
    **dict.fromkeys(("/browse", "/sql"), Access(Role.VIEWER, Subsystem.SYSTEM, limit=RateLimit.PLAN, cost=1)),
    **dict.fromkeys(("/league", "/match"), _page_of(Subsystem.LEAGUE)),
    **dict.fromkeys(("/queries", "/queries/{request_id}"), _page_of(Subsystem.QUERIES)),
    **dict.fromkeys(("/jobs", "/jobs/{job_id}"), _page_of(Subsystem.JOBS)),
    "/chunks": _page_of(Subsystem.CHUNKS),
    **dict.fromkeys(("/login", SIGN_IN_PATH, CALLBACK_PATH, "/logout", ICON_PATH), PUBLIC),
}
NONCE_KEY = "highwater.nonce"
PAGES = tuple(ACCESS)
_SIGN_IN = ("/login", SIGN_IN_PATH, CALLBACK_PATH, "/logout")
# Beside the pages: files, for visitors who may search and query (`export.py`).
_DECLARED: Mapping[str, Access] = {**ACCESS, EXPORT_PATH: SEARCH, SQL_EXPORT_PATH: QUERY}
# Pages of one thing each, which their address names.
_NAMED = tuple(compile_path(path)[0] for path in ACCESS if "{" in path)
_ASSETS = (assets.PATH, "/_nicegui_ws/")
_AWAY = "the console is served by another application of this process"

_log = get_log("dashboard")
# The library keeps its state in its modules, so only one application of a process has it at a time.
_holder: list[Dashboard] = []


class Dashboard:
    """The dashboard of one application; an ASGI application itself."""

    def __init__(self, api: ASGIApp, credentials: ClientCredentials | None = None) -> None:
        """`credentials` are those of the sign-in at an OpenID provider; None: users sign in with keys only."""
        self._api = api
        self._opening = asyncio.Lock()
        self._running = AsyncExitStack()
        self._inner: ASGIApp | None = None
        self._services: DashboardServices | None = None
        self._hub: Hub | None = None
        openid = None if credentials is None else OpenIdSignIn(credentials, lambda: self.services.core)
        self.sign_in = SignIn(self._authenticator, openid)

    @property
    def api(self) -> ASGIApp:
        """Return the application whose `/api` the pages read."""
        return self._api

    @property
    def services(self) -> DashboardServices:
        """Return the services of the pages."""
        if self._services is None:
            raise RuntimeError("the console was opened before the application started")
        return self._services

    @property
    def hub(self) -> Hub:
        """Return the sampler for all browsers."""
        if self._hub is None:
            raise RuntimeError("a page was requested before the console was opened")
        return self._hub

    def _authenticator(self) -> Any:
        return self.services.core.authenticator

    def attach(self, services: DashboardServices) -> None:
        """Attach the started services; nothing is loaded yet."""
        self._services = services

    async def close(self) -> None:
        """Stop sampling and release the library."""
        async with self._opening:
            await self._running.aclose()
            self._inner = None
            self._services = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a page, an asset or the socket of a browser."""
        if scope["type"] == "http" and scope["path"] in _SIGN_IN:
            await self.sign_in(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == ICON_PATH:  # the browser requests it for the sign-in form, too
            await icon()(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] in (EXPORT_PATH, SQL_EXPORT_PATH):
            give = export if scope["path"] == EXPORT_PATH else export_query
            answer = await give(self.sign_in, self.services.core, Request(scope, receive))
            await answer(scope, receive, send)
            return
        inner = await self._opened()
        if inner is None:
            await _refuse(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        # The library writes this field into its pages as the prefix of addresses, even if a client sent it.
        headers = [field for field in scope["headers"] if field[0] != b"x-forwarded-prefix"]
        inside = {**scope, "headers": headers, SCOPE_KEY: self, NONCE_KEY: nonce}
        await inner(inside, receive, _guarded(send, nonce) if scope["type"] == "http" else send)

    async def _opened(self) -> ASGIApp | None:
        async with self._opening:
            if self._inner is None and self._services is not None and not _holder:
                await self._open()
            return self._inner

    async def _open(self) -> None:
        started = monotonic_seconds()
        _holder.append(self)
        self._running.callback(_holder.clear)
        # Half a second of imports, in a thread: requests to the API continue meanwhile.
        library = await asyncio.to_thread(importlib.import_module, "highwater.api.dashboard.library")
        hub: Hub = library.Hub(self.services.core)
        self._hub = hub
        self._running.push_async_callback(hub.close)
        application = library.application()
        await self._running.enter_async_context(application.router.lifespan_context(application))
        # The library compresses its pages by itself, but not where it finds itself under pytest.
        self._inner = assets.Assets(GZipMiddleware(application))
        _log.info("the dashboard is open", seconds=round(monotonic_seconds() - started, 2))


class DashboardRoute(BaseRoute):
    """The paths of the dashboard; every other one is left to the API."""

    access = _DECLARED

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a path is a page, an asset or the socket."""
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            if is_page(path) or path.startswith(_ASSETS):
                return Match.FULL, {"endpoint": self._dashboard}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the dashboard."""
        await self._dashboard(scope, receive, send)


def is_page(path: str) -> bool:
    """Return whether a path is a page, or a file beside the pages."""
    return path in _DECLARED or any(pattern.match(path) for pattern in _NAMED)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": _AWAY})
        return
    await problem(503, _AWAY, headers={"Retry-After": "5"})(scope, receive, send)


def _guarded(send: Send, nonce: str) -> Send:
    field = (CONTENT_SECURITY_POLICY, page_policy(nonce))

    async def with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], field]}
        await send(message)

    return with_policy
