"""Connections under limits, over real sockets: large, slow or surplus ones are closed, and take no memory."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from highwater.api.app import Server, server_of
from highwater.api.core.protocol import Limits
from highwater.streams.settings import Settings
from tests.integration.api_server import wait_until

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
# Long enough for a busy machine to answer in, short enough to wait for.
SECONDS = 1.0
LIMITS = Limits(header_seconds_max=SECONDS, body_window_seconds=SECONDS, write_seconds_max=SECONDS)
MIB = 1024 * 1024


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body, `/large` with more than anybody's buffers hold, and a socket with what it hears."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    if scope["type"] == "websocket":
        await _echo(receive, send)
        return
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message["body"]), message["more_body"]
    body = b"%d" % length if scope["path"] != "/large" else b"x" * 64 * MIB
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(len(message.get("text") or message.get("bytes") or b""))})


@dataclass
class Served:
    """The application on a port of this machine."""

    server: Server
    port: int

    @property
    def held(self) -> int:
        """Connections that are counted."""
        return len(self.server.config.counted)  # type: ignore[attr-defined]

    def open(self, first: bytes = b"") -> socket.socket:
        """A connection that has sent something."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        found.sendall(first)
        return found


@contextlib.contextmanager
def serving(settings: Settings | None = None, limits: Limits = LIMITS) -> Iterator[Served]:
    """Serve until the block ends."""
    server = server_of(application, "127.0.0.1", 0, settings=settings, limits=limits)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server starts")
        yield Served(server, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One for all tests that leave nothing behind."""
    with serving() as found:
        yield found


def answer(connection: socket.socket) -> bytes:
    """Everything that comes until the other side ends."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            found += piece
    connection.close()
    return found


def status(found: bytes) -> int:
    """The status of the first answer; 0: there is none."""
    return int(found.split(b" ", 2)[1]) if found else 0


def rss_bytes() -> int:
    """Memory of this process, in which the server runs."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no file
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize(
    "first",
    [
        REQUEST + b"X: ",
        b"GET /",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=",
    ],
    ids=["field", "target", "trailer", "extension"],
)
def test_150_mb_that_are_no_body_take_no_memory(served: Served, first: bytes):
    """The connection is refused after 64 KiB; what still comes is dropped, and then it ends."""
    before, connection = rss_bytes(), served.open(first)
    piece = b"x" * MIB
    with contextlib.suppress(ConnectionError):
        for _ in range(150):
            connection.sendall(piece)
    answer(connection)
    assert rss_bytes() - before < 20 * MIB
    wait_until(lambda: served.held == 0, "nothing is held")


@pytest.mark.parametrize(("length", "expected"), [(60_000, 200), (70_000, 431)])
@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_fields_have_64_kib(served: Served, length: int, expected: int, is_in_pieces: bool):
    """However they come; the refusal is a problem."""
    whole = REQUEST + b"Connection: close\r\nX: " + b"x" * length + b"\r\n\r\n"
    connection = served.open(b"" if is_in_pieces else whole)
    for place in range(0, len(whole) if is_in_pieces else 0, 9_000):
        with contextlib.suppress(ConnectionError):
            connection.sendall(whole[place : place + 9_000])
    found = answer(connection)
    assert status(found) == expected
    assert (b"application/problem+json" in found and b"nosniff" in found) == (expected == 431)


def test_a_body_in_the_same_piece_is_no_field(served: Served):
    """A request of 200 kB whose fields arrive with its body, or in two pieces with it, is taken."""
    head = POST + b"Connection: close\r\nContent-Length: 200000\r\n\r\n"
    assert answer(served.open(head + b"x" * 200_000)).endswith(b"\r\n\r\n200000")
    connection = served.open(head[:40])
    connection.sendall(head[40:] + b"x" * 200_000)
    assert answer(connection).endswith(b"\r\n\r\n200000")


def test_400_half_open_connections_end(served: Served):
    """Silent ones and those that stop within a field get 408, and nothing is left of them."""
    began = time.monotonic()
    half = [served.open(b"" if number % 2 else REQUEST + b"X: ") for number in range(400)]
    assert {status(answer(connection)) for connection in half} == {408}
    assert time.monotonic() - began >= SECONDS
    wait_until(lambda: served.held == 0, "nothing is held")


@pytest.mark.parametrize("then", [b"\r\n", b"GET / HT", POST + b"Content-Length: 10\r\n\r\nx", REQUEST + b"X"])
def test_a_connection_that_was_served_may_not_stand_either(served: Served, then: bytes):
    """After a request: an empty line, half a request, half a body."""
    connection = served.open(REQUEST + b"\r\n")
    assert status(connection.recv(65536)) == 200
    connection.sendall(then)
    assert status(answer(connection)) == 408


def test_a_slow_body_ends_and_a_steady_one_does_not(served: Served):
    """Half of what the slowest line brings holds nothing; a little more than it does, twice as long as the window, is enough."""
    drip = served.open(POST + b"Content-Length: 100000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(30):
            drip.sendall(b"x" * int(400 * SECONDS))
            time.sleep(SECONDS / 10)  # the pace of the client is tested
    assert select.select([drip], [], [], 0)[0]  # it was refused while it sent
    assert status(answer(drip)) == 408
    steady = served.open(POST + b"Connection: close\r\nContent-Length: 24000\r\n\r\n")
    for _ in range(20):
        steady.sendall(b"x" * 1_200)
        time.sleep(SECONDS / 10)
    assert answer(steady).endswith(b"\r\n\r\n24000")


def test_a_server_does_not_wait_for_what_it_refused():
    """It stops while a late body has its 408 and the client keeps the connection open."""
    with serving() as served:
        connection = served.open(POST + b"Content-Length: 1000\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 408"
    connection.close()


def test_who_does_not_read_is_cut_off(served: Served):
    """64 MiB are not kept for a client that asks for them and takes none."""
    connection = served.open(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: served.held == 1, "it is there")
    wait_until(lambda: served.held == 0, "it is cut off")
    connection.close()


def test_connections_have_a_number():
    """The numbers per address and in total are limited; the next one is refused, and a closed one frees its place."""
    settings = Settings(connections_max=8, connections_per_address_max=4)
    with serving(settings, Limits()) as served:
        held = [served.open() for _ in range(4)]
        wait_until(lambda: served.held == 4, "all are there")
        found = answer(served.open(REQUEST + b"\r\n"))
        assert status(found) in (0, 429)  # 0: the answer was overtaken by the end of unread data
        held.pop().close()
        wait_until(lambda: served.held == 3, "there is room")
        assert status(answer(served.open(REQUEST + b"Connection: close\r\n\r\n"))) == 200
        for connection in held:
            connection.close()


def test_what_is_no_http_is_told_so(served: Served):
    """400 as a problem, like every other error."""
    found = answer(served.open(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"))
    assert (status(found), b"application/problem+json" in found) == (400, True)


def test_a_socket_stands_longer_than_a_request_may(served: Served):
    """Its timeout ended with its handshake: a message a second later is answered, and no 408 comes between."""
    with connect(f"ws://127.0.0.1:{served.port}/") as connection:
        with pytest.raises(TimeoutError):
            connection.recv(2 * SECONDS)
        connection.send("still here")
        assert connection.recv(20) == "10"


@pytest.mark.parametrize(
    "send",
    [
        lambda socket: socket.send("x" * 70_000),
        lambda socket: socket.send("x" for _ in range(2_000)),
    ],
    ids=["bytes", "pieces"],
)
def test_a_message_of_a_socket_has_a_bound(served: Served, send: Callable[[Any], None]):
    """64 KiB and a thousand pieces; it is closed with 1009, which unread pieces may overtake, and released."""
    with connect(f"ws://127.0.0.1:{served.port}/", compression=None) as connection:
        connection.send("x" * 1000)
        assert connection.recv(20) == "1000"
        assert served.held == 1
        with contextlib.suppress(ConnectionClosed):
            send(connection)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(20)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    wait_until(lambda: served.held == 0, "nothing is held")
