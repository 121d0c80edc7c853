"""The bounded HTTP client, against a server on loopback that redirects, trickles, compresses and never ends."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import httpx2
import pytest

from highwater.connectors.bounded import UnusableAnswerError, bounded_client
from highwater.connectors.models import embedding_service
from highwater.connectors.models.embedding_service import RemoteEmbedder
from highwater.schemas.errors import ModelUnavailableError
from highwater.streams.retry import RetryPolicy

Write = Callable[[bytes], Awaitable[None]]


class Server:
    """Answers every request in one way; keeps what it heard."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[bytes] = []
        self.serving: list[asyncio.Task[None]] = []
        self.answer: Callable[[Write], Awaitable[None]] = self.page

    async def page(self, write: Write) -> None:
        """A short answer."""
        await write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def redirect(self, write: Write) -> None:
        """To itself, under another path."""
        await write(
            f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {self.url}/steal\r\ncontent-length: 0\r\n\r\n".encode()
        )

    async def trickle(self, write: Write) -> None:
        """One byte at a time, without end: each restarts a limit on silence."""
        await write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await write(b"1\r\n \r\n")
            await asyncio.sleep(0.05)

    async def endless(self, write: Write) -> None:
        """As fast as it is read."""
        await write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")

    async def compressed(self, write: Write) -> None:
        """A thousand times as long as it says."""
        body = gzip.compress(b" " * 1_000_000)
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n"
        await write(head.encode() + body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.append(task)

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    self.heard.append(head.partition(b"\r\n")[0])
                    for line in head.splitlines():
                        if line.lower().startswith(b"content-length:"):
                            await reader.readexactly(int(line.partition(b":")[2]))
                    await self.answer(write)
        finally:
            writer.transport.abort()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """On a port of its own."""
    found = Server()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield found
    listening.close()
    for task in found.serving:
        task.cancel()
    await asyncio.gather(*found.serving, return_exceptions=True)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("trickle", httpx2.ReadTimeout), ("endless", UnusableAnswerError), ("compressed", UnusableAnswerError)],
)
async def test_an_answer_beyond_its_limits_ends_with_an_error(
    server: Server, kind: str, error: type[Exception]
) -> None:
    """Its time is that of the whole exchange, its size is counted as it comes."""
    server.answer = getattr(server, kind)
    async with bounded_client(server.url, seconds_max=0.4, bytes_max=1_000_000) as client:
        with pytest.raises(error):
            await client.get(server.url)


async def test_a_redirect_is_an_answer(server: Server) -> None:
    """The request goes to no other address."""
    server.answer = server.redirect
    async with bounded_client(server.url, seconds_max=5, bytes_max=100) as client:
        assert (await client.get(server.url)).status_code == 307
    assert server.heard == [b"GET / HTTP/1.1"]


@pytest.mark.parametrize("kind", ["redirect", "trickle", "endless", "compressed"])
async def test_texts_to_embed_go_to_the_service_alone(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect takes no text along, and an answer that does not end is a service that fails."""
    monkeypatch.setattr(embedding_service, "CALL_SECONDS_MAX", 0.5)
    monkeypatch.setattr(embedding_service, "MODEL_CALL", RetryPolicy(first_ms=10, most_ms=10, attempts_max=1))
    server.answer = getattr(server, kind)
    embedder = RemoteEmbedder(server.url, None, model="m", dimensions=4)
    async with embedder._client:
        with pytest.raises(ModelUnavailableError):
            await embedder.embed(["a private text"])
    assert {line.split()[1] for line in server.heard} == {b"/embeddings"}


@pytest.mark.parametrize(
    ("proxies", "has_one"), [({}, False), ({"http_proxy": "{}"}, True), ({"http_proxy": "{}", "no_proxy": "*"}, False)]
)
async def test_the_proxy_of_the_environment_is_used(
    server: Server, proxies: dict[str, str], has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other programs use it, never for this machine; it is asked with the whole address."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value.format(server.url))
    address = "http://elsewhere.invalid/"
    async with bounded_client(address, seconds_max=5, bytes_max=100) as client:
        with suppress(httpx2.ConnectError):
            await client.get(address)
    assert server.heard == ([b"GET http://elsewhere.invalid/ HTTP/1.1"] if has_one else [])
    async with bounded_client(server.url, seconds_max=5, bytes_max=100) as client:
        await client.get(f"{server.url}/here")
    assert server.heard[-1] == b"GET /here HTTP/1.1"
