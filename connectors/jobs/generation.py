"""Makes a deck: its outline, then slide by slide, from the contents of its documents.

Invariant: every result is in the checkpoint, and nothing in it is repeated (R2.15). A deck that was made for the same
question, the same documents and the same organization is reused without a model call (R2.25); it is free and not
counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import asyncpg

from highwater.connectors.documents.formats import is_plain
from highwater.connectors.documents.reading import Chunked, DocumentReader
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.kept_decks import kept_deck
from highwater.connectors.jobs.semantic_cache import Lookup, SemanticCache
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.steps import Ask, Done, JobFailedError, Step, Wait
from highwater.connectors.jobs.store import Deck
from highwater.connectors.models.calls import ChatCall
from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.postgres.pool import reading
from highwater.connectors.retrieval.asked import QuestionVector
from highwater.connectors.retrieval.context import ChunkContext
from highwater.connectors.retrieval.insights import SHARE_MIN, InsightSearch
from highwater.connectors.retrieval.results import Result
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.jobs.approval import is_approved
from highwater.streams.jobs.args import GenerationArgs, parse_args
from highwater.streams.jobs.decks import (
    NO_PLACE,
    OUTLINE,
    OUTLINE_CHARACTERS_MAX,
    POINTS_MAX,
    SLIDE_CHARACTERS_MAX,
    TITLE_CHARACTERS_MAX,
    BadDeckError,
    Outline,
    Passage,
    Planned,
    as_json,
    of_job,
    outline_of,
    outline_prompt,
    passages_of_blocks,
    passages_of_sections,
    read_outline,
    read_slide,
    rejoined,
    slide_id,
    slide_prompt,
    slide_query,
    slide_sources,
    slide_stage,
    sources_hash,
)
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.local_deck import local_deck_answer
from highwater.streams.jobs.progress import OUTLINE_READY, SLIDE_COMPLETED, SLIDE_STARTED, ProgressReport
from highwater.streams.jobs.questions import normalised
from highwater.streams.languages import text_language
from highwater.streams.models.answers import UnusableAnswerError, clean_text, json_object_in
from highwater.streams.models.context_windows import ContextWindows
from highwater.streams.models.tokens import count_tokens
from highwater.streams.queries.words import subject_words, words_asked, words_needed, words_of

# The part of a job's documents that is read, from the beginning of each, which gives its subject: 1,000 pages of text,
# which are searched for each slide in some 0.3 s.
SOURCE_BYTES_MAX = 4 << 20
# Chunks of a document that are read from its file at a time.
_CHUNKS = 100
# Formats that need no reader; a reader takes a process of its own.
_PLAIN = ("text/plain", "text/markdown")
# Chunks of each open namespace, and insights, for a deck without documents.
_INGESTED_MAX = 30
# A deck has room for more than a short answer: an insight with words of the query may be at this distance.
_SIMILARITY_MIN = 0.25
# Jobs whose documents are cached between two slides; as many as one process works on at once by default.
_KEPT_MAX = 16
# An outline of 50 slides with five points each; a slide.
_OUTLINE_TOKENS, _SLIDE_TOKENS = 8_000, 2_000
_TEMPERATURE = 0.3
# Less text is not worth a source: a passage has some 1,000.
_SOURCES_CHARACTERS_MIN = 500

T = TypeVar("T")


def _sizes(characters_max: int) -> Iterator[int]:
    """Return how many characters of sources to try to fit into a model's window: ever half as many, at the end none."""
    while characters_max >= _SOURCES_CHARACTERS_MIN:
        yield characters_max
        characters_max //= 2
    yield 0


def answered_locally(call: ChatCall) -> str:
    """Return the built-in model's answer to a step of a deck, used when no service is configured."""
    return local_deck_answer(call.stage, call.user)


class GenerationSteps:
    """The steps of a deck."""

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        cache: SemanticCache | None,
        clock: Clock,
        *,
        model: str,
        embedder: CountedEmbedder | None = None,
        windows: ContextWindows | None = None,
    ) -> None:
        self._pool = pool
        self._windows = windows or ContextWindows()
        self._chunks = ChunkContext(pool, embedder)
        self._insights = InsightSearch(pool)
        self._cache = cache
        self._clock = clock
        self._model = model
        self._reader = DocumentReader()
        self._kept: OrderedDict[str, dict[str, list[Passage]]] = OrderedDict()

    async def next(self, job: Job) -> Ask | Step | Wait | Done:
        """Return the outline, the wait for its approval, the first missing slide, or the end.

        Raises:
            JobFailedError: a document does not exist, or cannot be read.
            UnavailableError: PostgreSQL is unavailable.
        """
        args = cast("GenerationArgs", parse_args(job.kind, job.args))
        held = job.checkpoint
        if held is None:
            return await self._begin(job, args)
        if args.outline_only:
            return Done({"outline": held["outline"]})
        if args.await_approval and not is_approved(held):
            return Wait(args.approval_timeout_seconds * 1_000, (ProgressReport(OUTLINE_READY),))
        if len(held["slides"]) < len(held["outline"]["slides"]):
            return await self._slide(job, args, held)
        return self._done(job, args, held)

    async def _begin(self, job: Job, args: GenerationArgs) -> Ask | Step | Done:
        """Return the start of a job: the given outline, an earlier deck, or the answer to a call."""
        if args.outline is not None:
            return Step(_checkpoint(args.outline, ()), 0, args.slides)
        if args.remake:
            return await self._taken_over(job, args)
        # Ingested texts change without notice to a cached deck: only a deck without sources, or of documents, is
        # cached.
        ingested = [] if args.source_document_ids else await self._ingested(job, args.query, OUTLINE_CHARACTERS_MAX)
        if job.attempt == 0 and not ingested and (found := await self._found(job, args)) is not None:
            return found
        return await self._outline(job, args, ingested)

    async def _found(self, job: Job, args: GenerationArgs) -> Done | None:
        if self._cache is None or not (args.cache and args.is_of_query):
            return None
        deck = await self._cache.lookup(_wanted(job, args), self._clock())
        if deck is None:
            return None
        slides = tuple(of_job(deck["slides"], job.id))
        told = tuple(
            ProgressReport(SLIDE_COMPLETED, slide["number"], slide["slide_id"], slide["title"]) for slide in slides
        )
        is_worded_alike = normalised(deck.get("query", "")) == normalised(args.query)
        title = deck["title"] if is_worded_alike else " ".join(args.query.split())[:TITLE_CHARACTERS_MAX]
        return Done(_result(job, title, slides, is_cached=True), told, Deck(title, slides, is_cached=True))

    async def _outline(self, job: Job, args: GenerationArgs, ingested: Sequence[Passage]) -> Ask:
        passages = (
            await self._passages(job, args, args.query, OUTLINE_CHARACTERS_MAX)
            if args.source_document_ids
            else ingested
        )
        for size in _sizes(OUTLINE_CHARACTERS_MAX):
            system, user = await asyncio.to_thread(outline_prompt, args.query, args.slides, passages, size)
            if self._fits(system, user, _OUTLINE_TOKENS):
                break

        def concluded(text: str) -> Step:
            outline = _checked(lambda: read_outline(json_object_in(text), args.slides))
            return Step(_checkpoint(outline, ()), 0, len(outline.slides))

        return Ask(OUTLINE, self._model, system, user, concluded, _TEMPERATURE, _OUTLINE_TOKENS)

    async def _slide(self, job: Job, args: GenerationArgs, held: Any) -> Ask:
        outline, made = outline_of(held["outline"]), {slide["number"]: slide for slide in held["slides"]}
        number = next(number for number in range(1, len(outline.slides) + 1) if number not in made)
        passages = await self._passages(job, args, slide_query(args.query, outline, number), SLIDE_CHARACTERS_MAX)
        said = [bullet for slide in held["slides"] for bullet in slide["bullets"]]
        for size in _sizes(SLIDE_CHARACTERS_MAX):
            sources = await asyncio.to_thread(slide_sources, args.query, outline, number, passages, size)
            system, user = slide_prompt(args.query, outline, number, sources, said)
            if self._fits(system, user, _SLIDE_TOKENS):
                break

        def concluded(text: str) -> Step:
            slide = _checked(lambda: read_slide(json_object_in(text), job.id, number, sources))
            slides = [one for _, one in sorted({**made, number: as_json(slide)}.items())]
            told = ProgressReport(SLIDE_COMPLETED, number, slide.slide_id, slide.title)
            return Step({**held, **_checkpoint(outline, slides)}, len(slides), len(outline.slides), (told,))

        started = ProgressReport(SLIDE_STARTED, number, slide_id(job.id, number), outline.slides[number - 1].title)
        return Ask(slide_stage(number), self._model, system, user, concluded, _TEMPERATURE, _SLIDE_TOKENS, (started,))

    def _fits(self, system: str, user: str, tokens_max: int) -> bool:
        """Return whether a model that reads less than others reads all of a call."""
        room = self._windows.room(self._model, system, tokens_max)
        return room is None or count_tokens(user) <= room

    async def _taken_over(self, job: Job, args: GenerationArgs) -> Step:
        """Return the slides of another deck except for those that are to be replaced, each planned as before."""
        deck = await kept_deck(self._pool, args.presentation_id, job.organization_id)
        slides = deck.slides
        if args.remake[-1] > len(slides):
            raise JobFailedError(f"the presentation {args.presentation_id} has no slide {args.remake[-1]}")
        planned = tuple(Planned(slide["title"], tuple(slide["bullets"][:POINTS_MAX])) for slide in slides)
        kept = of_job((slide for slide in slides if slide["number"] not in args.remake), job.id)
        return Step(_checkpoint(Outline(deck.title, planned), kept), len(kept), len(slides))

    def _done(self, job: Job, args: GenerationArgs, held: Any) -> Done:
        title, slides = held["outline"]["title"], tuple(held["slides"])

        async def afterwards(stored: Job) -> None:
            self._kept.pop(job.id, None)
            if self._cache is not None and args.is_of_query and (args.source_document_ids or not _quoted(slides)):
                response = {"query": args.query, "title": title, "slides": list(slides)}
                await self._cache.store(
                    _wanted(job, args), response, tokens_saved=stored.tokens, provider=self._model, now_ms=self._clock()
                )

        result = _result(job, title, slides, is_cached=False)
        return Done(result, deck=Deck(title, slides), afterwards=afterwards)

    async def _passages(self, job: Job, args: GenerationArgs, query: str, characters_max: int) -> list[Passage]:
        """Return passages of the documents: of ingested ones the best chunks, of others all, to be chosen from."""
        ids = args.source_document_ids
        if not ids:
            return await self._ingested(job, query, characters_max)
        owned = await blobs.known(self._pool, ids, job.organization_id)
        for one in ids:
            if one not in owned:
                raise JobFailedError(f"the source document {one} does not exist; upload it first (PUT /api/blobs)")
        ingested, found = await self._chunks.of_documents(
            ids, query, Work(job.id, None), characters_max=characters_max, as_of_ms=self._clock()
        )
        passages: list[Passage] = []
        for chunk in found:
            text, before = clean_text(chunk.content), passages[-1] if passages else None
            whole = rejoined(before.text, text) if before and before.document == chunk.source_id else None
            if before and whole is not None:
                passages[-1] = replace(before, text=whole)
                continue
            name, heading = owned[chunk.source_id].file_name, clean_text(chunk.title or "")
            passages.append(Passage(chunk.source_id, text, heading, chunk.chunk_no, name))
        others = [owned[one] for one in ids if one not in ingested]
        return [*passages, *await self._whole(job, others, len(ids))]

    async def _ingested(self, job: Job, query: str, characters_max: int) -> list[Passage]:
        """Return the ingested texts that answer best, as for a query: chunks of open namespaces, and insights of the
        user's channels, or of all without any; none if nothing is near.
        """
        asked, words = self._chunks.asked(query, Work(job.id, None)), subject_words(query)
        chunks = await self._chunks.of_query(asked, words, limit=_INGESTED_MAX, as_of_ms=self._clock())
        found = [one for one in chunks if _is_near(one, words)]
        passages = await self._of_insights(job, query, words, asked)
        characters_max -= sum(len(one.text) for one in passages)
        for one in sorted(found, key=lambda one: -one.final):
            characters_max -= len(one.content)
            if characters_max < 0:
                break
            text, heading = clean_text(one.content), clean_text(one.title or "")
            passages.append(Passage(one.source_id, text, heading, one.chunk_no, f"{one.ns}/{one.source_id}"))
        return sorted(passages, key=lambda one: (one.group or one.document, one.place))

    async def _of_insights(self, job: Job, query: str, words: Sequence[str], asked: QuestionVector) -> list[Passage]:
        """Return the near insights, those of a channel together and in their order."""
        async with reading(self._pool) as tx:
            channels = [row["channel_id"] for row in await tx.fetch(QUERIES["channels_of_user"], job.user_id)] or None
        found = await self._insights.of_query(query, words, asked, channels, limit=_INGESTED_MAX)
        near = [one for one in found if one.share >= SHARE_MIN and one.similarity >= _SIMILARITY_MIN]
        return [
            Passage(
                one.insight_id,
                clean_text(one.text),
                one.channel_id,
                NO_PLACE,
                f"{to_datetime(one.ts_ms):%Y-%m-%d}",
                group=one.channel_id,
            )
            for one in sorted(near, key=lambda one: (one.channel_id, one.ts_ms, one.insight_id))
        ]

    async def _whole(self, job: Job, documents: Sequence[blobs.Blob], of: int) -> list[Passage]:
        """Return documents that were not ingested, read once per job; `of` this many, each gets its share."""
        held = self._kept.setdefault(job.id, {})
        self._kept.move_to_end(job.id)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        for blob in documents:
            if blob.sha256 not in held:
                held[blob.sha256] = await self._read(blob, SOURCE_BYTES_MAX // of)
        return [passage for blob in documents for passage in held[blob.sha256]]

    async def _read(self, blob: blobs.Blob, bytes_max: int) -> list[Passage]:
        """Return the text of a document, from its beginning."""
        try:
            if blob.media_type.partition(";")[0].strip().lower() in _PLAIN:
                raw = await self._beginning(blob, bytes_max)
                if is_plain(raw):
                    return await self._of_text(blob, raw)
            chunked = await self._reader.read(blobs.read(self._pool, blob), blob.media_type)
        except UnreadableDocumentError as error:
            raise JobFailedError(f"the source document {blob.sha256} cannot be read: {error}") from error
        with contextlib.closing(chunked):
            sections = _sections(chunked, bytes_max)
            return await asyncio.to_thread(passages_of_sections, blob.sha256, sections, name=blob.file_name)

    async def _of_text(self, blob: blobs.Blob, raw: bytes) -> list[Passage]:
        blocks = await self._reader.blocks(raw, blob.media_type, is_cut=len(raw) < blob.size_bytes)
        passages = await asyncio.to_thread(passages_of_blocks, blob.sha256, blocks, name=blob.file_name)
        if not passages:
            raise UnreadableDocumentError("it has no text")
        return passages

    async def _beginning(self, blob: blobs.Blob, bytes_max: int) -> bytes:
        raw = bytearray()
        async for part in blobs.read(self._pool, blob):
            raw += part
            if len(raw) >= bytes_max:
                break
        return bytes(raw[:bytes_max])


def _is_near(chunk: Result, words: Sequence[str]) -> bool:
    """Return whether a chunk is about a query: it has two of its words, if they are three or more, and its vector is near."""
    language = text_language(" ".join(words))
    groups = {group for word in words if (group := words_asked(word, language))}
    held = words_of(f"{chunk.title or ''} {chunk.content}", language)
    shared = sum(not group.isdisjoint(held) for group in groups)
    return shared >= words_needed(len(groups)) and (not chunk.cosine or chunk.cosine >= _SIMILARITY_MIN)


def _sections(chunked: Chunked, bytes_max: int) -> Iterator[tuple[str, str]]:
    """Yield the headings above each chunk, and its text."""
    first = 0
    while first < chunked.count and bytes_max > 0:
        part = chunked.part(first, _CHUNKS)
        first += len(part)
        for chunk in part:
            yield clean_text(chunk.title or ""), clean_text(chunk.content)
            bytes_max -= len(chunk.content)


def _checkpoint(outline: Outline, slides: Sequence[Any]) -> dict[str, Any]:
    """Return the state from which the next step continues (R2.11)."""
    return {"outline": as_json(outline), "slide_ids": [one["slide_id"] for one in slides], "slides": list(slides)}


def _quoted(slides: Sequence[Any]) -> bool:
    """Return whether a deck quotes a source."""
    return any(source is not None for slide in slides for source in slide.get("sources", ()))


def _checked(read: Callable[[], T]) -> T:
    try:
        return read()
    except BadDeckError as error:
        raise UnusableAnswerError(str(error)) from error


def _wanted(job: Job, args: GenerationArgs) -> Lookup:
    documents = tuple(args.source_document_ids)
    return Lookup(job.organization_id, sources_hash(documents, args.slides), args.query, job.user_id, documents, job.id)


def _result(job: Job, title: str, slides: Sequence[Any], *, is_cached: bool) -> dict[str, Any]:
    return {"presentation_id": job.id, "title": title, "slides": len(slides), "is_cached": is_cached}
