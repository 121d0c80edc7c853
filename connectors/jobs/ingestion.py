"""Ingestion: documents are cut into chunks, which are published as events (R2.39).

Invariant: a document's chunks and the checkpoint after them are stored together, so that the next worker of the job
publishes nothing twice. A document is identified by its SHA-256, so its chunks are the same every time it is cut. An
unreadable document fails the job, which names it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.documents.reading import Chunked, DocumentReader
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.steps import Done, JobFailedError, Step
from highwater.connectors.kafka.outbox import outbox_event
from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED, ChunkSubmitted, IngestFinished
from highwater.streams.clock import Clock
from highwater.streams.documents.chunking import Chunk
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.jobs.args import IngestionArgs, parse_args
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.progress import STEP_COMPLETED, ProgressReport
from highwater.streams.jobs.states import Kind

# Chunks of a step: one transaction of a megabyte or two.
CHUNKS_PER_STEP = 500
# Documents whose chunks are cached between two steps of a job; those of more are cut again.
_HELD_MAX = 16

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class Place(NamedTuple):
    """The progress of a job: the current document, its next chunk, the number published of all documents, and the numbers
    of parts that were left out of them, by reason.
    """

    document: int = 0
    chunk: int = 0
    chunks: int = 0
    left_out: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, job: Job) -> Place:
        """Return where the job continues; an earlier release counted nothing that was left out."""
        return cls(**(job.checkpoint or {}))


class IngestionSteps:
    """A step is a part of a document's chunks; documents in the order in which they were named."""

    def __init__(self, pool: Pool, clock: Clock, reader: DocumentReader | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._reader = reader or DocumentReader()
        self._held: OrderedDict[tuple[str, str], Chunked] = OrderedDict()

    async def next(self, job: Job) -> Step | Done:
        """Publish the next chunks.

        Raises:
            JobFailedError: a document does not exist, or cannot be read.
            UnavailableError: PostgreSQL is unavailable.
        """
        args = parse_args(Kind.INGESTION, job.args)
        assert isinstance(args, IngestionArgs)
        place = Place.of(job)
        if place.document == len(args.document_ids):
            of = {"ns": args.ns, "slot": args.slot, "ingest_id": job.id}
            counts = {"documents": place.document, "chunks": place.chunks, "left_out": dict(place.left_out)}
            return Done({**of, **counts})
        document_id = args.document_ids[place.document]
        chunked = await self._chunked(job, document_id, keeps_all=args.keep_all)
        part = chunked.part(place.chunk, CHUNKS_PER_STEP)
        following = place._replace(chunk=place.chunk + len(part), chunks=place.chunks + len(part))
        chunks = _submitted(job, args, document_id, place.chunk, part)
        events = [outbox_event(CHUNK_SUBMITTED, chunk) for chunk in chunks]
        is_last = following.chunk >= chunked.count
        if is_last:
            finished = _finished(job, args, document_id, chunked.count, self._clock())
            events.append(outbox_event(INGEST_FINISHED, finished))
            left_out = Counter(place.left_out) + Counter(chunked.left_out)
            following = following._replace(
                document=place.document + 1, chunk=0, left_out=dict(sorted(left_out.items()))
            )
            self._let_go(job, document_id)
        told = (ProgressReport(STEP_COMPLETED),) if is_last else ()
        checkpoint = {**following._asdict(), "left_out": dict(following.left_out)}
        return Step(checkpoint, following.document, len(args.document_ids), told, tuple(events))

    async def _chunked(self, job: Job, document_id: str, *, keeps_all: bool) -> Chunked:
        key = (job.id, document_id)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = await self._read(job, document_id, keeps_all=keeps_all)
            while len(self._held) > _HELD_MAX:
                self._held.popitem(last=False)[1].close()
        self._held.move_to_end(key)
        return held

    async def _read(self, job: Job, document_id: str, *, keeps_all: bool) -> Chunked:
        known = await blobs.known(self._pool, [document_id], job.organization_id)
        if document_id not in known:
            raise JobFailedError(f"document {document_id} does not exist")
        blob = known[document_id]
        try:
            return await self._reader.read(blobs.read(self._pool, blob), blob.media_type, keeps_all=keeps_all)
        except UnreadableDocumentError as error:
            raise JobFailedError(f"document {document_id} cannot be read: {error}") from error

    def _let_go(self, job: Job, document_id: str) -> None:
        held = self._held.pop((job.id, document_id), None)
        if held is not None:
            held.close()


def _submitted(
    job: Job, args: IngestionArgs, document_id: str, first: int, chunks: Sequence[Chunk]
) -> list[ChunkSubmitted]:
    return [
        {
            "ingest_id": job.id,
            "ns": args.ns,
            "slot": args.slot,
            "source_id": document_id,
            "chunk_no": number,
            "content": chunk.content,
            "title": chunk.title,
            "url": None,
            "embedding": None,
            "published_at": None,
            "lasts": True,
            "opens": False,
        }
        for number, chunk in enumerate(chunks, start=first)
    ]


def _finished(job: Job, args: IngestionArgs, document_id: str, count: int, now_ms: int) -> IngestFinished:
    return {
        "ingest_id": job.id,
        "ns": args.ns,
        "slot": args.slot,
        "source_id": document_id,
        "full": True,
        "expected_count": count,
        "truncated": False,
        "ts": now_ms,
        "force": False,
        "window": None,
    }
