"""Documents in chunks on the log: each once, come what may; one that cannot be read is named."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterable, AsyncIterator
from hashlib import sha256
from typing import Any

import pytest

from highwater.connectors.documents.reading import Chunked, DocumentReader
from highwater.connectors.jobs import blobs
from highwater.connectors.jobs.ingestion import CHUNKS_PER_STEP, IngestionSteps
from highwater.connectors.jobs.pdf_file import write_pdf
from highwater.connectors.jobs.pptx_file import write_pptx
from highwater.schemas.chunks import CHUNK_SUBMITTED, INGEST_FINISHED
from highwater.schemas.jobs import CHECKPOINT_SAVED, INGESTION_REQUESTED, PROGRESS
from highwater.streams.documents.decoding import UnreadableDocumentError
from highwater.streams.jobs.layout import Deck, Slide
from highwater.streams.jobs.states import Kind
from tests.integration.connecting import until
from tests.integration.jobs.making import Jobs

DECK = Deck(
    "Streams", (Slide("Logs", ("A log is ordered.", "It is kept."), "Say so."), Slide("Groups", ("They share.",)))
)
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"


async def once(raw: bytes) -> AsyncIterator[bytes]:
    """A stream of one part."""
    yield raw


async def put(j: Jobs, raw: bytes, media_type: str = "text/plain", *, organization: str = "acme") -> str:
    """A document of an organization; its id."""
    found = await blobs.put(
        j.context.pool,
        once(raw),
        media_type=media_type,
        organization_id=organization,
        now_ms=j.time(),
        bytes_max=1 << 30,
    )
    return found.sha256


async def submit(j: Jobs, *documents: str) -> str:
    """A job that cuts documents."""
    return await j.submit(kind=Kind.INGESTION, args={"document_ids": list(documents), "ns": "docs", "slot": "main"})


async def cut(j: Jobs, *documents: str) -> list[dict[str, Any]]:
    """The chunks of documents that a job handed on, once it has ended."""
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time))
    job_id = await submit(j, *documents)
    await j.request(worker, job_id)
    await j.until_status(job_id, "completed")
    return await j.events(CHUNK_SUBMITTED)


@pytest.mark.parametrize(
    ("raw", "media_type", "expected"),
    [
        (b"One.\n\nTwo.", "text/plain", [("One.\n\nTwo.", None)]),
        (b"# A\n\nOne.\n\n## B\n\nTwo.", "text/markdown; charset=utf-8", [("One.", "A"), ("Two.", "A > B")]),
        (b"<title>t</title><h1>A</h1><p>One &amp; two.<script>no()</script>", "text/html", [("One & two.", "A")]),
        (
            write_pdf(DECK).content,
            "application/pdf",
            [
                ("Streams", None),
                ("• A log is ordered.\n• It is kept.\n2", "Logs"),
                ("• They share.\n3", "Groups"),
            ],
        ),
        (
            write_pptx(DECK),
            PPTX,
            [("Streams", None), ("A log is ordered.\n\nIt is kept.\n\nSay so.", "Logs"), ("They share.", "Groups")],
        ),
        (write_pptx(DECK), "application/octet-stream", None),
    ],
    ids=["text", "markdown", "html", "pdf", "pptx", "unnamed"],
)
async def test_a_document_of_each_kind(j: Jobs, raw: bytes, media_type: str, expected: list[Any] | None):
    """Its text in chunks by its structure, under its SHA-256; they are found however old they get."""
    document = await put(j, raw, media_type)
    chunks = await cut(j, document)
    if expected is not None:
        assert [(chunk["content"], chunk["title"]) for chunk in chunks] == expected
    assert {(chunk["source_id"], chunk["ns"], chunk["slot"], chunk["lasts"]) for chunk in chunks} == {
        (sha256(raw).hexdigest(), "docs", "main", True)
    }
    assert [chunk["chunk_no"] for chunk in chunks] == list(range(len(chunks)))


async def test_documents_are_handed_on_one_by_one(j: Jobs):
    """Chunks of a source before the end of it, all under one key; the job says how many there are."""
    names = [await put(j, f"Document {number}.".encode()) for number in range(3)]
    await cut(j, *names)
    rows = await j.context.pool.fetch("SELECT topic, key, value FROM outbox WHERE topic LIKE 'chunks.%' ORDER BY id")
    assert [(row["topic"], row["key"].decode()) for row in rows] == [
        (topic, f"docs|main|{name}") for name in names for topic in (CHUNK_SUBMITTED, INGEST_FINISHED)
    ]
    ends = await j.events(INGEST_FINISHED)
    assert [(one["full"], one["expected_count"], one["truncated"]) for one in ends] == [(True, 1, False)] * 3
    row = await j.context.pool.fetchrow("SELECT job_id::text, result, progress_pct FROM jobs")
    assert {one["ingest_id"] for one in ends} == {row["job_id"]}
    assert json.loads(row["result"]) == {
        "ingest_id": row["job_id"], "ns": "docs", "slot": "main", "documents": 3, "chunks": 3, "left_out": {},
    }  # fmt: skip
    told = await j.events(PROGRESS)
    assert [(one["event_type"], one["progress_pct"]) for one in told] == [
        ("job_started", 0),
        ("step_completed", 33),
        ("step_completed", 66),
        ("step_completed", 100),
        ("job_done", 100),
    ]


class Halting(DocumentReader):
    """A reader that stands still before the second document."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.is_reached = asyncio.Event()

    async def read(self, stream: AsyncIterable[bytes], media_type: str, **more: Any) -> Chunked:
        """Read the first one."""
        self.reads += 1
        if self.reads == 2:
            self.is_reached.set()
            await asyncio.Event().wait()
        return await super().read(stream, media_type, **more)


async def test_a_worker_killed_after_a_document(j: Jobs):
    """The next one continues with the second: no chunk is passed on twice, and none is missing."""
    names = [await put(j, f"Document {number}.".encode()) for number in range(4)]
    reader = Halting()
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time, reader))
    job_id = await submit(j, *names)
    await j.request(worker, job_id)
    await asyncio.wait_for(reader.is_reached.wait(), 20)
    assert (await j.job(job_id))["steps_done"] == 1
    await worker.die()
    counting = Counting()
    other = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time, counting))

    await until(lambda: j.events(INGESTION_REQUESTED), "it is asked for again")
    await j.request(other, job_id)
    await j.until_status(job_id, "completed")
    assert [chunk["source_id"] for chunk in await j.events(CHUNK_SUBMITTED)] == names
    assert [end["source_id"] for end in await j.events(INGEST_FINISHED)] == names
    assert counting.reads == 3


class Counting(DocumentReader):
    """A reader that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def read(self, stream: AsyncIterable[bytes], media_type: str, **more: Any) -> Chunked:
        """Read."""
        self.reads += 1
        return await super().read(stream, media_type, **more)


async def test_a_long_document_takes_several_steps(j: Jobs):
    """Cut once; its chunks are handed on in parts, and are dense over them."""
    text = "\n\n".join(f"Paragraph {number}. " + "It says a thing or two. " * 40 for number in range(1_500))
    document = await put(j, text.encode())
    counting = Counting()
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time, counting))
    job_id = await submit(j, document)
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "completed")
    chunks = await j.events(CHUNK_SUBMITTED)
    assert len(chunks) > 2 * CHUNKS_PER_STEP
    assert [chunk["chunk_no"] for chunk in chunks] == list(range(len(chunks)))
    assert "".join("".join(chunk["content"] for chunk in chunks).split()) == "".join(text.split())
    assert counting.reads == 1
    (end,) = await j.events(INGEST_FINISHED)
    assert end["expected_count"] == json.loads(row["result"])["chunks"] == len(chunks)
    steps = await j.events(CHECKPOINT_SAVED)
    assert len(steps) == -(-len(chunks) // CHUNKS_PER_STEP) + 1  # and a tombstone


@pytest.mark.parametrize(
    ("raw", "media_type", "reason"),
    [
        (b"%PDF-1.7 and no more", "application/pdf", "it is not a readable PDF"),
        (b"plain", "application/pdf", "it is not application/pdf"),
        (b"PK\x03\x04 and no more", PPTX, "it is not a readable PPTX"),
        (b"\xff\xfe\xfa", "text/plain", "it is not text in utf-16"),
        ("é".encode("latin-1"), "text/markdown", "it is not text in utf-8"),
        (b" \n ", "text/plain", "it has no text"),
    ],
    ids=["pdf", "no-pdf", "pptx", "utf-16", "latin-1", "empty"],
)
async def test_a_document_that_cannot_be_read_is_named(j: Jobs, raw: bytes, media_type: str, reason: str):
    """The job fails with its id and why; what came before it stays handed on, with its end."""
    good, bad = await put(j, b"Fine."), await put(j, raw, media_type)
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time))
    job_id = await submit(j, good, bad)
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "failed")
    assert row["error"].startswith(f"document {bad} cannot be read: {reason}")
    assert [end["source_id"] for end in await j.events(INGEST_FINISHED)] == [good]


@pytest.mark.parametrize("keeps_all", [False, True])
async def test_what_is_left_out_is_counted_or_kept(j: Jobs, keeps_all: bool):
    """The result of the job counts it by reason over all documents; with `keep_all` it is in the chunks."""
    page = b"<nav>Menu</nav><main><ul><li><a href='#a'>Log</a></ul><h1>Log</h1><p>It is kept.</main>"
    documents = [await put(j, page, "text/html"), await put(j, page + b"<p>Foot", "text/html")]
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time))
    args = {"document_ids": documents, "ns": "docs", "slot": "main", "keep_all": keeps_all}
    job_id = await j.submit(kind=Kind.INGESTION, args=args)
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "completed")
    assert json.loads(row["result"])["left_out"] == (
        {} if keeps_all else {"contents": 2, "navigation": 2, "outside_main": 1}
    )
    text = " ".join(chunk["content"] for chunk in await j.events(CHUNK_SUBMITTED))
    assert ("Menu" in text, "Foot" in text, "It is kept." in text) == (keeps_all, keeps_all, True)


async def test_a_document_of_others_is_not_there(j: Jobs):
    """One of another organization fails the job like a missing one."""
    theirs = await put(j, b"secret", organization="umbrella")
    worker = j.worker(Kind.INGESTION, IngestionSteps(j.context.pool, j.time))
    job_id = await submit(j, theirs)
    await j.request(worker, job_id)
    row = await j.until_status(job_id, "failed")
    assert (row["error"], await j.events(CHUNK_SUBMITTED)) == (f"document {theirs} does not exist", [])


async def test_reading_is_bounded_in_time_and_memory():
    """A document that takes too much of processor time or memory is unreadable; the calling process continues."""
    words = b"word and word and word " * 1_000_000
    with pytest.raises(UnreadableDocumentError, match=r"over 0\.2 s of processor time"):
        await DocumentReader(processor_seconds_max=0.2).read(once(words), "text/plain")
    with pytest.raises(UnreadableDocumentError, match="more than 128 MiB"):
        await DocumentReader(memory_bytes_max=128 << 20).read(once(words * 4), "text/plain")
    found = await DocumentReader().read(once(b"Fine."), "text/plain")
    assert [chunk.content for chunk in found.part(0, 9)] == ["Fine."]
    found.close()


async def test_an_encrypted_pdf_is_not_read():
    """It says so, rather than give nothing."""
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(write_pdf(DECK).content))
    writer.encrypt("secret", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    with pytest.raises(UnreadableDocumentError, match="encrypted"):
        await DocumentReader().read(once(out.getvalue()), "application/pdf")
