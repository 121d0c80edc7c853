"""Reads documents in separate processes (`connectors/documents/child.py`); their chunks wait in a file.

Invariant: reading any document fails alone: its processor time and memory are limited, and it delays nothing else. Neither the
document nor its chunks are ever complete in the memory of the calling process. Every format is read so, text too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any, Self

import orjson

from highwater.connectors.children import (
    EX_IOERR,
    NO_ROOM,
    ProcessorTimeError,
    StalledError,
    room_needed,
    while_working,
)
from highwater.schemas.errors import UnavailableError
from highwater.streams.documents.chunking import TOKENS_MAX, Block, Chunk, LeftOut
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.progress import WorkLimit

# Processor time: text of 50 MB takes 20 s, a PDF of a thousand pages of text 3 s. A busy machine does not stretch it. A short
# document has less, so that it costs its sender as much to hold a place as a long one: the first seconds, and more per MiB.
PROCESSOR_SECONDS_MAX = 120.0
PROCESSOR_SECONDS_FIRST, PROCESSOR_SECONDS_A_MIB = 15.0, 15.0
# A job's lease lasts longer (HIGHWATER_JOB_LEASE_SECONDS, ten minutes).
LIMIT = WorkLimit(quiet_seconds_max=30.0, total_seconds_max=480.0)
# Text of 50 MB, its parts and its chunks need half of it (530 MiB measured).
MEMORY_BYTES_MAX = 1 << 30
# Documents read concurrently by a process: others need cores too.
_AT_ONCE = 2

# Not `-m`: the package's other modules would be looked up from the working directory. The arguments are the channel, limits, and
# the parent's id.
_PROGRAM = "import sys; from highwater.connectors.documents.child import main; main(*map(int, sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked of a process: the first line of the file with the document.

    `is_block`: the blocks of a text in Markdown, else chunks. `is_text`: it is text in UTF-8, and no other format is looked
    for. `is_cut`: its end is missing.
    """

    media_type: str
    title: str = ""
    keeps_all: bool = False
    is_text: bool = False
    is_block: bool = False
    is_cut: bool = False


class Chunked:
    """The chunks of a document, and then the parts that are left out, in an unnamed temporary file.

    `left_out`: the numbers of those parts by reason.
    """

    def __init__(self, file: IO[bytes], count: int, left_out: Mapping[str, int]) -> None:
        self._file = file
        self._first = file.tell()
        self._next = 0
        self.count = count
        self.left_out = left_out

    def part(self, first: int, most: int) -> list[Chunk]:
        """Return up to `most` chunks from a number on; fast when they are read in order."""
        return [Chunk(*line) for line in self._lines(first, min(most, self.count - first))]

    def parts_left_out(self, most: int) -> list[tuple[str, str]]:
        """Return up to `most` parts of the document that are in no chunk, each with the reason (`LeftOut`) first."""
        return [(reason, text) for reason, text in self._lines(self.count, min(most, sum(self.left_out.values())))]

    def _lines(self, first: int, count: int) -> list[Any]:
        if first < self._next:
            self._file.seek(self._first)
            self._next = 0
        while self._next < first:
            self._file.readline()
            self._next += 1
        lines = [self._file.readline() for _ in range(count)]
        self._next += len(lines)
        return list(map(orjson.loads, lines))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Child:
    """A process that reads documents, one at a time."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.process = process
        self._channel = channel

    async def read(self, document: IO[bytes], parts: IO[bytes]) -> bool:
        """Let it read a document, and return whether it reads another one.

        Raises:
            UnreadableDocumentError: the process has ended.
            UnavailableError: there is no room for the chunks.
        """
        answer = b""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._channel, [b"."], [document.fileno(), parts.fileno()])
            answer = await asyncio.get_running_loop().sock_recv(self._channel, 1)
        if not answer:
            code = await self.process.wait()
            if code == EX_IOERR:
                raise UnavailableError(NO_ROOM)
            raise UnreadableDocumentError(f"the process that reads it failed (exit {code}); see the log")
        return answer == b"+"

    async def end(self) -> None:
        """Kill and reap it; it holds nothing."""
        self._channel.close()
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class DocumentReader:
    """Reads documents, a few concurrently. One event loop only.

    As a context manager it keeps the processes that read short texts: many documents are read one after the other, and a start
    takes longer than a page.
    """

    def __init__(
        self,
        *,
        tokens_max: int = TOKENS_MAX,
        processor_seconds_max: float = PROCESSOR_SECONDS_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._tokens_max = tokens_max
        self._processor_seconds_max = processor_seconds_max
        self._memory_bytes_max = memory_bytes_max
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._keeps = False
        self._idle: list[_Child] = []

    async def __aenter__(self) -> Self:
        self._keeps = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeps = False
        while self._idle:
            await self._idle.pop().end()

    async def read(
        self,
        stream: AsyncIterable[bytes] | bytes | str,
        media_type: str,
        *,
        title: str = "",
        keeps_all: bool = False,
    ) -> Chunked:
        """Return the chunks of a document; the caller closes them.

        `stream`: its bytes, or a text, which is not decoded. `title`: stands above all its headings. `keeps_all`: nothing is
        left out of the chunks.

        Raises:
            UnreadableDocumentError: it cannot be read within the limits, or has no text.
            UnavailableError: the folder of temporary files is full.
        """
        request = _Request(media_type, title, keeps_all, is_text=isinstance(stream, str))
        chunks = await self._parts(stream, request)
        return Chunked(chunks, *_counts(chunks))

    async def blocks(self, raw: bytes, media_type: str, *, is_cut: bool) -> list[Block]:
        """Return the blocks of a text in Markdown. `is_cut`: its end is missing.

        Raises:
            UnreadableDocumentError: it cannot be read within the limits, or is not text.
        """
        with await self._parts(raw, _Request(media_type, is_block=True, is_cut=is_cut)) as blocks:
            _counts(blocks)
            lines = await asyncio.to_thread(lambda: list(map(orjson.loads, blocks)))
        return [Block(text, heading, reason and LeftOut(reason)) for text, heading, reason in lines]

    async def _parts(self, stream: AsyncIterable[bytes] | bytes | str, request: _Request) -> IO[bytes]:
        async with self._slots:
            with room_needed(), tempfile.TemporaryFile(prefix="highwater-document-") as document:
                document.write(orjson.dumps(asdict(request)) + b"\n")
                async for content in _pieces(stream):
                    await asyncio.to_thread(document.write, content)
                bytes_sent = document.tell()
                document.seek(0)
                # Closed by the caller, or below.
                parts = tempfile.TemporaryFile(prefix="highwater-chunks-")  # noqa: SIM115
                try:
                    await self._run(document, parts, bytes_sent)
                except BaseException:
                    parts.close()
                    raise
                parts.seek(0)
                return parts

    async def _run(self, document: IO[bytes], parts: IO[bytes], size_bytes: int) -> None:
        child, reads_on = await self._take(), False
        own_seconds = PROCESSOR_SECONDS_FIRST + PROCESSOR_SECONDS_A_MIB * size_bytes / (1 << 20)
        try:
            exchange = child.read(document, parts)
            seconds_max = min(own_seconds, self._processor_seconds_max)
            reads_on = await while_working(child.process.pid, exchange, LIMIT, seconds_max)
        except (StalledError, ProcessorTimeError) as error:
            raise UnreadableDocumentError(f"reading it {error}") from error
        finally:
            if reads_on and self._keeps:
                self._idle.append(child)
            else:
                await child.end()

    async def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            await child.end()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _PROGRAM),
                *map(str, (theirs.fileno(), self._tokens_max, self._memory_bytes_max, os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        return _Child(process, ours)


async def _pieces(stream: AsyncIterable[bytes] | bytes | str) -> AsyncIterator[bytes]:
    if isinstance(stream, str):
        yield stream.encode("utf-8", "surrogatepass")
    elif isinstance(stream, bytes):
        yield stream
    else:
        async for content in stream:
            yield content


def _counts(parts: IO[bytes]) -> tuple[int, Mapping[str, int]]:
    """Read the first line of what a process wrote: the number of parts, and of those that are left out by reason."""
    first = orjson.loads(parts.readline())
    if "unreadable" in first:
        parts.close()
        raise UnreadableDocumentError(first["unreadable"])
    return first["parts"], first["left_out"]
