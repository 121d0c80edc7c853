"""The application: combines routes, errors and limits, and is served by uvicorn.

Invariants. It starts and answers /healthz even if other services are unavailable. The dashboard is loaded when the
first browser opens it. No request body is larger than `BODY_BYTES_MAX`. Every answer is measured under its route's
template, never under its path.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater import __version__
from highwater.api.broker import routes_groups as broker_groups
from highwater.api.broker import routes_schemas as broker_schemas
from highwater.api.broker import routes_topics as broker_topics
from highwater.api.chunks import routes as chunks
from highwater.api.chunks import routes_lifecycle as chunk_lifecycle
from highwater.api.chunks import routes_search as chunk_search
from highwater.api.core import asyncapi, authorization, docs, errors, events, system
from highwater.api.core.answers import add_answers
from highwater.api.core.connections import Connections, files_allowed
from highwater.api.core.documentation import add_refusals
from highwater.api.core.entrance import Entrance
from highwater.api.core.errors import TooLargeError, problem
from highwater.api.core.freshness import KeepPositionedFromCaches
from highwater.api.core.heads import HeadAsGet
from highwater.api.core.listening import check_listening
from highwater.api.core.oidc import read_credentials, read_rules
from highwater.api.core.openapi import add_forms, operation_id
from highwater.api.core.paths import RouteOnRawPath
from highwater.api.core.protocol import LimitedConfig, Limits
from highwater.api.core.proxies import parse_networks
from highwater.api.core.ready import DeferredAnswer, QuickAnswer, QuickRequest, ShortWay
from highwater.api.core.security_log import RecordActions
from highwater.api.core.services import Services
from highwater.api.core.tracing import TraceRequests, has_context
from highwater.api.dashboard.mount import Dashboard, DashboardRoute
from highwater.api.dashboard.services import DashboardServices
from highwater.api.examples import add_examples
from highwater.api.explain import routes as explain
from highwater.api.feeds import routes_curations as feeds_curations
from highwater.api.feeds import routes_digest as feeds_digest
from highwater.api.feeds import routes_reads as feeds_reads
from highwater.api.feeds import routes_rebuilds as feeds_rebuilds
from highwater.api.feeds import routes_writes as feeds_writes
from highwater.api.feeds.quick import ShortFeeds
from highwater.api.history import routes as history
from highwater.api.identity import routes_organizations as organizations
from highwater.api.identity import routes_sessions as sessions
from highwater.api.jobs import routes as jobs
from highwater.api.jobs import routes_blobs as blobs
from highwater.api.jobs import routes_presentations as presentations
from highwater.api.jobs import routes_restarts as job_restarts
from highwater.api.jobs import routes_socket as job_socket
from highwater.api.jobs import routes_sockets as job_sockets
from highwater.api.jobs import routes_usage as usage
from highwater.api.league import routes_cache as league_cache
from highwater.api.league import routes_reads as league_reads
from highwater.api.league import routes_writes as league_writes
from highwater.api.pages import routes as cache
from highwater.api.pages.shortcut import ShortCut
from highwater.api.queries import routes as queries
from highwater.api.queries import routes_metrics as query_metrics
from highwater.api.queries import routes_prompts as prompts
from highwater.api.queries import routes_restarts as query_restarts
from highwater.api.queries import routes_socket as query_socket
from highwater.api.readers.mount import Readers, ReadersRoute
from highwater.api.records import routes as records
from highwater.api.sql import routes as sql
from highwater.api.wiring import Wiring, make_wiring
from highwater.connectors.tracing import start_tracing
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import Clock, ProductClock, monotonic_seconds
from highwater.streams.heap import settle_heap
from highwater.streams.metric_roles import Role
from highwater.streams.settings import Settings
from highwater.streams.telemetry import HTTP_SECONDS, get_log
from highwater.streams.tracing import TRACER

# Ten thousand events of 1.5 kB, or a few insights with a megabyte of text.
BODY_BYTES_MAX = 16 * 1024 * 1024
# A client sends commands of a few hundred bytes over a socket.
SOCKET_MESSAGE_BYTES_MAX = 64 * 1024
# A stop waits this long for requests in progress; a stream of changes is cut.
STOP_SECONDS_MAX = 10

_TOO_LARGE = f"the body is larger than {BODY_BYTES_MAX} bytes"
# Routes are tried in this order: the hot reads first.
_ROUTES = (
    *(league_reads, feeds_reads, feeds_digest, queries, query_metrics),
    *(chunks, chunk_search, chunk_lifecycle),
    *(feeds_writes, league_writes, events, sessions),
    *(jobs, job_restarts, job_socket, job_sockets, presentations, blobs, usage, organizations),
    *(feeds_rebuilds, feeds_curations, query_socket, query_restarts, prompts, league_cache, cache, explain),
    *(records, sql, broker_topics, broker_groups, broker_schemas, history, system, docs, asyncapi),
)
_log = get_log("api")


class LimitBody:
    """ASGI: refuses a body above the limit, by its declared length or by the bytes received; some routes have their own
    limit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) in blobs.OWN_BOUND:
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > BODY_BYTES_MAX:
                await problem(TooLargeError.status, _TOO_LARGE)(scope, receive, send)
                return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > BODY_BYTES_MAX:
                raise TooLargeError(_TOO_LARGE)
            return message

        await self._app(scope, counted, send)


class Measure:
    """ASGI: measures the time to the end of each answer by route template, method and status; logs one debug line per
    request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and measure it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = monotonic_seconds()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            seconds = monotonic_seconds() - started
            route = getattr(scope.get("route"), "path_format", "(none)")
            HTTP_SECONDS.labels(route, scope["method"], status).observe(seconds)
            _log.debug("request", method=scope["method"], route=route, status=status, ms=round(seconds * 1000, 1))


class Application(FastAPI):
    """FastAPI behind the entrance, with the shortcut in front of its middleware; requests that the shortcut leaves take
    the normal route.
    """

    entrance: Entrance | None = None
    traces: TraceRequests | None = None
    short_cut: ShortCut | None = None
    short_feeds: ShortFeeds | None = None
    # The setting because of which it did not start.
    refusal: ConfigurationError | None = None

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the access that each operation requires and the errors that it may return."""
        if self.openapi_schema is None:
            document = super().openapi()
            add_forms(document)
            add_answers(document)
            authorization.describe(document, self.routes)
            add_refusals(document)
            add_examples(document)
        return super().openapi()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request if the entrance admits it."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, self._without_refusal(send))
        elif self.traces is None:
            await super().__call__(scope, receive, send)
        else:
            await self.traces(scope, receive, send)

    def _without_refusal(self, send: Send) -> Send:
        """Leave the traceback of a refused setting out of the log: `serve` ends with one line that names the setting."""

        async def sent(message: Message) -> None:
            await send(message if self.refusal is None else {**message, "message": ""})

        return sent

    def note_refusal(self, scope: Scope, status: int) -> None:
        """Record a refusal at the entrance, as soon as the security log exists."""
        services: Services | None = getattr(self.state, "services", None)
        if services is not None:
            services.security.ended(scope, status)

    async def quick(self, scope: Scope, send: Send) -> bool:
        """Answer an admitted request by the shortcut; return whether it did."""
        return self.short_cut is not None and await self.short_cut.answer(scope, send)

    def is_known(self, target: bytes) -> bool:
        """Return whether a request with this target may have a ready answer."""
        return self._short_way(target) is not None

    def _short_way(self, target: bytes) -> ShortWay | None:
        if self.short_cut is not None and self.short_cut.is_known(target):
            return self.short_cut
        return self.short_feeds if self.short_feeds is not None and self.short_feeds.is_known(target) else None

    def asked(self, scope: Scope) -> QuickRequest | None:
        """Return what an admitted read without a trace requests; the arguments are those of `__call__`."""
        way = self._short_way(scope["raw_path"])
        if way is None or self.entrance is None or has_context(scope):
            return None
        seen = self.entrance.quick_scope(scope)
        return None if seen is None else way.asked(seen)

    def ready(self, request: QuickRequest) -> QuickAnswer | DeferredAnswer[Any] | None:
        """Return the answer if it needs at most one query to Redis and leaves no trace."""
        return None if self.short_cut is None or TRACER.is_on else request.ready()

    async def usual(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an admitted request that the shortcut has left."""
        await super().__call__(scope, receive, send)


def create_app(settings: Settings, clock: Clock | None = None) -> Application:
    """Create the application for these settings; it connects to its services when it starts.

    Raises:
        ConfigurationError: the API keys, the OpenID provider, the trusted proxies or the allowed origins cannot be
            read.
    """
    read_rules(settings)
    credentials = read_credentials(settings)
    product_clock = clock or ProductClock(settings.clock_file)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            wiring = make_wiring(settings, product_clock)
            exporter = start_tracing(settings, Role.API)
        except ConfigurationError as error:
            application.refusal = error
            raise
        wiring.install(app)
        await wiring.start()
        dashboard.attach(DashboardServices(wiring.services, wiring.feeds.policy, wiring.pages.documents))
        application.short_cut = ShortCut(league_reads.shown_pages(wiring.league), wiring.pages)
        application.short_feeds = ShortFeeds(wiring.services, wiring.feeds)
        try:
            yield
        finally:
            application.short_cut = application.short_feeds = None
            await dashboard.close()
            await wiring.close()
            if exporter is not None:
                await asyncio.to_thread(exporter.close)

    application = Application(
        title="Highwater",
        summary="Event streaming on Kafka: every response names the log position that produced it.",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        # FastAPI's own pages load scripts from other sites; `/docs` is ours (`core/docs.py`).
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    application.entrance = Entrance(application.usual, application.quick, settings, application.note_refusal)
    application.traces = TraceRequests(application.entrance)
    dashboard = Dashboard(application, credentials)
    errors.install(application)
    for module in _ROUTES:
        application.include_router(module.router)
    application.router.routes.append(ReadersRoute(Readers(application, dashboard.sign_in)))
    application.router.routes.append(DashboardRoute(dashboard))
    authorization.close(application)
    application.add_middleware(HeadAsGet)
    application.add_middleware(KeepPositionedFromCaches)
    application.add_middleware(LimitBody)
    application.add_middleware(RouteOnRawPath)
    application.add_middleware(RecordActions)
    application.add_middleware(Measure)
    return application


class Server(uvicorn.Server):
    """uvicorn, which waits for requests in progress; streams and sockets have no end of their own and are ended first."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and sockets, then everything else."""
        wiring: Wiring | None = getattr(getattr(self.config.app, "state", None), "wiring", None)
        if wiring is not None:
            await wiring.end()
        await super().shutdown(sockets)


def server_of(
    app: Any, host: str, port: int, *, settings: Settings | None = None, limits: Limits | None = None
) -> Server:
    """Create uvicorn as the API runs it: uvloop, httptools, sockets under limits, and our log format."""
    given = settings or Settings()
    connections = Connections(
        min(given.connections_max, files_allowed()),
        given.connections_per_address_max,
        parse_networks(given.trusted_proxies),
    )
    config = LimitedConfig(
        app,
        limits=limits or Limits(),
        ready=app if isinstance(app, Application) else None,
        connections=connections,
        host=host,
        port=port,
        loop="highwater.api.core.protocol:Loop",
        ssl_certfile=given.tls_cert_file,
        ssl_keyfile=given.tls_key_file,
        ws_max_size=SOCKET_MESSAGE_BYTES_MAX,
        access_log=False,
        log_config=None,
        server_header=False,
        # Our own setting decides whose X-Forwarded-For is trusted; uvicorn would trust every program on this machine.
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
    )
    return Server(config)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress.

    Raises:
        ConfigurationError: a setting or the certificate cannot be used, or the API would be open to others than this
            machine.
    """
    check_listening(settings)
    app = create_app(settings)
    settle_heap()
    _log.info("the API listens", host=settings.host, port=settings.port, tls=settings.tls_cert_file is not None)
    try:
        server_of(app, settings.host, settings.port, settings=settings).run()
    except SystemExit:  # the server's own end of a start that failed
        if app.refusal is None:
            raise
        raise app.refusal from None
