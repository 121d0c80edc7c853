"""TCP proxies between roles and servers that cut, slow, block and delay connections.

Invariant: without a fault they forward every byte in order. Each fault is one that networks produce: no byte is
changed, and none is dropped from the middle of a live connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Self

from highwater.api.chaos.plan import Kind

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
# Delay of each piece of up to 64 KiB in either direction on a slow link: a link to another continent, and a few hundred
# KiB a second.
SLOW_SECONDS = 0.15
# The server's last bytes, such as why it ends, still reach the client.
LAST_WORDS_SECONDS = 1.0

Pump = asyncio.Task[None]


class Proxy:
    """The proxy of one server; it is controlled on the loop that serves it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._fault: Kind | None = None
        self._is_open = asyncio.Event()  # for what clients send
        self._is_answering = asyncio.Event()  # for what servers send
        self._is_open.set()
        self._is_answering.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        """Listen for clients, even while the server is unavailable."""
        self._server = await asyncio.start_server(self._serve, HOST, port)

    async def close(self) -> None:
        """End all connections, also accepted clients that have not started yet."""
        if self._server is not None:
            self._server.close()
        self._fault = Kind.CUT
        await asyncio.sleep(0)
        await self._reset_all()

    async def begin(self, fault: Kind) -> None:
        """Begin a network fault."""
        self._fault = fault
        if fault is Kind.CUT:
            await self._reset_all()
        if fault in (Kind.HALF_OPEN, Kind.LATE):
            self._is_open.clear()
        if fault is Kind.HALF_OPEN:
            self._is_answering.clear()

    async def end(self) -> None:
        """Forward normally again."""
        if self._fault is Kind.HALF_OPEN:  # the other end no longer knows these connections
            await self._reset_all()
        self._fault = None
        self._is_open.set()
        self._is_answering.set()

    async def _reset_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._fault is not Kind.CUT:
                await self._connect(reader, writer)
        except (OSError, TimeoutError):
            pass  # either side disconnected, as it may without a proxy
        except asyncio.CancelledError:
            pass  # reset, so it ends here; asyncio's streams would report a cancelled task as a failure
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, self._target_port, limit=CHUNK_BYTES)
        there: Pump = asyncio.create_task(self._pass_on(reader, server_writer, self._is_open))
        back: Pump = asyncio.create_task(self._pass_on(server_reader, writer, self._is_answering))
        try:
            # A client's bytes are delivered even after it has disconnected: this direction ends after its last byte.
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            server_writer.close()  # first, since the wait below may be cancelled too
            for way in (there, back):
                way.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._fault is Kind.SLOW:
                await asyncio.sleep(SLOW_SECONDS)
            await gate.wait()
            writer.write(data)
            await writer.drain()


class Proxies:
    """The proxies of one stack, on a loop in their own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: dict[str, Proxy] = {}

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all connections."""
        for proxy in self._proxies.values():
            self._on_loop(proxy.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, port: int, target_port: int) -> None:
        """Put a proxy at `port` in front of a server.

        Raises:
            OSError: the port is taken.
        """

        async def make() -> None:
            self._proxies[name] = Proxy(target_port)
            await self._proxies[name].listen(port)

        self._on_loop(make)

    def begin(self, name: str, fault: Kind) -> None:
        """Begin a network fault of one proxy."""
        self._on_loop(lambda: self._proxies[name].begin(fault))

    def end(self, name: str) -> None:
        """End the fault."""
        self._on_loop(self._proxies[name].end)

    def _on_loop(self, work: Callable[[], object]) -> None:
        async def done() -> None:
            await work()  # type: ignore[misc]

        asyncio.run_coroutine_threadsafe(done(), self._loop).result()
