"""The proxies of `highwater chaos`: a wire while nothing is wrong, and each fault as a network makes it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from highwater.api.chaos.plan import Kind
from highwater.api.chaos.proxy import SLOW_SECONDS, Proxies

PATIENCE_SECONDS = 60.0
# Long enough that an answer of this machine would have come, were it not held.
HELD_SECONDS = 0.3


class Echo:
    """A server that answers with what it was sent; `seen` is what each of its connections has said."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        self.seen.append(b"")
        place = len(self.seen) - 1
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65_536):
                self.seen[place] += data
                connection.sendall(data)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """The server behind the proxy."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxied(echo: Echo) -> Iterator[tuple[Proxies, int]]:
    """The proxy, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Proxies() as proxies:
        proxies.add("echo", port, echo.port)
        yield proxies, port


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A client that waits for a minute at most."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
        yield client


def answered(client: socket.socket, said: bytes) -> bytes:
    """Return the answer."""
    client.sendall(said)
    found = b""
    while len(found) < len(said):
        data = client.recv(65_536)
        if not data:
            break
        found += data
    return found


def is_reset(port: int) -> bool:
    """Whether a new connection is ended without an answer."""
    with contextlib.suppress(ConnectionError), connected(port) as client:
        return answered(client, b"?") == b""
    return True


def test_a_wire_passes_every_byte_in_order(proxied: tuple[Proxies, int]):
    """A megabyte there and back."""
    said = bytes(range(256)) * 4096
    with connected(proxied[1]) as client:
        sending = threading.Thread(target=client.sendall, args=(said,))
        sending.start()
        found = b""
        while len(found) < len(said):
            found += client.recv(65_536)
        sending.join()
    assert found == said


def test_cut_connections_are_reset_and_new_ones_too(proxied: tuple[Proxies, int]):
    """Until the end."""
    proxies, port = proxied
    with connected(port) as client:
        assert answered(client, b"before") == b"before"
        proxies.begin("echo", Kind.CUT)
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
    assert is_reset(port)
    proxies.end("echo")
    with connected(port) as client:
        assert answered(client, b"after") == b"after"


def test_half_open_connections_carry_nothing_and_are_reset_in_the_end(proxied: tuple[Proxies, int], echo: Echo):
    """Data that was sent meanwhile never arrives."""
    proxies, port = proxied
    with connected(port) as client:
        assert answered(client, b"before") == b"before"
        proxies.begin("echo", Kind.HALF_OPEN)
        client.sendall(b"lost")
        client.settimeout(HELD_SECONDS)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENCE_SECONDS)
        proxies.end("echo")
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
    assert echo.seen == [b"before"]


def test_late_writes_arrive_also_from_clients_that_have_gone(proxied: tuple[Proxies, int], echo: Echo):
    """In the end, not before."""
    proxies, port = proxied
    proxies.begin("echo", Kind.LATE)
    with connected(port) as client:
        client.sendall(b"late")
    time.sleep(HELD_SECONDS)  # held data must not have arrived
    assert b"".join(echo.seen) == b""
    proxies.end("echo")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while b"".join(echo.seen) != b"late" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert b"".join(echo.seen) == b"late"


def test_slow_connections_are_late_and_whole(proxied: tuple[Proxies, int]):
    """In both directions."""
    proxies, port = proxied
    proxies.begin("echo", Kind.SLOW)
    began = time.monotonic()
    with connected(port) as client:
        assert answered(client, b"slowly") == b"slowly"
    assert time.monotonic() - began >= 2 * SLOW_SECONDS
    proxies.end("echo")
