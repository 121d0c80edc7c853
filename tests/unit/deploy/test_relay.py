"""TLS in front of a server without it: which connections pass, which are refused, and what happens if the server is
unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from highwater.deploy.local.certificates import DAYS_VALID, SERVERS, Certificates, certificates_of
from highwater.deploy.local.relay import Relayed, TlsRelay

SSL_REQUEST = struct.pack("!II", 8, 80_877_103)
GSS_REQUEST = struct.pack("!II", 8, 80_877_104)
NOW = datetime.now(UTC)  # noqa: TID251 - the clock that TLS checks certificates by


class Echo:
    """A server on a Unix socket that answers with what it was sent; `seen` is all of it."""

    def __init__(self, path: Path) -> None:
        self.seen = b""
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client:
                    while data := client.recv(65_536):
                        self.seen += data
                        client.sendall(data)

    def close(self) -> None:
        """Accept no further connection."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Those of a stack."""
    return certificates_of(tmp_path, NOW)


@pytest.fixture
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Echo]:
    """The server behind the relay, its path as short as a kernel wants it."""
    server = Echo(tmp_path_factory.mktemp("e") / "s")
    yield server
    server.close()


@pytest.fixture
def port(certificates: Certificates, echo: Echo, request: pytest.FixtureRequest) -> Iterator[int]:
    """Where the relay listens; for PostgreSQL's clients, unless a test says otherwise."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    relay = TlsRelay(certificates)
    is_postgres = getattr(request, "param", "database") == "database"
    relay.serve(Relayed("database" if is_postgres else "redis", found, echo.path, is_postgres))
    yield found
    relay.stop()


def connected(port: int) -> socket.socket:
    """A connection in the clear."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def encrypted(plain: socket.socket, certificates: Certificates) -> ssl.SSLSocket:
    """The same connection, over TLS."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def published(client: socket.socket, length: int) -> bytes:
    """Read this many bytes, fewer if the connection ends earlier."""
    found = b""
    while len(found) < length and (data := client.recv(length - len(found))):
        found += data
    return found


@pytest.mark.parametrize("port", ["redis"], indirect=True)
async def test_bytes_pass_both_ways(port: int, certificates: Certificates):
    """A megabyte there and back, more than any buffer between holds; by one thread, since OpenSSL's connections bear no two."""
    sent = bytes(range(256)) * 4_096
    context = ssl.create_default_context(cafile=str(certificates.authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_what_is_sent_in_the_clear_reaches_nobody(port: int, echo: Echo):
    """The connection is closed, and the server never sees it."""
    with connected(port) as client:
        client.sendall(b"PING\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"+PONG" not in client.recv(1_000)
    assert echo.seen == b""


@pytest.mark.parametrize("before", [b"", GSS_REQUEST], ids=["tls", "gssapi first"])
def test_postgresqls_clients_ask_for_tls_first(port: int, certificates: Certificates, before: bytes):
    """The request is answered with S; one for GSSAPI before it with N."""
    with connected(port) as plain:
        if before:
            plain.sendall(before)
            assert published(plain, 1) == b"N"
        plain.sendall(SSL_REQUEST)
        assert published(plain, 1) == b"S"
        with encrypted(plain, certificates) as client:
            client.sendall(b"startup")
            assert published(client, 7) == b"startup"


@pytest.mark.parametrize(
    "first", [struct.pack("!II", 8, 196_608), SSL_REQUEST + b"SELECT 1"], ids=["clear", "smuggled"]
)
def test_a_client_without_tls_is_told(port: int, echo: Echo, first: bytes):
    """A first message in the clear, and bytes smuggled in behind the request for TLS: an error that says so."""
    with connected(port) as client:
        client.sendall(first)
        answer = client.recv(1_000)
    assert (answer[:1], b"C28000" in answer, b"sslmode=verify-full" in answer) == (b"E", True, True)
    assert echo.seen == b""


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_a_server_that_is_away_is_a_closed_connection(port: int, echo: Echo, certificates: Certificates):
    """As without a relay; once it is back it is served again."""
    echo.path.rename(echo.path.with_name("gone"))
    with encrypted(connected(port), certificates) as client, contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        assert client.recv(1) == b""
    echo.path.with_name("gone").rename(echo.path)
    with encrypted(connected(port), certificates) as client:
        client.sendall(b"again")
        assert published(client, 5) == b"again"


def test_a_set_of_certificates_is_kept_until_it_nears_its_end(tmp_path: Path):
    """A restart serves the same ones, so that clients still trust them; the authority's key is stored nowhere."""
    first = certificates_of(tmp_path, NOW)
    before = first.authority.read_bytes()
    assert before == certificates_of(tmp_path, NOW + timedelta(days=DAYS_VALID - 40)).authority.read_bytes()
    assert before != certificates_of(tmp_path, NOW + timedelta(days=DAYS_VALID - 20)).authority.read_bytes()
    assert {path.name for path in first.folder.iterdir()} == {
        "ca.pem",
        *(f"{server}.{kind}" for server in SERVERS for kind in ("crt", "key", "pem")),
    }
    (first.key("redis")).unlink()
    assert certificates_of(tmp_path, NOW).key("redis").is_file()


def test_a_server_is_certified_for_this_machine_alone(certificates: Certificates):
    """The loopback's names and addresses, and nothing that could certify others."""
    found = x509.load_pem_x509_certificate(certificates.certificate("kafka").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
