"""TLS in front of servers without it: the bundled PostgreSQL is built without TLS, and a Redis of the system may be.

A relay listens at the clients' port, speaks TLS with them and passes the bytes on to the server's Unix socket, which is
in a folder that only the stack's owner may enter. Invariants: no unencrypted byte of a client reaches a server; a
refused client gets the reason in the server's own protocol. An unavailable server is a closed connection, as without a
relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
import threading
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path

from highwater.deploy.local.certificates import Certificates

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
# A client that opens a connection and sends nothing is cut off; a handshake takes milliseconds.
GREETING_SECONDS_MAX = 10.0
# The server's own limit is 200 (PostgreSQL) and 10,000 (Redis), so this limits nobody further.
CONNECTIONS_MAX = 500
# PostgreSQL's protocol (its manual, "Message Flow"): length, then one of these codes in place of a version.
_SSL_REQUEST = 80_877_103
_GSS_REQUEST = 80_877_104
_REQUEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Relayed:
    """One server behind the relay; `socket` is the path that it listens on."""

    name: str
    port: int
    socket: Path
    is_postgres: bool


class TlsRelay:
    """The relays of one stack, on an event loop in their own thread."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # services start concurrently
        self._servers: dict[str, asyncio.Server] = {}
        self._open: set[asyncio.Task[None]] = set()

    def serve(self, relayed: Relayed) -> None:
        """Listen for a server, also before it runs; a second call moves it to another port.

        Raises:
            OSError: the port is in use.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tls-relay", daemon=True)
                self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(relayed), self._loop).result()

    def stop(self) -> None:
        """End all connections and stop listening; it may serve again afterwards."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _listen(self, relayed: Relayed) -> None:
        before = self._servers.pop(relayed.name, None)
        if before is not None:
            before.close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        files = self._certificates
        context.load_cert_chain(files.certificate(relayed.name), files.key(relayed.name))

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
            return self._serve(relayed, context, reader, writer)

        if relayed.is_postgres:  # its clients request TLS unencrypted first; others begin with TLS
            opened = await asyncio.start_server(serve, HOST, relayed.port)
        else:
            opened = await asyncio.start_server(
                serve, HOST, relayed.port, ssl=context, ssl_handshake_timeout=GREETING_SECONDS_MAX
            )
        self._servers[relayed.name] = opened

    async def _end(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(
        self, relayed: Relayed, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) > CONNECTIONS_MAX:
                return
            if relayed.is_postgres:
                async with asyncio.timeout(GREETING_SECONDS_MAX):
                    if not await _asked_for_tls(reader, writer):
                        return
                    await writer.start_tls(context)
            await _relay(relayed.socket, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # either side disconnected, or the client does not speak TLS: its own library reports that
        finally:
            self._open.discard(task)
            writer.transport.abort()


async def _asked_for_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer the requests before PostgreSQL's own first message; return False for a client without TLS."""
    for _ in range(2):  # a client may request GSSAPI first
        request = await reader.read(_REQUEST_BYTES + 1)
        # Unencrypted bytes after the request would be mistaken for bytes from within TLS (CVE-2021-23214).
        if len(request) != _REQUEST_BYTES:
            break
        length, code = struct.unpack("!II", request)
        if length != _REQUEST_BYTES or code not in (_SSL_REQUEST, _GSS_REQUEST):
            break
        if code == _SSL_REQUEST:
            writer.transport.pause_reading()  # type: ignore[attr-defined] # until TLS reads; a socket's transport can
            writer.write(b"S")
            return True
        writer.write(b"N")
        await writer.drain()
    writer.write(_postgres_error("28000", "this server takes TLS connections only: add sslmode=verify-full"))
    await writer.drain()
    return False


def _postgres_error(state: str, message: str) -> bytes:
    fields = b"".join(
        kind + text.encode() + b"\0"
        for kind, text in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", state), (b"M", message))
    )
    return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"


async def _relay(socket: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes both ways until either side ends."""
    with _short(socket) as path:
        server_reader, server_writer = await asyncio.open_unix_connection(path, limit=CHUNK_BYTES)
    try:
        ways = [
            asyncio.create_task(_pass_on(reader, server_writer)),
            asyncio.create_task(_pass_on(server_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):  # the server's last bytes, such as why it ends, still reach the client
                await writer.drain()
                writer.close()
                await writer.wait_closed()
    finally:
        server_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


@contextlib.contextmanager
def _short(socket: Path) -> Iterator[str]:
    """Yield a path to a socket that is short enough for the kernel (107 bytes), however deep the data folder is."""
    folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        os.close(folder)
