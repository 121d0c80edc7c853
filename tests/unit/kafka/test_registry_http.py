"""Requests to the schema registry, by a server that hangs up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from highwater.connectors.kafka.registry_http import ask
from highwater.schemas.errors import UnavailableError
from highwater.streams.access import RegistryAccess

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"id": 7}'


@contextmanager
def registry(hangs_up: int) -> Iterator[RegistryAccess]:
    """A registry that closes this many connections before it answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for number in range(hangs_up + 1):
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    connection.recv(65_536)
                    if number == hangs_up:
                        connection.sendall(ANSWER)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield RegistryAccess.required(f"http://127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_registry_that_hangs_up_is_asked_again() -> None:
    """It has just started, or another takes its place."""
    with registry(hangs_up=2) as access:
        assert ask(access, "GET", "schemas/ids/7") == {"id": 7}


def test_one_that_always_hangs_up_does_not_answer() -> None:
    """After four attempts an error is raised."""
    with registry(hangs_up=9) as access, pytest.raises(UnavailableError, match="does not answer: Remote end closed"):
        ask(access, "GET", "schemas/ids/7")
