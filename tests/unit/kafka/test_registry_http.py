"""Requests to the schema registry, by a server that hangs up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from highwater.connectors.kafka import registry_http
from highwater.connectors.kafka.registry_http import RegistryConnection, ask
from highwater.schemas.errors import UnavailableError
from highwater.streams.access import RegistryAccess

KEPT = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"id": 7}'
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


@contextmanager
def keeping_registry(answers: int) -> Iterator[tuple[RegistryAccess, list[int]]]:
    """One that keeps a connection for this many answers, then closes it; and the answers of each connection so far."""
    given: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                given.append(0)
                with connection:
                    while given[-1] < answers and connection.recv(65_536):
                        given[-1] += 1
                        connection.sendall(KEPT)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield RegistryAccess.required(f"http://127.0.0.1:{server.getsockname()[1]}"), given
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_requests_share_a_connection() -> None:
    """A role that asks for sixty schemas connects once."""
    with keeping_registry(answers=100) as (access, given), RegistryConnection(access) as connection:
        assert [connection.ask("GET", f"schemas/ids/{number}") for number in range(60)] == [{"id": 7}] * 60
        assert given == [60]


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    """A registry may close a connection after any answer: the next request opens another, as often as that happens."""
    with keeping_registry(answers=2) as (access, given), RegistryConnection(access) as connection:
        assert [connection.ask("GET", "schemas/ids/7") for _ in range(9)] == [{"id": 7}] * 9
        assert given == [2, 2, 2, 2, 1]


@contextmanager
def silent_registry(answers: int) -> Iterator[tuple[RegistryAccess, list[int]]]:
    """One that answers this often on each connection and then keeps it open without a byte; the requests of each so far."""
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            number = len(asked) - 1
            with connection:
                while connection.recv(65_536):
                    asked[number] += 1
                    if asked[number] <= answers:
                        connection.sendall(KEPT)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                asked.append(0)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield RegistryAccess.required(f"http://127.0.0.1:{server.getsockname()[1]}"), asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_request_without_an_answer_on_a_kept_connection_is_repeated_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends in time, also if the new connection is silent."""
    monkeypatch.setattr(registry_http, "REQUEST_SECONDS", 0.2)
    with silent_registry(answers=1) as (access, asked), RegistryConnection(access) as connection:
        assert [connection.ask("GET", "schemas/ids/7") for _ in range(3)] == [{"id": 7}] * 3
        assert asked == [2, 2, 1]
    with silent_registry(answers=0) as (access, asked):
        with pytest.raises(UnavailableError, match="timed out"):
            ask(access, "GET", "schemas/ids/7")
        assert asked == [1]
