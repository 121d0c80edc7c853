"""Reads documents in separate processes (`connectors/documents/child.py`); their chunks wait in a file.

Invariant: reading any document fails alone: its processor time and memory are limited, and it delays nothing else. Neither the
document nor its chunks are ever complete in the memory of the calling process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterable, Mapping
from typing import IO, Any

import orjson

from highwater.connectors.children import ProcessorTimeError, StalledError, while_working
from highwater.streams.documents.chunking import TOKENS_MAX, Chunk
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.progress import WorkLimit

# Processor time: text of 50 MB takes 20 s, a PDF of a thousand pages of text 3 s. A busy machine does not stretch it.
PROCESSOR_SECONDS_MAX = 120.0
# A job's lease lasts longer (HIGHWATER_JOB_LEASE_SECONDS, ten minutes).
LIMIT = WorkLimit(quiet_seconds_max=30.0, total_seconds_max=480.0)
# Text of 50 MB, its parts and its chunks need half of it (530 MiB measured).
MEMORY_BYTES_MAX = 1 << 30
# Documents read concurrently by a process: others need cores too.
_AT_ONCE = 2

# Not `-m`: the package's other modules would be looked up from the working directory. The arguments are the media type, the
# title, limits, the parent's id, and whether nothing is left out.
_PROGRAM = (
    "import sys; from highwater.connectors.documents.child import main; main(*sys.argv[1:3], *map(int, sys.argv[3:]))"
)


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


class DocumentReader:
    """Reads documents, a few concurrently. One event loop only."""

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

    async def read(
        self, stream: AsyncIterable[bytes], media_type: str, *, title: str = "", keeps_all: bool = False
    ) -> Chunked:
        """Return the chunks of a document; the caller closes them.

        `title`: stands above all its headings. `keeps_all`: nothing is left out of the chunks.

        Raises:
            UnreadableDocumentError: it cannot be read within the limits, or has no text.
        """
        async with self._slots:
            with tempfile.TemporaryFile(prefix="highwater-document-") as document:
                async for content in stream:
                    await asyncio.to_thread(document.write, content)
                document.seek(0)
                # Closed by the caller, or below.
                chunks = tempfile.TemporaryFile(prefix="highwater-chunks-")  # noqa: SIM115
                try:
                    await self._run(document, chunks, (media_type, title), keeps_all=keeps_all)
                    return _chunked(chunks)
                except BaseException:
                    chunks.close()
                    raise

    async def _run(self, document: IO[bytes], chunks: IO[bytes], about: tuple[str, str], *, keeps_all: bool) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", _PROGRAM, *about),
            *map(str, (self._tokens_max, self._memory_bytes_max, os.getpid(), int(keeps_all))),
            stdin=document,
            stdout=chunks,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            code = await while_working(process.pid, process.wait(), LIMIT, self._processor_seconds_max)
        except (StalledError, ProcessorTimeError) as error:
            raise UnreadableDocumentError(f"reading it {error}") from error
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
    return Chunked(chunks, first["chunks"], first["left_out"])
