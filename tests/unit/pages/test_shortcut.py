"""The short cut to a page: it answers what the usual way answers, or not at all."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.app import Application, create_app
from highwater.api.core.access import Access
from highwater.api.core.auth import Authenticator, Principal, Role, parse_api_keys
from highwater.api.core.errors import TooManyRequestsError
from highwater.api.league.matches import MatchDocuments
from highwater.api.league.routes_reads import shown_pages
from highwater.api.pages.shortcut import PATHS_MAX, ShortCut
from highwater.connectors.pages.reads import NoSuchDocumentError, Served
from highwater.connectors.redis.link import Head
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.pages.kinds import CacheOptions, Resource
from highwater.streams.pages.refresh import Freshness
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import CONDITIONAL_GETS, HTTP_SECONDS

SEASON = "eng/2026 ü"
SPELLED = "eng%2F2026%20%C3%BC"
KEYS = "admin:root,viewer:eye,viewer:ada-key:ada"
Headers = Sequence[tuple[bytes, bytes]]


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
    """Counts calls that are limited by address, once a request, and refuses them when it is told to."""

    def __init__(self) -> None:
        self.counted = 0
        self.is_full = False

    async def admit(
        self, declaration: Access, _principal: Principal, scope: dict[str, Any], *, cost: int | None = None
    ) -> dict[str, str]:
        if declaration.limit is not RateLimit.ADDRESS:
            return {}
        if not scope.get("counted"):
            scope["counted"] = True
            self.counted += 1
        if self.is_full:
            raise TooManyRequestsError(headers={"Retry-After": "3"})
        return {}


def _services(keys: str | None) -> Any:
    documents: Any = _Documents()
    services = SimpleNamespace(
        documents=documents,
        matches=MatchDocuments(documents, lambda: None),  # type: ignore[arg-type, return-value]
        authenticator=Authenticator(parse_api_keys(keys), _no_session),
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


def _apps(keys: str | None = None, user: str = "one test after the other") -> tuple[Application, Application, Any]:
    """Two applications over the same new services: with the short cut and without."""
    services = _services(keys)
    short, usual = _pair(user)
    for state in (short.state, usual.state):
        state.services = state.pages = state.league = services
    short.short_cut = ShortCut(shown_pages(services), services)
    return short, usual, services


async def _ask(app: Any, path: str, headers: Headers, *, method: str = "GET", query: bytes = b"") -> tuple[Any, ...]:
    """Status, headers and body of an answer."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": method, "path": path, "raw_path": path.encode("latin-1"), "query_string": query,
        "headers": list(headers), "client": ("192.0.2.7", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    told = sorted(header for header in sent[0]["headers"] if header[0] != b"x-request-id")  # another one each time
    return sent[0]["status"], told, body


def _tag(kind: str) -> tuple[bytes, bytes]:
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


@pytest.mark.parametrize(("path", "kind", "key"), QUICK)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_that_the_client_has_is_answered_at_once(path: str, kind: str, key: str, method: str) -> None:
    """The 304 has the headers of the usual way, comes from memory, and is counted under the route's template."""
    short, usual, services = _apps()
    counted = CONDITIONAL_GETS.labels(kind, "not_modified")
    expected = await _ask(usual, path, [_tag(kind)], method=method)
    routes = {sample.labels["route"] for sample in _http_samples() if sample.value}
    before, timed = counted._value.get(), _timed()
    answer = await _ask(short, path, [_tag(kind)], method=method)
    assert answer == expected
    assert (answer[0], services.documents.quick_reads) == (304, [key])
    assert (counted._value.get(), _timed()) == (before + 1, timed + 1)
    assert {sample.labels["route"] for sample in _http_samples() if sample.value} == routes


@pytest.mark.parametrize("coding", [b"", b"br", b"gzip", b"gzip;q=0.5, br;q=0.1"])
@pytest.mark.parametrize("condition", [[], [(b"if-none-match", b'W/"ads-6"')]])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_in_memory_is_sent_at_once(coding: bytes, condition: list[Any], method: str) -> None:
    """Without a tag, or with another: the answer of the usual way, in each coding, counted as one that was sent."""
    short, usual, _ = _apps()
    fields = [*condition, (b"accept-encoding", coding)]
    counted = CONDITIONAL_GETS.labels("ads", "sent")
    expected = await _ask(usual, "/api/ads", fields, method=method)
    before = counted._value.get()
    answer = await _ask(short, "/api/ads", fields, method=method)
    assert (answer[0], answer) == (200, expected)  # the server leaves out the body of a HEAD
    assert counted._value.get() == before + 1


@pytest.mark.parametrize(
    "fields", [[], [(b"if-none-match", b'W/"match_meta-7+match_live-7"')], [(b"accept-encoding", b"br, gzip;q=0.5")]]
)
async def test_a_match_in_memory_is_answered_at_once(fields: list[Any]) -> None:
    """Of its two documents, under the tag of both."""
    short, usual, services = _apps()
    expected = await _ask(usual, "/api/matches/m-1", fields)
    answer = await _ask(short, "/api/matches/m-1", fields)
    assert answer == expected
    assert services.documents.quick_reads == ["md:m-1:meta", "md:m-1:live"]


@pytest.mark.parametrize("path", ["/api/matches/live", "/api/matches/m-1", "/api/league/eng/stats/live"])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("is_in_memory", [False, True])
async def test_a_live_page_is_counted_once(path: str, is_full: bool, is_in_memory: bool) -> None:
    """Whichever way it goes; beyond the limit it is refused as the usual way refuses."""
    short, usual, services = _apps()
    services.rate_limiter.is_full = is_full
    if not is_in_memory:
        services.documents.freshness = Freshness.STALE
    answer = await _ask(short, path, [])
    assert services.rate_limiter.counted == 1
    assert answer == await _ask(usual, path, [])
    assert answer[0] == (429 if is_full else 200)


@pytest.mark.parametrize(
    ("path", "tag"), [("/api/ads", b'W/"ads-7"'), ("/api/matches/m-1", b'W/"match_meta-7+match_live-7"')]
)
async def test_without_the_lease_redis_is_enough_for_a_304(path: str, tag: bytes) -> None:
    """Where memory may not speak one question answers it; a page that the client lacks goes the usual way."""
    short, usual, services = _apps()
    services.documents.quick = lambda _found: None
    services.documents.is_near = True
    for fields in ([(b"if-none-match", tag)], [(b"if-none-match", b'"x"')], []):
        answer = await _ask(short, path, fields)
        assert answer == await _ask(usual, path, fields)
    scope = {"type": "http", "method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": []}
    assert not await short.short_cut.answer(scope, _refuse)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    assert await short.short_cut.answer({**scope, "headers": [(b"if-none-match", tag)]}, send)
    assert sent[0]["status"] == 304


async def test_a_body_that_is_not_in_memory_goes_the_usual_way() -> None:
    """It has to be fetched; nothing was sent before."""
    short, usual, services = _apps()
    services.documents.has_bodies = False
    scope = {"type": "http", "method": "GET", "raw_path": b"/api/ads", "query_string": b"", "headers": []}
    assert not await short.short_cut.answer(scope, _refuse)
    assert await _ask(short, "/api/ads", []) == await _ask(usual, "/api/ads", [])


def _http_samples() -> list[Any]:
    return [sample for metric in HTTP_SECONDS.collect() for sample in metric.samples if sample.name.endswith("_count")]


def _timed() -> float:
    return sum(sample.value for sample in _http_samples())


ASIDE = [
    ("a position", "/api/ads", [_tag("ads"), (b"x-min-position", b"league.ad-changed/0/1")]),
    ("a wait", "/api/ads", [_tag("ads"), (b"x-max-wait-ms", b"x")]),
    ("two conditions", "/api/ads", [_tag("x"), _tag("ads")]),
    ("no coding left", "/api/ads", [_tag("ads"), (b"accept-encoding", b"*;q=0")]),
    ("a session", "/api/ads", [_tag("ads"), (b"authorization", b"Bearer hws_1")]),
    ("a key nobody has", "/api/ads", [_tag("ads"), (b"authorization", b"Bearer nobody")]),
    ("what is for administrators", "/api/league/admin/stats", [_tag("admin_stats")]),
    ("the same in another spelling", "/api/league/%61dmin/stats", [_tag("league_stats")]),
    ("what a user achieved", "/api/users/ada/achievements", [_tag("achievements")]),
    ("no such path", "/api/league/eng/tables", [_tag("league_table")]),
    ("a path that is no text", "/api/league/%ff/table", [_tag("league_table")]),
    ("no id", "/api/league//table", [_tag("league_table")]),
]


@pytest.mark.parametrize(("why", "path", "headers"), ASIDE, ids=[case[0] for case in ASIDE])
async def test_in_doubt_it_steps_aside(why: str, path: str, headers: Headers) -> None:
    """What takes more than memory to answer goes the usual way, and nothing was sent before."""
    short, usual, _ = _apps()
    assert not await short.short_cut.answer(
        {"type": "http", "method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": headers}, _refuse
    )
    assert await _ask(short, path, headers) == await _ask(usual, path, headers)


async def _refuse(_message: Any) -> None:
    raise AssertionError("sent")


async def test_a_query_or_another_method_goes_the_usual_way() -> None:
    """A page of the rating by number, a user's predictions, a write."""
    short, usual, _ = _apps()
    for path, query, method in (
        ("/api/leaderboard", b"page=2", "GET"),
        ("/api/predictions", b"user=ada", "GET"),
        ("/api/ads", b"", "DELETE"),
    ):
        headers = [(b"if-none-match", b"*")]
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": query, "headers": headers}
        assert not await short.short_cut.answer(scope, _refuse)
        answers = [await _ask(app, path, headers, method=method, query=query) for app in (short, usual)]
        assert answers[0] == answers[1]


async def test_a_page_that_is_no_longer_good_or_not_in_memory_goes_the_usual_way() -> None:
    """A stale one says so in its headers and is made anew; one that is not there is 404, also for `*`."""
    short, usual, services = _apps()
    for freshness in (Freshness.STALE, Freshness.KEPT):
        services.documents.freshness = freshness
        answer = await _ask(short, "/api/ads", [_tag("ads")])
        assert answer == await _ask(usual, "/api/ads", [_tag("ads")])
        assert (b"x-stale", b"true") in answer[1]
    services.documents.freshness = Freshness.FRESH
    services.documents.missing.add("ads:all")
    assert (await _ask(short, "/api/ads", [(b"if-none-match", b"*")]))[0] == 404


async def test_what_changes_with_time_is_told_anew() -> None:
    """The age in a 304 is that of the moment, also of a page that was answered before."""
    short, usual, services = _apps()
    for age_seconds in (3, 3, 4):
        services.documents.age_seconds = age_seconds
        answer = await _ask(short, "/api/ads", [_tag("ads")])
        assert answer == await _ask(usual, "/api/ads", [_tag("ads")])
        assert (b"age", str(age_seconds).encode()) in answer[1]


async def test_a_key_opens_as_it_does_the_usual_way() -> None:
    """With keys set nobody gets in without one; a bound key's read is noted once; no shared cache keeps the answer."""
    short, usual, services = _apps(KEYS)
    noted: list[Principal] = []
    services.activity.note = noted.append
    assert (await _ask(short, "/api/ads", [_tag("ads")]))[0] == 401
    for token in (b"eye", b"ada-key", b"root"):
        headers = [_tag("ads"), (b"authorization", b"Bearer " + token)]
        del noted[:]
        answer = await _ask(short, "/api/ads", headers)
        told = list(noted)
        assert answer == await _ask(usual, "/api/ads", headers)
        assert noted == told * 2
        assert dict(answer[1])[b"cache-control"].startswith(b"private, ")
    await _ask(short, "/api/ads", [_tag("ads"), (b"authorization", b"Bearer eye")], method="HEAD")
    assert len(noted) == 2


async def test_paths_are_remembered_up_to_a_limit() -> None:
    """However many pages are asked for, and junk is not remembered at all."""
    short, _, services = _apps()
    for number in range(PATHS_MAX + 10):
        assert (await _ask(short, f"/api/league/s{number}/table", [_tag("league_table")]))[0] == 304
        services.documents.missing.add(f"league:table:x{number}")
        await _ask(short, f"/api/league/x{number}/table", [_tag("league_table")])
    assert 0 < len(short.short_cut._known) <= PATHS_MAX


_PATHS = st.sampled_from([path for path, _, _ in QUICK] + [path for _, path, _ in ASIDE])
_FIELDS = st.sampled_from(
    [
        *[_tag(kind) for _, kind, _ in QUICK],
        (b"if-none-match", b"*"),
        (b"if-none-match", b'"ads-7"'),
        (b"if-none-match", b'"x", W/"ads-7"'),
        (b"if-none-match", b"ads-7"),
        (b"if-none-match", b""),
        (b"accept-encoding", b"br"),
        (b"accept-encoding", b"identity;q=0"),
        (b"authorization", b"Bearer eye"),
        (b"authorization", b"bearer  ada-key "),
        (b"authorization", b"Basic eye"),
        (b"authorization", b""),
        (b"cache-control", b"no-cache"),
        (b"x-min-position", b""),
    ]
)


@given(
    path=_PATHS, fields=st.lists(_FIELDS, max_size=4), has_keys=st.booleans(), method=st.sampled_from(["GET", "HEAD"])
)
def test_both_ways_give_one_answer(path: str, fields: Headers, has_keys: bool, method: str) -> None:
    """Whatever is asked, status, headers and body are the same with the short cut and without."""
    short, usual = _BOTH[has_keys]

    async def both() -> list[Any]:
        return [await _ask(app, path, fields, method=method) for app in (short, usual)]

    answers = asyncio.run(both())
    assert answers[0] == answers[1]


_BOTH = {has_keys: _apps(KEYS if has_keys else None, f"both, {has_keys}")[:2] for has_keys in (False, True)}
