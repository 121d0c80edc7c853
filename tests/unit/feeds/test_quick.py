"""The fast path of a connection answers feeds and clusters as the usual path does, to the same callers only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from highwater.api.feeds.quick import ShortFeeds
from highwater.connectors.redis.resource_cache import TRUSTED_MS, Head
from highwater.streams.telemetry import CONDITIONAL_GETS
from tests.unit.pages.apps import KEYS, Connection, ask, make_apps

NOW_MS = 1_000_000
KINDS = ("feed", "clusters")
HOST = b"Host: localhost\r\n"


class _Heads:
    """The heads in Redis: those of one user, good at `NOW_MS`."""

    def __init__(self) -> None:
        self.checked_ms = NOW_MS
        self.basis = 3
        self.asked: list[list[str]] = []

    async def heads(self, resources: Sequence[str]) -> list[Head | None]:
        return await self.ask_heads(resources)

    def ask_heads(self, resources: Sequence[str]) -> asyncio.Future[list[Head | None]]:
        self.asked.append(list(resources))
        future: asyncio.Future[list[Head | None]] = asyncio.get_running_loop().create_future()
        future.set_result([self._head(resource) for resource in resources])
        return future

    def _head(self, resource: str) -> Head | None:
        kind, _, user = resource.partition(":")
        if user != "ada":
            return None
        if kind == "clusters":
            return Head(3, "clusters-3", "feeds.rebuild-requested/0/3", self.checked_ms)
        return Head(7, "feed-7", "feeds.rebuild-requested/0/3", self.checked_ms, self.basis, NOW_MS + 1, NOW_MS - 1)


class _LeftError(Exception):
    """A request that the short ways have left."""


def _apps(keys: str | None = None) -> tuple[Any, Any, _Heads]:
    short, usual, services = make_apps(keys)
    services.cache, services.clock = _Heads(), lambda: NOW_MS
    for app in (short, usual):
        app.state.feeds = services
    short.short_feeds = ShortFeeds(services, services)
    return short, usual, services.cache


def _request(path: str, fields: Sequence[tuple[bytes, bytes]], method: str = "GET") -> bytes:
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), path.encode(), HOST, lines)


def _held(kind: str) -> tuple[bytes, bytes]:
    return (b"if-none-match", f'W/"{kind}-7", W/"{kind}-3"'.encode())


def _without_asgi(app: Any, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """A connection past which nothing of a request gets."""

    async def refuse(*_: Any) -> None:
        raise _LeftError

    monkeypatch.setattr(app, "traces", refuse)
    return Connection(app, is_ready=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_version_that_the_client_has_is_answered_as_ever(kind: str, method: str) -> None:
    """The same status and fields; asked for as often, and counted once each, whether the bytes came before or not."""
    short, usual, heads = _apps()
    path, fields = f"/api/users/ada/{kind}", [_held(kind)]
    status, expected, _ = await ask(usual, path, fields, method=method)
    connection = Connection(short, is_ready=True)
    counted = CONDITIONAL_GETS.labels(kind, "not_modified")
    before, heads.asked[:] = counted._value.get(), []
    for _ in range(3):
        found = await connection.send(_request(path, fields, method))
        line, *lines = found.removesuffix(b"\r\n\r\n").split(b"\r\n")
        told = sorted(tuple(one.split(b": ", 1)) for one in lines if not one.startswith((b"date:", b"x-request-id:")))
        assert (int(line.split()[1]), told) == (status, expected)
    assert status == 304
    assert counted._value.get() == before + 3
    assert heads.asked == [[f"{name}:ada" for name in (("feed", "clusters") if kind == "feed" else ("clusters",))]] * 3


@pytest.mark.parametrize("kind", KINDS)
async def test_asgi_has_no_part_in_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the bytes that came before, and for many in one piece."""
    short, _, _ = _apps()
    connection = _without_asgi(short, monkeypatch)
    same = _request(f"/api/users/ada/{kind}", [_held(kind)])
    first = await connection.send(same)
    assert first.startswith(b"HTTP/1.1 304")
    assert await connection.send(same, same, at_once=True) == first * 2
    assert connection.state.total_requests == 3


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/users/ada/feed", []),
        ("/api/users/ada/feed", [(b"if-none-match", b'"x"')]),
        ("/api/users/ada/feed?since=1", [_held("feed")]),
        ("/api/users/ada/feed", [_held("feed"), (b"x-min-position", b"feeds.insight-ingested/0/1")]),
        ("/api/users/ada/feed", [_held("feed"), _held("clusters")]),
        ("/api/users/%61da/feed", [_held("feed")]),
        ("/api/users/bob/feed", [(b"if-none-match", b"*")]),
        ("/api/users/ada/pending", [(b"if-none-match", b"*")]),
        ("/api/users/ada/feed", [_held("feed"), (b"traceparent", b"00-1-2-01")]),
    ],
)
async def test_whatever_takes_more_is_left_to_asgi(
    path: str, fields: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version, another one, a question, a position, two conditions, another spelling, no head, another page, a trace."""
    short, _, _ = _apps()
    connection = _without_asgi(short, monkeypatch)
    assert (await connection.send(_request(path, fields))).startswith(b"HTTP/1.1 500")


@pytest.mark.parametrize("what", ["untrusted", "rebuilt since"])
async def test_a_head_that_may_be_old_answers_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from PostgreSQL too long ago, or of clusters that have another version by now; also where it was good before."""
    short, _, heads = _apps()
    connection = _without_asgi(short, monkeypatch)
    same = _request("/api/users/ada/feed", [_held("feed")])
    assert (await connection.send(same)).startswith(b"HTTP/1.1 304")
    if what == "untrusted":
        heads.checked_ms = NOW_MS - TRUSTED_MS - 1
    else:
        heads.basis = 2
    assert (await connection.send(same)).startswith(b"HTTP/1.1 500")


async def test_a_page_is_shown_to_whom_it_belongs() -> None:
    """A key bound to another user is refused, and so is a request without a key; the owner's read is noted as activity."""
    short, _, _ = _apps(KEYS + ",viewer:bob-key:bob")
    noted: list[str | None] = []
    short.state.services.activity.note = lambda principal: noted.append(principal.user_id)
    connection = Connection(short, is_ready=True)
    expected = {b"ada-key": 304, b"eye": 304, b"bob-key": 403, b"nobody": 401}
    for token, status in [*expected.items()] * 3:
        fields = [_held("feed"), (b"authorization", b"Bearer " + token)]
        found = await connection.send(_request("/api/users/ada/feed", fields))
        assert int(found.split()[1]) == status, token
    assert noted.count("ada") == 3
    assert (await connection.send(_request("/api/users/ada/feed", [_held("feed")]))).startswith(b"HTTP/1.1 401")
