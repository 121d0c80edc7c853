"""Documents read in processes of their own (`connectors/documents/child.py`), and their chunks, which wait in a file.

Invariant: whatever a document is, reading it fails alone: it takes no more time and memory than it is given, and holds up
nobody. Neither the document nor its chunks are ever whole in the memory of the process that asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterable
from typing import IO

import orjson

from highwater.streams.documents.chunking import TOKENS_MAX, Chunk
from highwater.streams.documents.structure import UnreadableDocumentError

# Text of 50 MB takes 20 s of one core, a PDF of a thousand pages of text 3 s; the rest is for cores that others use too. A job's
# lease outlives it.
SECONDS_MAX = 120.0
# Text of 50 MB, its parts and its chunks take half of it (530 MiB measured).
MEMORY_BYTES_MAX = 1 << 30
# Documents read at once in a process: cores are for others too.
_AT_ONCE = 2

# Not `-m`: the package's other modules would be looked up from where the process was started.
# Its arguments are the kind of document and bounds.
_PROGRAM = (
    "import sys; from highwater.connectors.documents.child import main; main(sys.argv[1], *map(int, sys.argv[2:]))"
)


class Chunked:
    """The chunks of a document, in a file without a name."""

    def __init__(self, file: IO[bytes], count: int) -> None:
        self._file = file
        self._first = file.tell()
        self._next = 0
        self.count = count

    def part(self, first: int, most: int) -> list[Chunk]:
        """At most so many chunks from a number on; quick when they are asked for in order."""
        if first < self._next:
            self._file.seek(self._first)
            self._next = 0
        while self._next < min(first, self.count):
            self._file.readline()
            self._next += 1
        lines = [self._file.readline() for _ in range(min(most, self.count - self._next))]
        self._next += len(lines)
        return [Chunk(*orjson.loads(line)) for line in lines]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class DocumentReader:
    """Reads documents, a few at once. One event loop only."""

    def __init__(
        self,
        *,
        tokens_max: int = TOKENS_MAX,
        seconds_max: float = SECONDS_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._tokens_max = tokens_max
        self._seconds_max = seconds_max
        self._memory_bytes_max = memory_bytes_max
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def read(self, stream: AsyncIterable[bytes], media_type: str) -> Chunked:
        """The chunks of a document; whoever is given them closes them.

        Raises:
            UnreadableDocumentError: it cannot be read within the limits, or it has no text.
        """
        async with self._slots:
            with tempfile.TemporaryFile(prefix="highwater-document-") as document:
                async for content in stream:
                    await asyncio.to_thread(document.write, content)
                document.seek(0)
                # Closed by whoever is given it, or below.
                chunks = tempfile.TemporaryFile(prefix="highwater-chunks-")  # noqa: SIM115
                try:
                    await self._run(document, chunks, media_type)
                    return _chunked(chunks)
                except BaseException:
                    chunks.close()
                    raise

    async def _run(self, document: IO[bytes], chunks: IO[bytes], media_type: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", _PROGRAM, media_type, str(self._tokens_max), str(self._memory_bytes_max), str(os.getpid())),
            stdin=document,
            stdout=chunks,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            async with asyncio.timeout(self._seconds_max):
                code = await process.wait()
        except TimeoutError as error:
            raise UnreadableDocumentError(f"reading takes longer than {self._seconds_max:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if code != 0:
            raise UnreadableDocumentError(f"the process that reads it failed (exit {code}); see the log")


def _chunked(chunks: IO[bytes]) -> Chunked:
    chunks.seek(0)
    first = orjson.loads(chunks.readline())
    if "unreadable" in first:
        raise UnreadableDocumentError(first["unreadable"])
    return Chunked(chunks, first["chunks"])
