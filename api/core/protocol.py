"""How much and how long a connection may take before and while it is served: uvicorn's protocols under limits.

Laws. Nothing that a client sends before its request is complete is kept beyond a bound, nor waited for beyond a time; what the
application reads is bounded there. A connection that is refused is told why, is read no more than it takes to be told, and ends.
A request that arrives in one piece, as nearly all do, arms no timer and costs a comparison.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from highwater.api.core.connections import Connections
from highwater.api.core.policies import PLAIN
from highwater.streams.telemetry import CONNECTIONS_REFUSED, HTTP_REFUSED, get_log

# Pieces of one message of a socket; browsers send one. Empty pieces have no bytes that a limit of bytes would count.
_PIECES_MAX = 1_024
# Answers end with the connection: what a client still sends is read and dropped for so long, so that it sees the answer.
_LINGER_SECONDS = 1.0
# After the handshake of TLS, which has no other end than this, uvicorn's protocols begin.
TLS_HANDSHAKE_SECONDS = 10.0

_DETAILS = {
    HTTPStatus.BAD_REQUEST: "the request is not HTTP/1.1",
    HTTPStatus.REQUEST_TIMEOUT: "the request did not arrive in time",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the fields of the request are too large",
    HTTPStatus.SERVICE_UNAVAILABLE: "there are too many connections",
    HTTPStatus.TOO_MANY_REQUESTS: "there are too many connections from this address",
}
_log = get_log("api")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may take."""

    # All fields of a request with its target; browsers and proxies send 8 KiB at most.
    header_bytes_max: int = 64 * 1024
    # From the connection, or the first byte of a further request, to the end of the fields.
    header_seconds_max: float = 10.0
    # A body has to bring so much in each window, or its end: a modem does, somebody who holds connections open does not.
    body_window_seconds: float = 10.0
    body_bytes_per_second_min: int = 500
    # Who reads nothing at all for so long of an answer that waits is cut off.
    write_seconds_max: float = 30.0
    # Between two requests; browsers keep a connection for minutes, and a page asks again within seconds.
    keep_alive_seconds: int = 5


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings, and beside them what its protocols read here."""

    def __init__(self, app: Any, *, limits: Limits, connections: Connections, **named: Any) -> None:
        super().__init__(app, http=LimitedHttp, ws=LimitedSocket, timeout_keep_alive=limits.keep_alive_seconds, **named)
        self.limits = limits
        self.counted = connections


class Loop(uvloop.Loop):  # type: ignore[misc] # uvloop has no types
    """uvloop, whose servers wait for a handshake of TLS as long as for a request, and not for a minute."""

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.Server:
        """A server; uvicorn has no setting for this."""
        if named.get("ssl") is not None:
            named.setdefault("ssl_handshake_timeout", TLS_HANDSHAKE_SECONDS)
        server: asyncio.Server = await super().create_server(*arguments, **named)
        return server


class LimitedHttp(HttpToolsProtocol):
    """One connection that speaks HTTP/1.1."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = self.config.limits
        self._address: str | None = None  # while it is counted
        self._is_refused = False
        self._in_headers = True
        self._in_message = False
        self._refused_status: HTTPStatus | None = None  # decided within the parser, which has to return first
        self._chunk_bytes = 0
        self._header_bytes = 0  # arrived since the fields began: a little more than they are
        self._body_bytes = 0  # in this window
        self._has_body = False  # what arrived last
        self._unread_bytes = 0  # arrived since the last byte of a body: framing, trailers
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # -- the connection ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, or refuse it; then wait for a request."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        whose = self.config.counted.admit(address)
        if whose is not None:
            CONNECTIONS_REFUSED.labels(whose).inc()
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE if whose == "all" else HTTPStatus.TOO_MANY_REQUESTS)
            transport.close()  # nothing was read, and those that are too many are not kept a second longer
            return
        self._address = address
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand it over; it stays counted, and whoever has it now lets go of it."""
        if self._refused_status is not None:
            return
        self._stop_waiting()
        self._is_refused = True  # nothing of it is this protocol's any more, and no time of a request runs
        address, self._address = self._address, None
        super().handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if isinstance(socket, LimitedSocket) and address is not None:
            socket.counted_as(address)

    def _leave(self) -> None:
        if self._address is not None:
            self.config.counted.leave(self._address)
            self._address = None

    # -- what arrives ----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Give the parser what it may have."""
        if self._is_refused:
            return
        was_in_headers, was_in_message = self._in_headers, self._in_message
        self._chunk_bytes, self._has_body = len(data), False
        if was_in_headers:
            self._header_bytes += len(data)
            if was_in_message and self._header_bytes > self._limits.header_bytes_max:
                self._refuse_large(data)
                return
        super().data_received(data)
        if not self._in_message and not self._is_refused and self._refused_status is None:
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                return  # all of a request is there, and it is being answered
        self._check(len(data), is_continued=was_in_message and was_in_headers)

    def _check(self, arrived_bytes: int, *, is_continued: bool) -> None:
        """Judge where the parser stands; `is_continued`: it stood within the same fields before."""
        if self._refused_status is not None:
            self._refuse(self._refused_status)
        elif self._is_refused or self.parser is None:
            return
        elif self._in_headers:
            self._check_headers(is_continued=is_continued)
        elif self._in_message:
            self._check_body(arrived_bytes)

    def _refuse_large(self, data: bytes) -> None:
        """The fields are above the bound, unless they end in what has arrived and were below it: feed just as much as may be."""
        left = self._limits.header_bytes_max - (self._header_bytes - len(data))
        super().data_received(data[: max(left, 0)])
        if self._in_headers and not self._is_refused:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif not self._is_refused:
            rest = data[max(left, 0) :]
            if rest:
                self.data_received(rest)

    def _check_headers(self, *, is_continued: bool) -> None:
        if not self._in_message:
            # Between two requests uvicorn's own timer runs; empty lines have ended it.
            is_idle = self.cycle is None or self.cycle.response_complete
            if is_idle and self._timer is None and self.timeout_keep_alive_task is None:
                self._wait_for_headers()
            return
        if self._header_bytes > self._limits.header_bytes_max:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif not is_continued:
            self._wait_for_headers()

    def _check_body(self, arrived: int) -> None:
        self._unread_bytes = 0 if self._has_body else self._unread_bytes + arrived
        if self._unread_bytes > self._limits.header_bytes_max:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.body_window_seconds, self._on_window_end)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_headers = self._in_message = True
        self._header_bytes = self._chunk_bytes

    def on_headers_complete(self) -> None:
        """Its fields are there."""
        if (
            self._header_bytes > self._limits.header_bytes_max
            and self._exact_header_bytes() > self._limits.header_bytes_max
        ):
            self._refused_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return
        self._in_headers = False
        self._header_bytes = self._body_bytes = self._unread_bytes = 0
        if self._timer is not None:
            self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        if self._refused_status is None:
            self._body_bytes += len(body)
            self._has_body = True
            super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._in_message = False
        self._in_headers = True
        self._header_bytes = 0
        if self._timer is not None:
            self._stop_waiting()
        if self._refused_status is None:
            super().on_message_complete()

    def _exact_header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    # -- what does not arrive ----------------------------------------------------------------------------------------------------

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._limits.header_seconds_max, self._on_late_headers)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late_headers(self) -> None:
        self._timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _on_window_end(self) -> None:
        """Look at what a body brought in this window; where the application does not read, nobody is to blame but it."""
        self._timer = None
        wanted = self._limits.body_bytes_per_second_min * self._limits.body_window_seconds
        if self._body_bytes < wanted and not self.flow.read_paused:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
            return
        self._body_bytes = 0
        self._timer = self.loop.call_later(self._limits.body_window_seconds, self._on_window_end)

    # -- the end -----------------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, told as every other error is."""
        self._refuse(HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """The server stops: a connection with a request that has not come yet, or that was refused, ends now."""
        self._stop_waiting()
        if self._is_refused:
            self.transport.close()
        else:
            super().shutdown()

    def _refuse(self, status: HTTPStatus) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        HTTP_REFUSED.labels(int(status)).inc()
        is_answered = self._is_answered()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if is_answered:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write(_answer(status))
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _is_answered(self) -> bool:
        """Whether there is no room for an answer: one is being sent, or this request, whose body goes on, has had its own."""
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not (cycle.response_complete and self._in_headers)

    # -- what is not read --------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads more slowly than the application writes."""
        super().pause_writing()
        if self._write_timer is None:
            self._wait_for_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._stop_waiting_for_reader()

    def _wait_for_reader(self, left_bytes: int) -> None:
        self._write_timer = self.loop.call_later(self._limits.write_seconds_max, self._on_still_reader, left_bytes)

    def _on_still_reader(self, left_bytes: int) -> None:
        left_now_bytes = self.transport.get_write_buffer_size()
        if left_now_bytes >= left_bytes:
            self._write_timer = None
            self.transport.abort()
        else:
            self._wait_for_reader(left_now_bytes)

    def _stop_waiting_for_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _answer(status: HTTPStatus) -> bytes:
    document = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": _DETAILS[status]}
    body = orjson.dumps(document)
    fields = [
        *PLAIN,
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        fields.append((b"retry-after", b"5"))
    return b"".join(
        [STATUS_LINE[int(status)], *(name + b": " + value + b"\r\n" for name, value in fields), b"\r\n", body]
    )


class LimitedSocket(WebSocketsSansIOProtocol):
    """One connection that became a socket; `ws_max_size` bounds the bytes of a message, this its pieces."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._address: str | None = None

    def counted_as(self, address: str) -> None:
        """It goes on being counted under this address until it ends."""
        self._address = address

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        if self._address is not None:
            self.config.counted.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """A further piece of a message."""
        if self.close_sent:
            return
        if len(self.frames) >= _PIECES_MAX:
            self.conn.fail(1009, "a message of too many pieces")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
