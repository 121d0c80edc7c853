"""Documents of an external source as events of chunks: cut by their structure, each source with a correct end event.

Invariant: an end says `full` only if that was requested and everything of the source was published; if something was
left out, cut off or refused it says `truncated`, and then nothing becomes an orphan (R3.20). An unreadable document is
a fault with its name, affects no other and ends nothing: its stored chunks stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from highwater.connectors.documents.reading import DocumentReader
from highwater.schemas.chunks import ChunkSubmitted, IngestFinished
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import TS_MS_MAX, TS_MS_MIN
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.validation import check_chunks_event
from highwater.streams.clock import Clock
from highwater.streams.documents.chunking import Chunk
from highwater.streams.documents.decoding import UnreadableDocumentError, clean

CHUNK_SUBMITTED, INGEST_FINISHED = "chunks.chunk-submitted", "chunks.ingest-finished"
# Larger files are not documents, and each is held in memory while it is read.
DOCUMENT_BYTES_MAX = 64 << 20
# Documents read ahead while one is processed: the reader works on two at once, and their order stays.
_AHEAD = 4
# Chunks read from a document's file at once.
_PART = 500


class SourceDocument(NamedTuple):
    """A document, as a file or as text. A separate title is placed above all its headings."""

    source_id: str
    raw: bytes | str
    media_type: str
    title: str | None = None
    url: str | None = None
    published_at: int | None = None


class Piece(NamedTuple):
    """One chunk that was cut elsewhere; others of its source may come at any time. `number` is its line."""

    number: int
    fields: Mapping[str, Any]


class Fault(NamedTuple):
    """An unreadable item, and why. `source_id`: its source; None if that is unknown."""

    where: str
    why: str
    source_id: str | None = None


class Whole(NamedTuple):
    """A document with all its chunks, without any if it is empty, and the parts that are left out, each with the reason."""

    found: SourceDocument
    chunks: Sequence[Chunk]
    left_out: Sequence[tuple[str, str]] = ()


Item = SourceDocument | Piece | Fault


@dataclass(slots=True)
class Reading:
    """The outcome of reading an origin; complete once its documents were read to the end.

    Attributes:
        listed: the sources that exist, readable or not.
        is_listed: whether those are all that exist.
        is_whole: whether nothing that exists was left out.
        passed_over: existing items of a kind that is not imported.
        suffixes: those of the files among them, each with its number; "" for names without one.
        why: what ended the reading early.
        window: what was read of a paged origin (R3.24).
        times: publication times of listed sources, in ms, as far as the listing has them.
    """

    listed: set[str] = field(default_factory=set)
    times: dict[str, int] = field(default_factory=dict)
    is_listed: bool = True
    is_whole: bool = True
    passed_over: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    why: str | None = None
    window: dict[str, Any] | None = None

    def pass_over(self, path: str) -> None:
        """Count a file of a kind that is not imported."""
        self.passed_over += 1
        self.suffixes[os.path.splitext(path)[1].lower()] += 1  # noqa: PTH122 (a path of a commit is in no file system)


class Origin(Protocol):
    """Where documents come from."""

    @property
    def identity(self) -> Sequence[str]:
        """Return its identity, with the options that decide its contents: the same for each import of the same origin."""

    @property
    def is_paged(self) -> bool:
        """Return whether the end of a source is known only after everything was read."""

    @property
    def reading(self) -> Reading:
        """The outcome of reading the source."""

    def documents(self) -> AsyncIterator[Item]:
        """Yield its documents and faults, in an order of its own."""

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Return which of these sources, known before and not listed now, no longer exist; of many, perhaps only the first."""


class Ending(NamedTuple):
    """The contents of a source's end event."""

    full: bool
    truncated: bool
    force: bool


def ending(*, asks_full: bool, forces: bool, is_whole: bool, count: int) -> Ending:
    """Decide on the end event of a source (R3.20).

    Args:
        asks_full: whether unnamed chunks should become orphans.
        forces: whether that also holds if no chunk is left.
        is_whole: whether everything of the source, and of its run, was published.
        count: the number of published chunks.
    """
    return Ending(asks_full and is_whole, not is_whole, asks_full and forces and is_whole and count == 0)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of chunks, and which end events are sent."""

    ingest_id: str
    ns: str
    slot: str
    asks_full: bool = False
    forces: bool = False
    lasts: bool = False
    opens: bool = False

    def chunk(self, found: SourceDocument, number: int, chunk: Chunk) -> ChunkSubmitted:
        """Return the event of a document's chunk."""
        return {
            "ingest_id": self.ingest_id,
            "ns": self.ns,
            "slot": self.slot,
            "source_id": found.source_id,
            "chunk_no": number,
            "content": chunk.content,
            "title": chunk.title,
            "url": found.url,
            "embedding": None,
            "published_at": found.published_at,
            "lasts": self.lasts,
            "opens": self.opens,
        }

    def end(
        self, source_id: str, count: int, ending: Ending, now_ms: int, window: Mapping[str, Any] | None = None
    ) -> IngestFinished:
        """Return the event of a source's end."""
        return {
            "ingest_id": self.ingest_id,
            "ns": self.ns,
            "slot": self.slot,
            "source_id": source_id,
            "full": ending.full,
            "expected_count": count,
            "truncated": ending.truncated,
            "ts": now_ms,
            "force": ending.force,
            "window": None if window is None else orjson.dumps(window).decode(),
        }


@dataclass(slots=True)
class _Apart:
    """A source whose end event is still to be sent."""

    count: int = 0
    numbers: set[int] = field(default_factory=set)


HandOver = Callable[[str, Mapping[str, Any]], None]


class Submission:
    """One import: publishes events as documents come, and counts them for the command."""

    def __init__(
        self,
        target: Target,
        hand_over: HandOver,
        clock: Clock,
        *,
        is_paged: bool = False,
        report: Callable[[Fault], None] = lambda _: None,
    ) -> None:
        self.target = target
        self._hand_over = hand_over
        self._clock = clock
        self._is_paged = is_paged
        self._report = report
        self._apart: dict[str, _Apart] = {}
        self._ended: set[str] = set()
        self.has_unknown_faults = False
        self.faulty: set[str] = set()
        self.sources = self.chunks = self.rejected = 0
        self.left_out: Counter[str] = Counter()
        self.gone: list[str] = []

    def take(self, item: Whole | Piece | Fault) -> None:
        """Publish a document, or a single chunk; report a fault, and remember it for its source."""
        if isinstance(item, Whole):
            self._take_whole(item)
        elif isinstance(item, Piece):
            self._take_piece(item)
        else:
            self._fail(item)

    def conclude(self, reading: Reading, *, is_interrupted: bool = False) -> None:
        """Send the end events that waited for the complete reading; without that, none of them is full."""
        was_read = reading.is_whole and not is_interrupted and not self.has_unknown_faults
        for source_id, apart in self._apart.items():
            self._end(source_id, apart.count, is_read=was_read, window=reading.window)
        self._apart.clear()

    def end_gone(self, source_ids: Iterable[str]) -> None:
        """End missing sources: all their chunks become orphans."""
        for source_id in source_ids:
            said = Ending(full=True, truncated=False, force=True)
            self._hand_over(INGEST_FINISHED, self.target.end(source_id, 0, said, self._clock()))
            self.gone.append(source_id)

    def _take_whole(self, whole: Whole) -> None:
        source_id = whole.found.source_id
        if source_id in self._ended or source_id in self._apart:
            self._fail(Fault(source_id, "it is there twice; the first one counts", source_id))
            return
        if not whole.chunks and not (self.target.asks_full and self.target.forces):
            why = "there is nothing in it; its chunks stay (--full --force removes them)"
            self._tell(Fault(source_id, why, source_id))
            if not self.target.asks_full:
                return
        self.left_out.update(str(reason) for reason, _ in whole.left_out)
        count = 0
        for number, chunk in enumerate(whole.chunks):
            try:
                self._submit(self.target.chunk(whole.found, number, chunk))
                count += 1
            except InvalidEventError as error:
                self._fail(Fault(f"{source_id}, chunk {number}", f"{error} [{error.reason}]", source_id))
        if self._is_paged:
            self._apart[source_id] = _Apart(count)
        else:
            self._end(source_id, count)

    def _take_piece(self, piece: Piece) -> None:
        where, source_id = f"line {piece.number}", str(piece.fields["source_id"])
        if source_id in self._ended:
            self._fail(Fault(where, f"{source_id} was there before as a document", source_id))
            return
        apart = self._apart.setdefault(source_id, _Apart())
        number = piece.fields["chunk_no"]
        if number in apart.numbers:  # it is unknown which of the two is meant
            self._fail(Fault(where, f"chunk {number} of {source_id} is there twice; the first one counts", source_id))
            return
        try:
            self._submit({**piece.fields, **self._place()})
        except InvalidEventError as error:
            self._fail(Fault(where, f"{error} [{error.reason}]", source_id))
        else:
            apart.numbers.add(number)
            apart.count += 1

    def _place(self) -> dict[str, str]:
        return {"ingest_id": self.target.ingest_id, "ns": self.target.ns, "slot": self.target.slot}

    def _submit(self, event: Mapping[str, Any]) -> None:
        check_chunks_event(CHUNK_SUBMITTED, event)
        self._hand_over(CHUNK_SUBMITTED, event)
        self.chunks += 1

    def _end(
        self, source_id: str, count: int, *, is_read: bool = True, window: Mapping[str, Any] | None = None
    ) -> None:
        is_whole = is_read and source_id not in self.faulty
        said = ending(asks_full=self.target.asks_full, forces=self.target.forces, is_whole=is_whole, count=count)
        self._hand_over(INGEST_FINISHED, self.target.end(source_id, count, said, self._clock(), window))
        self._ended.add(source_id)
        self.sources += 1

    def _fail(self, fault: Fault) -> None:
        """Record that something of the source is missing; without a known source, of any whose end is still to be sent."""
        if fault.source_id is None:
            self.has_unknown_faults = True
        else:
            self.faulty.add(fault.source_id)
        self._tell(fault)

    def _tell(self, fault: Fault) -> None:
        self.rejected += 1
        self._report(fault)


async def cut_all(
    items: AsyncIterable[Item], reader: DocumentReader, *, keeps_all: bool = False
) -> AsyncGenerator[Whole | Piece | Fault, None]:
    """Yield documents with their chunks, in order; a few are read concurrently. `keeps_all`: nothing is left out."""
    ahead: deque[asyncio.Task[Whole | Piece | Fault]] = deque()
    async with reader:
        try:
            async for item in items:
                ahead.append(asyncio.ensure_future(_cut(item, reader, keeps_all=keeps_all)))
                if len(ahead) > _AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)


async def _cut(item: Item, reader: DocumentReader, *, keeps_all: bool) -> Whole | Piece | Fault:
    if not isinstance(item, SourceDocument):
        return item
    try:
        check_key_part("source_id", item.source_id)
        return await _whole(item, reader, keeps_all=keeps_all)
    except (InvalidEventError, UnreadableDocumentError) as error:
        return Fault(item.source_id, str(error), item.source_id)


async def _whole(found: SourceDocument, reader: DocumentReader, *, keeps_all: bool) -> Whole:
    if len(found.raw) > DOCUMENT_BYTES_MAX:
        raise UnreadableDocumentError(f"it is larger than {DOCUMENT_BYTES_MAX >> 20} MiB")
    raw = found.raw if found.raw.strip() else ""
    with contextlib.closing(
        await reader.read(raw, found.media_type, title=_title(found), keeps_all=keeps_all)
    ) as chunked:
        chunks = [chunk for first in range(0, chunked.count, _PART) for chunk in chunked.part(first, _PART)]
        return Whole(found, chunks, chunked.parts_left_out(sum(chunked.left_out.values())))


def _title(found: SourceDocument) -> str:
    return " ".join(clean(found.title or "").split())


def time_or_none(ms: int) -> int | None:
    """Return a time, unless it is outside the calendar."""
    return ms if TS_MS_MIN <= ms <= TS_MS_MAX else None
