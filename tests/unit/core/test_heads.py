"""HEAD is a GET whose answer has no content: for every route, also for one that streams without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse  # noqa: TID251 - of the library
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from highwater.api.core.heads import IS_HEAD, HeadAsGet

_ended: list[str] = []


async def _document(request: Request) -> Response:
    return JSONResponse({"method": request.method, "is_head": IS_HEAD in request.scope}, headers={"ETag": 'W/"1"'})


async def _stream(_request: Request) -> Response:
    async def forever() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b": heartbeat\n\n"
                await asyncio.sleep(0.01)
        finally:
            _ended.append("stream")

    return StreamingResponse(forever(), media_type="text/event-stream")


async def _failing(_request: Request) -> Response:
    raise OSError("no")


_ROUTES = [
    Route("/document", _document, methods=["GET"]),
    Route("/stream", _stream, methods=["GET"]),
    Route("/failing", _failing, methods=["GET"]),
    Route("/written", _document, methods=["POST"]),
]


async def _asked(method: str, path: str, app: Any = None) -> tuple[Scope, list[Message]]:
    """The scope afterwards, and the sent messages; the client stays."""
    sent: list[Message] = []
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(5):
        await (app or HeadAsGet(Starlette(routes=_ROUTES)))(scope, messages.get, send)
    return scope, sent


async def test_the_head_is_that_of_the_get() -> None:
    """The same status and fields, the length too; no content; the route saw a GET and can tell."""
    _, (start, body) = await _asked("GET", "/document")
    scope, (head, nothing) = await _asked("HEAD", "/document")
    assert head["status"] == start["status"] == 200
    lengths = [dict(message["headers"]).pop(b"content-length") for message in (start, head)]
    assert [int(one) for one in lengths] == [len(body["body"]), len(body["body"]) - len("false") + len("true")]
    assert (b"etag", b'W/"1"') in head["headers"]
    assert nothing == {"type": "http.response.body", "body": b"", "more_body": False}
    assert scope["method"] == "HEAD"


async def test_a_stream_ends_with_its_head() -> None:
    """A stream without an end is ended at once, as if the client had disconnected."""
    _ended.clear()
    _, sent = await _asked("HEAD", "/stream")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert _ended == ["stream"]


async def test_what_has_no_get_has_no_head() -> None:
    """405, as a GET is answered."""
    _, (head, nothing) = await _asked("HEAD", "/written")
    assert (head["status"], nothing["body"]) == (405, b"")


async def test_an_error_before_the_head_is_passed_on() -> None:
    """It is for those around to answer."""
    with pytest.raises(OSError, match="no"):
        await _asked("HEAD", "/failing", HeadAsGet(Starlette(routes=_ROUTES).router))


async def test_what_was_noted_inside_is_seen_around() -> None:
    """Middleware around it that counts and records requests finds route and caller in the scope."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        scope["route"] = "the route"
        await send({"type": "http.response.start", "status": 204, "headers": []})

    scope, _ = await _asked("HEAD", "/document", HeadAsGet(app))
    assert (scope["route"], scope["method"]) == ("the route", "HEAD")
