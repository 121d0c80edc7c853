"""TCP proxies between roles and servers that cut, slow, hold and delay what passes.

Invariant: while nothing is wrong they pass on every byte in order. Each fault is one that a network makes: no byte is changed,
and none is left out of the middle of a connection that goes on.
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
# How late each piece of up to 64 KiB is in either direction while a link is slow: a link to another continent, and a few
# hundred KiB a second.
SLOW_SECONDS = 0.15
# What the server said last, such as why it ends, still reaches the client.
LAST_WORDS_SECONDS = 1.0

Pump = asyncio.Task[None]


class Proxy:
    """One server's proxy; all that is done to it is done on the loop that serves it."""

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
        """Listen for clients, also while the server is not there."""
        self._server = await asyncio.start_server(self._serve, HOST, port)

    async def close(self) -> None:
        """End everything, also clients that were let in and have not begun yet."""
        if self._server is not None:
            self._server.close()
        self._fault = Kind.CUT
        await asyncio.sleep(0)
        await self._reset_all()

    async def begin(self, fault: Kind) -> None:
        """Make a fault of the network."""
        self._fault = fault
        if fault is Kind.CUT:
            await self._reset_all()
        if fault in (Kind.HALF_OPEN, Kind.LATE):
            self._is_open.clear()
        if fault is Kind.HALF_OPEN:
            self._is_answering.clear()

    async def end(self) -> None:
        """Be a wire again."""
        if self._fault is Kind.HALF_OPEN:  # the other end has forgotten these connections
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
            pass  # either side went away, as it does without a proxy
        except asyncio.CancelledError:
            pass  # it was reset, and ends here; asyncio's streams would call a cancelled one a failure
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, self._target_port, limit=CHUNK_BYTES)
        there: Pump = asyncio.create_task(self._pass_on(reader, server_writer, self._is_open))
        back: Pump = asyncio.create_task(self._pass_on(server_reader, writer, self._is_answering))
        try:
            # What a client has sent is delivered also when it has gone: its way ends by itself, behind its last byte.
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            server_writer.close()  # first: the wait below may be cancelled in its turn
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
    """The proxies of one stack, on a loop in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: dict[str, Proxy] = {}

    def __enter__(self) -> Self:
        """Begin to serve."""
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
        """Make a fault of one of them."""
        self._on_loop(lambda: self._proxies[name].begin(fault))

    def end(self, name: str) -> None:
        """End it."""
        self._on_loop(self._proxies[name].end)

    def _on_loop(self, work: Callable[[], object]) -> None:
        async def done() -> None:
            await work()  # type: ignore[misc]

        asyncio.run_coroutine_threadsafe(done(), self._loop).result()
