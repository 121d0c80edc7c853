"""Two applications over the same pages in memory: with the short cut and without, asked through ASGI or over a connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from uvicorn.server import ServerState

from highwater.api.app import Application, create_app, server_of
from highwater.api.core.access import Access
from highwater.api.core.auth import Authenticator, Principal, Role, parse_api_keys
from highwater.api.core.errors import TooManyRequestsError
from highwater.api.core.rate_limits import COUNTED
from highwater.api.league.matches import MatchDocuments
from highwater.api.league.routes_reads import shown_pages
from highwater.api.pages.shortcut import ShortCut
from highwater.connectors.pages.reads import NoSuchDocumentError, Served
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.pages.kinds import CacheOptions, Resource
from highwater.streams.pages.refresh import Freshness
from highwater.streams.settings import read_settings

SEASON = "eng/2026 ü"
SPELLED = "eng%2F2026%20%C3%BC"
KEYS = "admin:root,viewer:eye,viewer:ada-key:ada"
Headers = Sequence[tuple[bytes, bytes]]
# Turns of the event loop: every answer of a test takes a few.
_TURNS_MAX = 10_000


class _Documents:
    """Documents that are all in memory, each at version 7, and good."""

    def __init__(self) -> None:
        self.quick_reads: list[str] = []
        self.freshness = Freshness.FRESH
        self.missing: set[str] = set()
        self.age_seconds = 3
        self.has_bodies = True
        self.is_near = False

    def _served(self, found: Resource) -> Served:
        if found.key in self.missing:
            raise NoSuchDocumentError
        head = Head(7, f"{found.kind.name}-7", "league.match-finalized/1/22", 0)
        return Served(head, self.freshness, CacheOptions(30, 120, 10), self.age_seconds, 140)

    def quick(self, found: Resource) -> Served | None:
        self.quick_reads.append(found.key)
        return self._served(found) if self.freshness is Freshness.FRESH and found.key not in self.missing else None

    async def read(self, found: Resource, *, is_positioned: bool = False) -> Served:
        return self._served(found)

    async def near(self, found: Resource) -> Served | None:
        return self._served(found) if self.is_near and found.key not in self.missing else None

    def body(self, found: Resource, head: Head, encoding: str) -> bytes | None:
        return f"{found.key} {encoding}".encode() if self.has_bodies else None

    async def payload(self, found: Resource, head: Head, encoding: str) -> bytes:
        return f"{found.key} {encoding}".encode()


async def _no_session(_session_id: str) -> Principal:
    return Principal(Role.VIEWER, "ada", "hws_1")


async def _nothing(*_: Any) -> bool:
    return False


class _RateLimiter:
    """Counts calls that are limited by address, once per request, and refuses them on demand."""

    def __init__(self) -> None:
        self.counted = 0
        self.is_full = False

    def ask_address(self, _declaration: Access, _scope: dict[str, Any]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(3_000 if self.is_full else 0)
        self.counted += 1
        return future

    def judge_address(self, _scope: dict[str, Any], told: asyncio.Future[int]) -> int:
        return told.result()

    async def admit(
        self, declaration: Access, _principal: Principal, scope: dict[str, Any], *, cost: int | None = None
    ) -> dict[str, str]:
        if declaration.limit is not RateLimit.ADDRESS:
            return {}
        if COUNTED not in scope:
            scope[COUNTED] = 3_000 if self.is_full else 0
            self.counted += 1
        if self.is_full:
            raise TooManyRequestsError(headers={"Retry-After": "3"})
        return {}


def _services(keys: str | None, *, is_league_public: bool = False) -> Any:
    documents: Any = _Documents()
    services = SimpleNamespace(
        documents=documents,
        matches=MatchDocuments(documents, lambda: None),  # type: ignore[arg-type, return-value]
        authenticator=Authenticator(parse_api_keys(keys), _no_session, is_league_public=is_league_public),
        activity=SimpleNamespace(noted=[], note=lambda _principal: None),
        rate_limiter=_RateLimiter(),
        fresh=_nothing,
        security=SimpleNamespace(ended=lambda _scope, _status: None, permit=_nothing),
        clock=lambda: 0,
    )
    services.core = services
    return services


@functools.cache
def _pair(user: str) -> tuple[Application, Application]:
    """Two applications, made once for all who give the same name: a hundred routes take a tenth of a second."""
    return create_app(read_settings({})), create_app(read_settings({}))


def make_apps(
    keys: str | None = None, user: str = "one test after the other", *, is_league_public: bool = False
) -> tuple[Application, Application, Any]:
    """Two applications over the same new services: with the short cut and without."""
    services = _services(keys, is_league_public=is_league_public)
    short, usual = _pair(user)
    for state in (short.state, usual.state):
        state.services = state.pages = state.league = services
    short.short_cut = ShortCut(shown_pages(services), services)
    return short, usual, services


def with_host(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields of a request, which names its host."""
    return [*headers] if any(name == b"host" for name, _ in headers) else [*headers, (b"host", b"127.0.0.1")]


async def ask(app: Any, path: str, headers: Headers, *, method: str = "GET", query: bytes = b"") -> tuple[Any, ...]:
    """Status, headers and body of an answer."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": method, "path": path, "raw_path": path.encode("latin-1"), "query_string": query,
        "headers": with_host(headers), "client": ("192.0.2.7", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    told = sorted(header for header in sent[0]["headers"] if header[0] != b"x-request-id")  # another one each time
    return sent[0]["status"], told, body


def tag(kind: str) -> tuple[bytes, bytes]:
    """The condition of a client that has the page."""
    return (b"if-none-match", f'W/"{kind}-7"'.encode())


QUICK = [
    (f"/api/league/{SPELLED}/table", "league_table", f"league:table:{SEASON}"),
    ("/api/league/eng/schedule", "league_schedule", "league:schedule:eng"),
    ("/api/league/eng/results", "league_results", "league:results:eng"),
    ("/api/league/eng/stats", "league_stats", "league:stats:eng"),
    ("/api/league/eng/bracket", "league_bracket", "league:bracket:eng"),
    ("/api/matches/m-1/comments", "match_comments", "md:m-1:comments"),
    ("/api/clubs/1.%20FC%20K%C3%B6ln/matches", "club_matches", "public:club:1. FC Köln:matches"),
    ("/api/leaderboard", "leaderboard", "lb:1"),
    ("/api/predictions", "predictions_active", "predictions:active:6d"),
    ("/api/ads", "ads", "ads:all"),
    ("/api/matches/live", "matches_live", "public:matches:live"),
    ("/api/league/eng/stats/live", "league_stats_live", "league:stats-live:eng"),
]


class Wire(asyncio.Transport):
    """A transport without a socket: keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The two ends."""
        return {"sockname": ("127.0.0.1", 80), "peername": ("192.0.2.7", 1)}.get(name, default)

    def write(self, data: Any) -> None:
        """Keep it, unless nothing can follow any more."""
        if not self.is_closed:
            self.written += data

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Nothing more is written."""
        self.is_closed = True

    abort = close

    def set_protocol(self, protocol: Any) -> None:
        """Set the next reader."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """Return the reader."""
        return self.protocol

    def pause_reading(self) -> None:
        """The server stops reading; the test still sends, as if it had been read already."""

    def resume_reading(self) -> None:
        """It continues."""

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""
        return 0


class Connection:
    """A connection to an application, in this event loop; `is_ready`: it may write ready answers itself."""

    def __init__(self, app: Application, *, is_ready: bool) -> None:
        config = server_of(app, "127.0.0.1", 0).config
        config.load()
        if not is_ready:
            config.ready = None  # type: ignore[attr-defined]
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"Mon, 23 Nov 2026 08:00:00 GMT")]
        self.wire = Wire()
        self.protocol: Any = config.http_protocol_class(config=config, server_state=self.state, app_state={})  # type: ignore[call-arg, operator]
        self.protocol.connection_made(self.wire)

    async def send(self, *pieces: bytes, at_once: bool = False) -> bytes:
        """Return the answer to pieces that arrive one after the other, or `at_once` before the first is processed."""
        before = len(self.wire.written)
        for piece in pieces:
            if not self.wire.is_closed:
                self.protocol.data_received(piece)
            if not at_once:
                await self.rest()
        await self.rest()
        return bytes(self.wire.written[before:])

    async def rest(self) -> None:
        """Until nothing is being answered."""
        for _ in range(_TURNS_MAX):
            is_refused = self.protocol._is_refused and self.protocol._refused_last is None
            if not self.state.tasks and (self.wire.is_closed or is_refused or not self.protocol.is_asking):
                return
            await asyncio.gather(*self.state.tasks)
            await asyncio.sleep(0)
        raise AssertionError("a request gets no answer")

    async def end(self) -> None:
        """The client goes."""
        self.protocol.connection_lost(None)
        await self.rest()


def remember(app: Application, path: str) -> None:
    """As if the page had been answered before: only then a connection may answer it."""
    assert app.short_cut is not None
    known = app.short_cut._of_path(path.encode())
    if known is not None:
        app.short_cut._remember(path.encode(), known)


async def ask_over_connection(
    app: Any, path: str, headers: Headers, *, method: str = "GET", query: bytes = b""
) -> tuple[Any, ...]:
    """As `ask`, of a connection that writes ready answers."""
    remember(app, path)
    connection = Connection(app, is_ready=True)
    target = path.encode() + (b"?" + query if query else b"")
    fields = b"".join(b"%b: %b\r\n" % field for field in with_host(headers))
    found = await connection.send(b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target, fields))
    head, _, body = found.partition(b"\r\n\r\n")
    await connection.end()
    line, *lines = head.split(b"\r\n")
    told = sorted(tuple(one.split(b": ", 1)) for one in lines)
    others = (b"date", b"x-request-id")  # the server's own, and another one each time
    return int(line.split()[1]), [field for field in told if field[0] not in others], body
