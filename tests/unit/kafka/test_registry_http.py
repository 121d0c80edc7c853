"""Requests to the schema registry, by a server that hangs up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

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


@contextmanager
def sending_registry(answer: Iterator[bytes]) -> Iterator[RegistryAccess]:
    """One that sends these pieces to its only client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):  # the client ends it
                connection.recv(65_536)
                for piece in answer:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield RegistryAccess.required(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(10)
        assert not thread.is_alive()


def test_an_endless_answer_is_refused() -> None:
    """A process keeps no more of it than the limit."""
    endless = chain([b"HTTP/1.1 200 OK\r\n\r\n"], repeat(b" " * 65_536))
    with sending_registry(endless) as access, pytest.raises(UnavailableError, match="is longer than"):
        ask(access, "GET", "subjects")


def test_an_answer_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte begins the socket's own time limit again, in the fields of the answer too."""
    monkeypatch.setattr(registry_http, "ANSWER_SECONDS_MAX", 0.3)

    def trickle() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nX: "
        for _ in range(100):
            time.sleep(0.05)
            yield b"a"

    with sending_registry(trickle()) as access, pytest.raises(UnavailableError, match="no complete answer within"):
        ask(access, "GET", "subjects")


def test_nested_answers_are_no_answer() -> None:
    """A parser that gives up on nested brackets ends the request and not the role."""
    nested = b"[" * 200_000
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n"
    for status in (b"200 OK", b"500 Error"):
        with sending_registry(iter([head % (status, len(nested)) + nested])) as access, pytest.raises(UnavailableError):
            ask(access, "GET", "subjects")
