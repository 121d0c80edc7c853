"""Documents of a source outside as events of chunks: cut by their structure, each source with the end that is true of it.

Invariant: an end says `full` only when that was asked for and everything there is of the source was handed over; where
something was left out, cut off or refused it says `truncated`, and then nothing is an orphan (R3.20). A document that cannot be
read is a fault with its name, harms no other and ends nothing: what is stored of it stays as it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from highwater.connectors.documents.formats import blocks_of, is_plain, text_blocks
from highwater.connectors.documents.reading import DocumentReader
from highwater.schemas.chunks import ChunkSubmitted, IngestFinished
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import TS_MS_MAX, TS_MS_MIN
from highwater.streams.chunks.identity import check_key_part
from highwater.streams.chunks.validation import check_chunks_event
from highwater.streams.clock import Clock
from highwater.streams.documents.chunking import Block, Chunk, cut
from highwater.streams.documents.structure import UnreadableDocumentError, clean
from highwater.streams.models.tokens import count_tokens

CHUNK_SUBMITTED, INGEST_FINISHED = "chunks.chunk-submitted", "chunks.ingest-finished"
# Larger files are no documents, and each is held in memory while it is read.
DOCUMENT_BYTES_MAX = 64 << 20
# A text of this length is cut in a tenth of a second; starting a process for it would take longer than that.
_OWN_BYTES_MAX = 1 << 20
# Documents drawn ahead while one is read: the reader works on two at once, and their order stays.
_AHEAD = 4
# Chunks of a document taken from its file at once.
_PART = 500


class Found(NamedTuple):
    """A document, as a file or as what is text already. A title that it has beside that stands above all its headings."""

    source_id: str
    raw: bytes | str
    media_type: str
    title: str | None = None
    url: str | None = None
    published_at: int | None = None


class Piece(NamedTuple):
    """One chunk that was cut elsewhere; others of its source may come at any time. `number` is the line it stands in."""

    number: int
    fields: Mapping[str, Any]


class Fault(NamedTuple):
    """What could not be read, and why. `source_id`: of the source that lacks it; None when nobody can tell."""

    where: str
    why: str
    source_id: str | None = None


class Whole(NamedTuple):
    """A document with all its chunks; without any when there is nothing in it."""

    found: Found
    chunks: Sequence[Chunk]


Item = Found | Piece | Fault


@dataclass(slots=True)
class Reading:
    """What became of reading an origin; complete once its documents were drawn to the end.

    Attributes:
        listed: the sources that are there, whether they could be read or not.
        is_listed: whether those are all there are.
        is_whole: whether nothing was left out of what there is.
        passed_over: what is there and of no kind that is imported.
        why: what ended the reading before its end.
        window: what was read of a paged origin (R3.24).
        times: of listed sources when they were published, in ms, as far as listing them tells.
    """

    listed: set[str] = field(default_factory=set)
    times: dict[str, int] = field(default_factory=dict)
    is_listed: bool = True
    is_whole: bool = True
    passed_over: int = 0
    why: str | None = None
    window: dict[str, Any] | None = None


class Origin(Protocol):
    """Where documents come from."""

    @property
    def identity(self) -> Sequence[str]:
        """What it is, and the options that decide what is in it: the same for each import of the same."""

    @property
    def is_paged(self) -> bool:
        """Whether the end of a source is known only after everything was read."""

    @property
    def reading(self) -> Reading:
        """The outcome of reading the source."""

    def documents(self) -> AsyncIterator[Item]:
        """Its documents and faults, in an order of its own."""

    async def gone(self, source_ids: Sequence[str]) -> list[str]:
        """Which of these sources, known of before and not listed now, are there no longer; of many, perhaps the first only."""


class Ending(NamedTuple):
    """What the end of a source says."""

    full: bool
    truncated: bool
    force: bool


def ending(*, asks_full: bool, forces: bool, is_whole: bool, count: int) -> Ending:
    """What the end of a source says (R3.20).

    Args:
        asks_full: whether what is not named is to be an orphan.
        forces: whether that holds for all chunks when there are none any more.
        is_whole: whether everything there is of the source, and of the run it was read in, was handed over.
        count: how many chunks were.
    """
    return Ending(asks_full and is_whole, not is_whole, asks_full and forces and is_whole and count == 0)


@dataclass(frozen=True, slots=True)
class Target:
    """Where chunks go, and how much their ends say."""

    ingest_id: str
    ns: str
    slot: str
    asks_full: bool = False
    forces: bool = False
    lasts: bool = False

    def chunk(self, found: Found, number: int, chunk: Chunk) -> ChunkSubmitted:
        """The event of a document's chunk."""
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
        }

    def end(
        self, source_id: str, count: int, said: Ending, now_ms: int, window: Mapping[str, Any] | None = None
    ) -> IngestFinished:
        """The event of a source's end."""
        return {
            "ingest_id": self.ingest_id,
            "ns": self.ns,
            "slot": self.slot,
            "source_id": source_id,
            "full": said.full,
            "expected_count": count,
            "truncated": said.truncated,
            "ts": now_ms,
            "force": said.force,
            "window": None if window is None else orjson.dumps(window).decode(),
        }


@dataclass(slots=True)
class _Apart:
    """A source whose end is still to be told."""

    count: int = 0
    numbers: set[int] = field(default_factory=set)


HandOver = Callable[[str, Mapping[str, Any]], None]


class Submission:
    """One import: its events are handed over as its documents come, its counts are what the command reports."""

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
        self.gone: list[str] = []

    def take(self, item: Whole | Piece | Fault) -> None:
        """Hand over a document, or a chunk by itself; a fault is reported, and remembered of its source."""
        if isinstance(item, Whole):
            self._take_whole(item)
        elif isinstance(item, Piece):
            self._take_piece(item)
        else:
            self._fail(item)

    def conclude(self, reading: Reading, *, is_interrupted: bool = False) -> None:
        """Tell the ends that waited for the whole to be read; without that, nothing they end is full."""
        was_read = reading.is_whole and not is_interrupted and not self.has_unknown_faults
        for source_id, apart in self._apart.items():
            self._end(source_id, apart.count, is_read=was_read, window=reading.window)
        self._apart.clear()

    def end_gone(self, source_ids: Iterable[str]) -> None:
        """Sources that are there no longer: all their chunks are orphans."""
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
        if number in apart.numbers:  # nobody can tell which of the two is meant
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
        """Something of the source is missing; where nobody can tell of which, of any whose end is still to be told."""
        if fault.source_id is None:
            self.has_unknown_faults = True
        else:
            self.faulty.add(fault.source_id)
        self._tell(fault)

    def _tell(self, fault: Fault) -> None:
        self.rejected += 1
        self._report(fault)


async def cut_all(items: AsyncIterable[Item], reader: DocumentReader) -> AsyncGenerator[Whole | Piece | Fault, None]:
    """Documents with their chunks, in their order; a few are read at once."""
    ahead: deque[asyncio.Task[Whole | Piece | Fault]] = deque()
    try:
        async for item in items:
            ahead.append(asyncio.ensure_future(_cut(item, reader)))
            if len(ahead) > _AHEAD:
                yield await ahead.popleft()
        while ahead:
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def _cut(item: Item, reader: DocumentReader) -> Whole | Piece | Fault:
    if not isinstance(item, Found):
        return item
    try:
        check_key_part("source_id", item.source_id)
        return Whole(item, await _chunks(item, reader))
    except (InvalidEventError, UnreadableDocumentError) as error:
        return Fault(item.source_id, str(error), item.source_id)


async def _chunks(found: Found, reader: DocumentReader) -> Sequence[Chunk]:
    if len(found.raw) > DOCUMENT_BYTES_MAX:
        raise UnreadableDocumentError(f"it is larger than {DOCUMENT_BYTES_MAX >> 20} MiB")
    if not found.raw.strip():
        blocks = []
    elif isinstance(found.raw, str):
        blocks = text_blocks(clean(found.raw), found.media_type)
    elif is_plain(found.raw) and len(found.raw) <= _OWN_BYTES_MAX:
        blocks = blocks_of(found.raw, found.media_type)
    else:
        return await _read(found.raw, found.media_type, reader)
    title = " ".join(clean(found.title or "").split())
    return cut(_below(title, blocks) if title else blocks, count_tokens)


async def _read(raw: bytes, media_type: str, reader: DocumentReader) -> Sequence[Chunk]:
    async def once() -> AsyncIterator[bytes]:
        yield raw

    chunked = await reader.read(once(), media_type)
    try:
        return [chunk for first in range(0, chunked.count, _PART) for chunk in chunked.part(first, _PART)]
    finally:
        chunked.close()


def _below(title: str, blocks: Iterable[Block]) -> list[Block]:
    """A document's blocks under a title that stands beside it."""
    return [Block(title, 1), *(Block(text, heading + 1 if heading else 0) for text, heading in blocks)]


def time_or_none(ms: int) -> int | None:
    """A time, unless no calendar has it."""
    return ms if TS_MS_MIN <= ms <= TS_MS_MAX else None
