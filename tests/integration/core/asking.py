"""An application asked without a network: one request or one socket at a time, as a server hands it over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from typing import Any, NamedTuple
from urllib.parse import unquote

# Each call comes from an address of its own: wrong keys slow an address down.
_CALLS = itertools.count(1)
# Our closing codes are the HTTP status plus 4,000.
_CODES = range(4400, 4500)


class Answer(NamedTuple):
    """The status of an answer, or the status behind a socket's closing code (101: it was accepted); a stream has no body."""

    status: int
    body: bytes


async def ask(
    application: Any,
    method: str,
    path: str,
    *,
    query: str = "",
    token: str | None = None,
    body: bytes = b"",
    kind: str = "",
    **more: str,
) -> Answer:
    """One request; `_` in the name of a further header stands for `-`."""
    headers = [(b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    headers += [(b"content-type", kind.encode())] if kind else []
    return await _until_answered(application, {**_scope(path, query, token, headers), "method": method}, _Http(body))


async def connect(application: Any, path: str, *, query: str = "", token: str | None = None) -> Answer:
    """One socket, which sends `ping` and is closed."""
    return await _until_answered(
        application,
        {
            **_scope(path, query, token, [(b"host", b"127.0.0.1")]),
            "type": "websocket",
            "scheme": "ws",
            "subprotocols": [],
        },
        _Socket(),
    )


def _scope(path: str, query: str, token: str | None, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    sent = [*headers, (b"authorization", f"Bearer {token}".encode())] if token else headers
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "path": unquote(path),
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": sent,
        "client": (str(IPv4Address("10.0.0.0") + next(_CALLS)), 50_000), "server": ("127.0.0.1", 8080),
    }  # fmt: skip


class _Http:
    """The client's side of a request."""

    def __init__(self, body: bytes) -> None:
        self._heard = [{"type": "http.request", "body": body, "more_body": False}]
        self._status = 0
        self._body = b""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def receive(self) -> dict[str, Any]:
        """The body, and then nothing."""
        if self._heard:
            return self._heard.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: dict[str, Any]) -> None:
        """Note the answer; a stream is left as soon as it begins."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if any(name == b"content-type" and b"event-stream" in value for name, value in message["headers"]):
                self._end()
            return
        self._body += message.get("body", b"")
        if not message.get("more_body"):
            self._end()

    def _end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, self._body))


class _Socket:
    """The client's side of a socket."""

    def __init__(self) -> None:
        self._heard = [{"type": "websocket.receive", "text": '{"type":"ping"}'}, {"type": "websocket.connect"}]
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def receive(self) -> dict[str, Any]:
        """The handshake, a word, and then nothing."""
        if self._heard:
            return self._heard.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: dict[str, Any]) -> None:
        """Note whether it was sent a message, or closed."""
        if self.answer.done() or message["type"] == "websocket.accept":
            return
        if message["type"] == "websocket.send":
            self.answer.set_result(Answer(101, b""))
        elif message["type"] == "websocket.close":
            code = message.get("code", 1000)
            status = code - 4000 if code in _CODES else 101 if code == 1000 else 500
            self.answer.set_result(Answer(status, str(message.get("reason", "")).encode()))


async def _until_answered(application: Callable[..., Awaitable[None]], scope: Any, client: _Http | _Socket) -> Answer:
    serving = asyncio.ensure_future(application(scope, client.receive, client.send))
    try:
        await asyncio.wait([serving, client.answer], return_when=asyncio.FIRST_COMPLETED)
        if not client.answer.done():
            serving.result()
            raise AssertionError(f"{scope['path']} was not answered")
        return client.answer.result()
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
