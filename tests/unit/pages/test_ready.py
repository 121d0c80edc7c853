"""The fast path of a connection gives every byte of ASGI's answer: in order, within bounds, or not at all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.core.protocol import Limits
from highwater.api.core.ready import Fields
from highwater.api.core.ready_protocol import _AGAIN_BYTES_MAX, _AGAIN_MAX, AT_ONCE_MAX
from highwater.api.pages.shortcut import ShortCut
from highwater.streams.pages.refresh import Freshness
from highwater.streams.telemetry import CONDITIONAL_GETS
from highwater.streams.tracing import TRACER
from tests.unit.pages.apps import KEYS, QUICK, Connection, make_apps, remember

TABLE = b"/api/league/eng/table"
HELD = b'If-None-Match: W/"league_table-7"\r\n'
HOST = b"Host: localhost\r\n"
LIVE = ("/api/matches/live", "/api/league/eng/stats/live")
PATHS = [path for path, _, _ in QUICK if path not in LIVE]


def request(target: bytes, fields: bytes = b"", method: bytes = b"GET") -> bytes:
    """The bytes of a request."""
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, target, HOST, fields)


def connected(keys: str | None = None) -> tuple[Connection, Any]:
    """A connection that may answer by itself, to an application whose pages were read before; and what they are served from."""
    short, _, services = make_apps(keys)
    for path in (TABLE.decode(), *(path for path, _, _ in QUICK)):
        remember(short, path)
    return Connection(short, is_ready=True), services


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_page_in_memory_is_written_before_asgi(path: str, method: bytes) -> None:
    """With a body and without; and again when the same bytes come again: no cycle of ASGI was begun."""
    connection, _ = connected()
    kinds = ((b"200", b""), (b"304", b"If-None-Match: *\r\n"))
    first, *others = [
        [await connection.send(request(path.encode(), fields, method)) for _, fields in kinds] for _ in range(3)
    ]
    assert [answer.split(b" ", 2)[1] for answer in first] == [status for status, _ in kinds]
    assert others == [first] * 2
    assert all(answer.endswith(b"\r\n\r\n") for answer in first if method == b"HEAD")
    assert connection.protocol.cycle is None
    assert connection.state.total_requests == 6


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (TABLE, b"X-Min-Position: league.match-finalized/0/1\r\n"),
        (TABLE + b"?x", b""),
        (TABLE, b"Content-Length: 0\r\n"),
        (TABLE, b"Expect: 100-continue\r\n"),
        (TABLE, b"Connection: close\r\n"),
        (TABLE, b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
        (TABLE, b"traceparent: 00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01\r\n"),
        (TABLE, b"Host: localhost\r\n"),
        (LIVE[0].encode(), b""),
        (b"/api/matches/m-1", b""),
        (b"/healthz", b""),
    ],
)
async def test_in_doubt_it_is_left_to_asgi(target: bytes, fields: bytes) -> None:
    """Requests that wait, are counted first, have a body, end the connection, are traced or name an unknown page."""
    connection, _ = connected()
    assert (await connection.send(request(target, fields))).startswith(b"HTTP/1.1 ")
    assert connection.protocol.cycle is not None


async def test_a_page_that_memory_has_no_more_is_left_to_asgi() -> None:
    """The same bytes again, and meanwhile the page became stale, or requests are traced: decided for each answer."""
    connection, services = connected()
    same = request(TABLE, HELD)
    await connection.send(same)
    services.documents.freshness = Freshness.STALE
    assert b"x-stale: true" in await connection.send(same)
    assert connection.protocol.cycle is not None


async def test_a_key_that_was_withdrawn_opens_nothing() -> None:
    """The connection that used it sends the same bytes again: 401."""
    connection, services = connected(KEYS)
    same = request(TABLE, b"Authorization: Bearer eye\r\n")
    assert (await connection.send(same)).startswith(b"HTTP/1.1 200")
    first = connection.protocol.cycle
    assert (await connection.send(same, same)).count(b"HTTP/1.1 200") == 2
    assert connection.protocol.cycle is first  # it is proven by now
    services.authenticator._principals.clear()
    services.authenticator._key_file = type("Keys", (), {"find": lambda *_: None})()
    assert (await connection.send(same)).startswith(b"HTTP/1.1 401")


async def test_requests_are_traced_through_asgi(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a collector every read is checked."""
    connection, _ = connected()
    await connection.send(request(TABLE))
    monkeypatch.setattr(TRACER, "is_on", True)
    await connection.send(request(TABLE))
    assert connection.protocol.cycle is not None


async def test_one_piece_is_answered_up_to_a_bound_and_in_order() -> None:
    """Those beyond it take turns as tasks; each is answered once."""
    connection, _ = connected()
    number = AT_ONCE_MAX + 3
    tags = [request(TABLE, b'If-None-Match: "x"\r\n'), request(b"/api/ads", b"If-None-Match: *\r\n")]
    connection.protocol.data_received(b"".join(tags[place % 2] for place in range(number)))
    assert bytes(connection.wire.written).count(b"HTTP/1.1 ") == AT_ONCE_MAX
    await connection.rest()
    answers = re.findall(rb"HTTP/1.1 (\d+)", bytes(connection.wire.written))
    assert answers == [b"200" if place % 2 == 0 else b"304" for place in range(number)]


async def test_a_page_waits_for_the_answer_before_it() -> None:
    """A request that ASGI answers comes first, in one piece with one that memory has."""
    connection, _ = connected()
    found = await connection.send(request(b"/healthz") + request(TABLE, HELD), at_once=True)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"304"]


async def test_a_client_that_reads_nothing_gets_nothing_more() -> None:
    """While written bytes wait, answers wait in ASGI, and the connection holds no more of them."""
    connection, _ = connected()
    await connection.send(request(TABLE))
    connection.protocol.pause_writing()
    written = len(connection.wire.written)
    for _ in range(3):
        connection.protocol.data_received(request(TABLE))
    await asyncio.sleep(0)
    assert len(connection.wire.written) == written
    connection.protocol.resume_writing()
    await connection.rest()
    assert bytes(connection.wire.written[written:]).count(b"HTTP/1.1 200") == 3


async def test_a_fault_is_answered_by_asgi(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error is a 500 and not a 400, and the connection stays open."""
    connection, services = connected()

    def broken(_found: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(services.documents, "quick", broken)
    assert (await connection.send(request(TABLE))).startswith(b"HTTP/1.1 500")


async def test_a_stop_ends_a_connection_that_was_answered() -> None:
    """It waits for nothing."""
    connection, _ = connected()
    await connection.send(request(TABLE))
    connection.protocol.shutdown()
    assert connection.wire.is_closed


async def test_answers_are_counted() -> None:
    """One by one, as they are through ASGI (`test_shortcut.py` compares all of them)."""
    connection, _ = connected()
    counted = CONDITIONAL_GETS.labels("league_table", "not_modified")
    before = counted._value.get()
    for _ in range(5):
        await connection.send(request(TABLE, HELD))
    assert counted._value.get() == before + 5


async def test_requests_are_kept_up_to_a_bound() -> None:
    """A few per connection, and none that is long; each request is still answered."""
    connection, _ = connected()
    for number in range(3 * _AGAIN_MAX):
        await connection.send(request(TABLE, b"X: %d\r\n" % number))
        assert 0 < len(connection.protocol._again) <= _AGAIN_MAX
    long = request(TABLE, b"X: " + b"x" * _AGAIN_BYTES_MAX + b"\r\n")
    assert (await connection.send(long, long)).count(b"HTTP/1.1 200") == 2
    assert long not in connection.protocol._again
    assert connection.protocol.cycle is None


class _Timers:
    """The event loop, with the time and the timers that the test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = 100.0
        self.timers: dict[object, tuple[float, Callable[..., None], tuple[Any, ...]]] = {}
        self.create_task = loop.create_task

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> Any:
        timers = self.timers

        class Handle:
            def cancel(self) -> None:
                timers.pop(self, None)

        handle = Handle()
        timers[handle] = (self.now + seconds, callback, arguments)
        return handle

    def move(self, seconds: float) -> None:
        self.now += seconds
        for handle, (at, callback, arguments) in list(self.timers.items()):
            if at <= self.now:
                self.timers.pop(handle, None)
                callback(*arguments)


async def test_a_connection_is_kept_as_long_after_each_answer() -> None:
    """Five seconds after the last one it ends, however it was answered; nothing ends while ASGI answers."""
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    for _ in range(4):
        await connection.send(request(TABLE, HELD))
        loop.move(3)
    loop.move(1.9)
    assert not connection.wire.is_closed
    loop.move(0.2)
    assert connection.wire.is_closed


async def test_no_timer_runs_while_asgi_answers() -> None:
    """A page and a slow answer in one piece: a stream behind a page is not cut."""
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    await connection.send(request(TABLE, HELD))
    connection.protocol.data_received(request(TABLE, HELD) + request(b"/healthz"))
    assert loop.timers == {}
    await connection.rest()
    assert len(loop.timers) == 1


async def test_what_follows_a_page_is_refused_as_ever() -> None:
    """Fields that are too large in one piece with a page: the page, then 431, and the connection ends."""
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    large = b"X: " + b"x" * Limits().header_bytes_max + b"\r\n"
    found = await connection.send(request(TABLE, HELD) + request(TABLE, large))
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"304", b"431"]
    loop.move(2)
    assert connection.wire.is_closed


@pytest.mark.parametrize("target", [b"/healthz", TABLE, LIVE[0].encode()])
async def test_a_refusal_follows_the_answers_before_it(target: bytes) -> None:
    """Requests followed by invalid HTTP in one piece: their answers come in order, from either server, then 400, and nothing
    more.
    """
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    found = await connection.send(request(target) * 3 + b"\x00garbage\r\n\r\n" + request(target), at_once=True)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200"] * 3 + [b"400"]
    assert await connection.send(request(target)) == b""
    loop.move(2)
    assert connection.wire.is_closed


async def test_a_refused_body_has_no_answer_but_that() -> None:
    """Invalid HTTP behind a waiting request: the first is answered, the second is refused, and nothing else is sent."""
    connection, _ = connected()
    body = b"POST /api/ads HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    found = await connection.send(request(b"/healthz") + body, at_once=True)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"400"]


async def test_a_live_page_is_written_without_asgi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its call is counted; again when the same bytes come again, each counted."""
    connection, services = connected()

    async def refuse(*_: Any) -> None:
        raise AssertionError("left to ASGI")

    monkeypatch.setattr(connection.protocol.app, "traces", refuse)
    same = request(LIVE[0].encode(), b"If-None-Match: *\r\n")
    first = await connection.send(same)
    assert first.startswith(b"HTTP/1.1 304")
    assert [await connection.send(same) for _ in range(3)] == [first] * 3
    assert services.rate_limiter.counted == 4
    assert connection.state.total_requests == 4


async def test_what_comes_while_a_page_is_counted_waits() -> None:
    """The same bytes, and another request in one piece with them: answered in order, each counted once."""
    connection, services = connected()
    live, page = request(LIVE[0].encode(), b"If-None-Match: *\r\n"), request(TABLE)
    await connection.send(live)
    found = await connection.send(live, page, live + page, at_once=True)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"304", b"200", b"304", b"200"]
    assert services.rate_limiter.counted == 3


@pytest.mark.parametrize("has_come_before", [False, True])
async def test_a_call_too_many_is_refused_and_counted_once(has_come_before: bool) -> None:
    """ASGI answers, and does not count it again; the connection stays open."""
    connection, services = connected()
    live = request(LIVE[0].encode())
    if has_come_before:
        await connection.send(live)
    services.rate_limiter.is_full, services.rate_limiter.counted = True, 0
    assert (await connection.send(live)).startswith(b"HTTP/1.1 429")
    services.rate_limiter.is_full = False
    assert (await connection.send(live)).startswith(b"HTTP/1.1 200")
    assert services.rate_limiter.counted == 2


@pytest.mark.parametrize("has_come_before", [False, True])
async def test_a_stop_waits_for_what_is_counted(has_come_before: bool) -> None:
    """The answer is written, then the connection ends."""
    connection, _ = connected()
    live = request(LIVE[0].encode())
    if has_come_before:
        await connection.send(live)
    before = len(connection.wire.written)
    connection.protocol.data_received(live)
    connection.protocol.shutdown()
    assert not connection.wire.is_closed
    await connection.rest()
    assert bytes(connection.wire.written[before:]).startswith(b"HTTP/1.1 200")
    assert connection.wire.is_closed


async def test_who_goes_while_a_page_is_counted_gets_nothing() -> None:
    """The count stands, and nothing fails."""
    connection, services = connected()
    live = request(LIVE[0].encode())
    for _ in range(2):
        await connection.send(live)
    before = len(connection.wire.written)
    connection.protocol.data_received(live)
    connection.wire.close()
    await connection.end()
    assert (len(connection.wire.written), services.rate_limiter.counted) == (before, 3)


async def test_a_socket_behind_a_page_is_not_ended() -> None:
    """The connection that became a socket in one piece with a page has no timer of requests any more."""
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    upgrade = (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    connection.protocol.data_received(request(TABLE, HELD) + request(b"/api/jobs/stream", upgrade))
    assert connection.wire.protocol is not connection.protocol
    assert loop.timers == {}


async def test_the_rest_of_a_request_has_its_time() -> None:
    """A page and half a request in one piece: the half is waited for, then the connection ends."""
    connection, _ = connected()
    loop = connection.protocol.loop = _Timers(asyncio.get_running_loop())
    await connection.send(request(TABLE, HELD))
    loop.move(3)
    await connection.send(request(TABLE, HELD) + b"GET /api/ads HTTP/1.1\r\n")
    loop.move(4)
    assert not connection.wire.is_closed
    loop.move(7)
    assert connection.wire.is_closed


def test_fields_follow_the_servers_own() -> None:
    """The date changes each second; a value that may not be sent is never sent."""
    fields = Fields(HTTPStatus.OK, [(b"a", b"b")])
    first = [(b"date", b"1")]
    assert fields.encoded(first) == b"HTTP/1.1 200 OK\r\ndate: 1\r\na: b\r\n\r\n"
    assert fields.encoded(first) is fields.encoded(first)
    assert fields.encoded([(b"date", b"2")]) == b"HTTP/1.1 200 OK\r\ndate: 2\r\na: b\r\n\r\n"
    with pytest.raises(ValueError, match="control character"):
        Fields(HTTPStatus.OK, [(b"a", b"b\r\nc: d")]).encoded(first)


# -- any bytes at all -----------------------------------------------------------------------------------------------------

_TARGETS = st.sampled_from(
    [
        *([path.encode() for path in (*PATHS[:4], *LIVE)] * 3),
        *(
            TABLE + b"?x=1",
            TABLE + b"?",
            TABLE + b"#x",
            b"http://localhost" + TABLE,
            b"/" + TABLE,
            TABLE + b"/",
            b"*",
            b"/",
        ),
        *(
            b"/api/league/%65ng/table",
            b"/api/league/eng/table%00",
            b"/api/league/%ff/table",
            b"/api/users/ada/achievements",
        ),
        b"/healthz",
    ]
)
_LINES = st.sampled_from(
    [
        *([HELD, b"If-None-Match: *\r\n", b'IF-NONE-MATCH:W/"x", "league_table-7"  \r\n'] * 3),
        *(b"Accept-Encoding: gzip, br\r\n", b"accept-encoding: identity;q=0\r\n", b"Accept-Encoding: \r\n"),
        *(
            b"Authorization: Bearer eye\r\n",
            b"Authorization: bearer  ada-key \r\n",
            b"Authorization: Bearer nobody\r\n",
        ),
        *(b"Connection: keep-alive\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
        *(b"Expect: 100-continue\r\n", b"Content-Length: 0\r\n", b"Content-Length: 3\r\n", b"Content-Length: x\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"X-Min-Position: \r\n"),
        *(
            b"Host: elsewhere.example\r\n",
            b"Host: localhost:1\r\n",
            b"Origin: https://a.example\r\n",
            b"Cookie: a=b\r\n",
        ),
        *(
            b"X-Forwarded-For: 192.0.2.9\r\n",
            b"traceparent: 00-1-2-01\r\n",
            b"tracestate: a=b\r\n",
            b"X-Max-Wait-Ms: 1\r\n",
        ),
        *(
            b"X: \xff\x80\r\n",
            b"X: a\x00b\r\n",
            b"Bad Name: x\r\n",
            b" folded\r\n",
            b"X:\tx\t\r\n",
            b": x\r\n",
            b"X: y\n",
        ),
    ]
)
_BODIES = st.sampled_from([b"", b"", b"", b"abc", b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", b"\r\n", b"\r"])


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from([b"GET"] * 6 + [b"HEAD", b"HEAD", b"POST", b"OPTIONS", b"get", b"DELETE", b"G\x00T"]))
    version = draw(st.sampled_from([b"HTTP/1.1"] * 12 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b""]))
    host = draw(st.sampled_from([HOST] * 8 + [b""]))
    lines = b"".join(draw(st.lists(_LINES, max_size=3)))
    found = b"%b %b %b\r\n%b%b\r\n" % (method, draw(_TARGETS), version, host, lines)
    return (found + draw(_BODIES)) * draw(st.sampled_from([1, 1, 1, 2, 3]))


@st.composite
def _pieces(draw: st.DrawFn) -> list[bytes]:
    """Requests one by one, or all of them cut anywhere."""
    requests = draw(st.lists(_requests(), min_size=1, max_size=5))
    if draw(st.booleans()):
        return [*requests, *draw(st.sampled_from([[], requests]))]
    whole = b"".join(requests)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def _two(keys: str | None, name: str) -> tuple[Any, Any]:
    """Two applications with the short cut that share nothing, and have the same pages."""
    found = []
    for number in range(2):
        app, _, services = make_apps(keys, f"{name} {number}")
        assert isinstance(app.short_cut, ShortCut)
        found.append((app, services))
    return found[0], found[1]


@pytest.fixture(scope="module")
def both() -> dict[bool, tuple[Any, Any]]:
    """With keys and without."""
    return {has_keys: _two(KEYS if has_keys else None, f"ready, {has_keys}") for has_keys in (False, True)}


@given(
    pieces=_pieces(),
    has_keys=st.booleans(),
    at_once=st.booleans(),
    freshness=st.sampled_from([*[Freshness.FRESH] * 4, Freshness.STALE]),
)
def test_any_bytes_are_answered_alike(
    both: dict[bool, tuple[Any, Any]], pieces: list[bytes], has_keys: bool, at_once: bool, freshness: Freshness
) -> None:
    """For any bytes in any pieces: the same answer, the same end of the connection, apart from the id of the request."""

    async def answered(place: int) -> tuple[bytes, bool]:
        app, services = both[has_keys][place]
        services.documents.freshness = freshness
        for path, _, _ in QUICK:
            remember(app, path)
        connection = Connection(app, is_ready=place == 0)
        found = await connection.send(*pieces, at_once=at_once)
        is_closed = connection.wire.is_closed
        await connection.end()
        return re.sub(rb"[0-9a-f]{32}|[0-9a-f-]{36}", b"ID", found), is_closed

    ready, usual = (asyncio.run(answered(place)) for place in range(2))
    assert ready == usual
