"""The chunks in the input of answers: queries of open namespaces, decks of their documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from highwater.connectors.jobs import blobs, store
from highwater.connectors.jobs.generation import GenerationSteps
from highwater.connectors.jobs.steps import Ask, Done
from highwater.connectors.models.call_rows import Totals, totals_of
from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.models.embeddings import Embedded
from highwater.connectors.queries.stages import Stages
from highwater.connectors.retrieval.context import ChunkContext
from highwater.connectors.retrieval.results import Result
from highwater.schemas.errors import UnavailableError
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.local_deck import local_deck_answer
from highwater.streams.jobs.states import JobStatus, Kind
from highwater.streams.models.costs import parse_prices
from tests.integration.chunks.chunk_rows import NOW_MS, Rows

WORK = Work("22222222-2222-4222-8222-222222222222", "11111111-1111-4111-8111-111111111111")


class Scripted:
    """An embedder with two directions: of texts with `sail` in them, and of all others."""

    basis_id = model = "scripted@2"
    is_paid = True
    calls_at_once = 1
    is_away = False

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        if self.is_away:
            raise UnavailableError("scripted")
        return [np.asarray([1.0, 0.0] if "sail" in text else [0.0, 1.0], "<f4").tobytes() for text in texts]

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """The same; seven tokens a text."""
        return Embedded(await self.embed(texts), 7 * len(texts))


async def _ingested(rows: Rows, ns: str, source_id: str, status: str = "complete", slot: str = "s") -> None:
    await rows.pool.execute(
        "INSERT INTO chunk_ingests (ingest_id, ns, slot, source_id, status, position, created_at, updated_at, decided_at) "
        "VALUES ('i', $1, $2, $3, $4, '', 'epoch', 'epoch', 'epoch')",
        ns, slot, source_id, status,
    )  # fmt: skip


async def _of_query(context: ChunkContext, query: str, word: str) -> list[Result]:
    return await context.of_query(context.asked(query, WORK), [word], limit=5, as_of_ms=NOW_MS)


async def test_a_query_is_told_of_open_namespaces_alone(rows: Rows):
    """Chunks with its words, of no closed namespace; one that is only near is left out."""
    await rows.namespace("open", is_open=True)
    await rows.namespace("closed", is_open=False)
    for ns in ("open", "closed"):
        await rows.put("a", ["The sail was mended", "Nothing of it"], ns=ns)
    found = await _of_query(ChunkContext(rows.pool), "Which sail?", "sail")
    assert [(one.ns, one.chunk_no) for one in found] == [("open", 0)]


async def test_vectors_of_the_same_model_count(rows: Rows):
    """The nearer of two chunks with the word comes first; of another model, or with the embedder away, the words decide.

    What the service reads is what the work used, each time that it is asked.
    """
    embedder = Scripted()
    counted = CountedEmbedder(rows.pool, embedder, parse_prices("scripted=1/0,scripted@2=2/0"), lambda: NOW_MS)
    await rows.namespace(dimensions=2, embedding_model="scripted@2")
    await rows.put("a", ["word, word, word"], vector=[[0.0, 1.0]])
    await rows.put("b", ["a word"], vector=[[1.0, 0.0]])

    async def order() -> list[str]:
        found = await _of_query(ChunkContext(rows.pool, counted), "sail", "word")
        return [one.source_id for one in found]

    assert await order() == ["b", "a"]
    assert await order() == ["b", "a"]
    async with rows.pool.acquire() as tx:
        assert await totals_of(tx, [WORK.id]) == {WORK.id: Totals(14, Decimal("0.000028"))}
    embedder.is_away = True
    assert await order() == ["a", "b"]
    embedder.is_away = False
    await rows.pool.execute("UPDATE chunk_namespaces SET embedding_model = 'other'")
    assert await order() == ["a", "b"]


async def test_documents_that_were_ingested_as_a_whole(rows: Rows):
    """The best chunks that fit, in the order of the documents; not those of an ingest that is not complete, nor cold ones."""
    await rows.namespace("closed", is_open=False)
    for source, status in (("whole", "complete"), ("part", "partial")):
        await rows.put(source, ["first of sails", "x " * 400, "last of sails"], ns="closed")
        await _ingested(rows, "closed", source, status)
    await rows.put("cold", ["sails"], ns="closed", age_days=400)
    await _ingested(rows, "closed", "cold")
    context = ChunkContext(rows.pool)
    asked = {"characters_max": 100, "as_of_ms": NOW_MS}
    ingested, found = await context.of_documents(["part", "cold", "whole", "none"], "sails", WORK, **asked)
    assert ingested == {"whole"}
    assert [(one.source_id, one.chunk_no) for one in found] == [("whole", 0), ("whole", 2)]


async def test_the_sources_of_a_query(rows: Rows):
    """Insights and chunks stand together, the nearest first; a chunk is named by its key, its document and its event."""
    await rows.namespace("docs", is_open=True)
    await rows.put("guide", ["How the sail is mended"], title="Boats", published_days=3)
    await rows.pool.execute("INSERT INTO channels (channel_id, current_seq) VALUES ('acme/boat', 2)")
    for seq, text in ((1, "Mend the sail"), (2, "Paint the hull")):
        await rows.pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
            "VALUES ($1, 'acme/boat', $2::bigint, 'epoch', 'epoch', $3, 0, $2::bigint)",
            f"i{seq}", seq, text,
        )  # fmt: skip
    made = Stages(rows.pool, model="small", strong_model="strong")
    found = await made._found(_run("Which sail was mended?"))
    assert [one.insight_id for one in found.sources] == ["s|guide|0", "i1"]
    (chunk, insight) = found.sources
    assert (chunk.channel_id, chunk.document, chunk.heading) == ("docs", "guide", "Boats")
    assert (chunk.text, chunk.position) == ("How the sail is mended", "chunks.chunk-submitted/0/0")
    assert chunk.ts_ms == NOW_MS - 3 * 86_400_000
    assert (insight.channel_id, insight.position) == ("acme/boat", "feeds.insight-ingested/0/1")
    counted = await made._found(_run("How many sails were mended?"))
    assert counted.matching == (1, ("sails", "mended"))
    assert (await made._found(_run("Which rudder was lost?"))).sources == []


def _run(query: str) -> Any:
    class Run:
        id = WORK.id
        user_id = "11111111-1111-4111-8111-111111111111"
        organization_id = None
        analysis: dict[str, Any] = {}  # noqa: RUF012
        updated_ms = NOW_MS

    run = Run()
    run.query = query  # type: ignore[attr-defined]
    return run


async def test_a_deck_is_made_of_its_documents_chunks(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    """An ingested document is represented by the chunks that answer; another one is read; those of other organizations never
    are.
    """
    texts = {name: f"{name}: all of the document".encode() for name in ("ingested", "plain")}
    ids = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    owned = {ids[name]: blobs.Blob(ids[name], len(text), "text/plain") for name, text in texts.items()}

    async def known(_: Any, asked: Any, organization_id: str) -> Any:
        return {one: owned[one] for one in asked if one in owned}

    async def read(_: Any, blob: blobs.Blob) -> AsyncIterator[bytes]:
        yield next(text for name, text in texts.items() if ids[name] == blob.sha256)

    monkeypatch.setattr(blobs, "known", known)
    monkeypatch.setattr(blobs, "read", read)
    await rows.namespace("org", is_open=False)
    await rows.put(ids["ingested"], ["a chunk of sails"], ns="org", title="T")
    await _ingested(rows, "org", ids["ingested"])
    steps = GenerationSteps(rows.pool, None, lambda: NOW_MS, model="small")
    args = type("Args", (), {"source_document_ids": (ids["plain"], ids["ingested"])})()
    job: Job = type("AJob", (), {"id": "j", "organization_id": "o"})()
    told = await steps._passages(job, args, "sails", 8_000)
    assert [(one.document, one.heading, one.text, one.place) for one in told] == [
        (ids["ingested"], "T", "a chunk of sails", 0),
        (ids["plain"], "", "plain: all of the document", 0),
    ]


async def test_a_deck_without_documents_is_made_of_what_was_ingested(rows: Rows):
    """Like an answer: chunks of open namespaces with its words; it is tagged with its sources, so withdrawn text is removed
    from it.
    """
    for ns, is_open in (("open", True), ("closed", False)):
        await rows.namespace(ns, is_open=is_open)
        await rows.put("guide", ["Sails are mended by hand."], ns=ns, title="Boats")
        await rows.put("other", ["Nothing of it."], ns=ns, title="Trees")
    steps = GenerationSteps(rows.pool, None, lambda: NOW_MS, model="small")
    job = Job(
        WORK.id, Kind.GENERATION, "acme", WORK.user_key, '{"query": "How are sails mended?", "slides": 1}', JobStatus.RUNNING
    )  # fmt: skip
    step = await steps.next(job)
    while isinstance(step, Ask):
        assert [(one["heading"], one["text"]) for one in json.loads(step.user)["sources"]] == [
            ("Boats", "Sails are mended by hand.")
        ]
        made = step.conclude(local_deck_answer(step.stage, step.user))
        job = replace(job, checkpoint=json.loads(json.dumps(made.checkpoint)))
        step = await steps.next(job)
    assert isinstance(step, Done)
    assert step.deck is not None
    (slide,) = step.deck.slides
    assert slide["bullets"] == ["Sails are mended by hand."]
    assert slide["sources"] == [{"document": "guide", "name": "open/guide", "heading": "Boats", "place": 0}]
    async with rows.pool.acquire() as tx, tx.transaction():
        await store._store_deck(tx, job, step.deck, NOW_MS)
    tags = await rows.pool.fetch("SELECT space FROM surrogate_keys WHERE document = $1", f"deck:{job.id}")
    assert "source:open|s|guide" in {row["space"] for row in tags}


async def test_a_deck_without_documents_quotes_insights_and_loses_what_is_retracted(rows: Rows):
    """Those near the query, by channel and day; the deck is tagged with them, and one retracted while it was made is out."""
    said = {
        "i1": "Anchors are forged of iron in the yard",
        "i2": "Anchors are painted grey every year",
        "i3": "Nothing near",
    }
    for seq, (insight_id, text) in enumerate(said.items(), start=1):
        await rows.pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
            "VALUES ($1, 'ships', $2::int, '2026-11-20', '2026-11-20', $3, 0, $2)",
            insight_id, seq, text,
        )  # fmt: skip
    steps = GenerationSteps(rows.pool, None, lambda: NOW_MS, model="small")
    job = Job(
        "33333333-3333-4333-8333-333333333333", Kind.GENERATION, "acme", WORK.user_key,
        '{"query": "How are anchors made?", "slides": 3}', JobStatus.RUNNING,
    )  # fmt: skip
    step = await steps.next(job)
    while isinstance(step, Ask):
        made = step.conclude(local_deck_answer(step.stage, step.user))
        job = replace(job, checkpoint=json.loads(json.dumps(made.checkpoint)))
        step = await steps.next(job)
    assert isinstance(step, Done)
    assert step.deck is not None
    slides = step.deck.slides
    assert {bullet for slide in slides for bullet in slide["bullets"]} == {said["i1"], said["i2"]}
    sources = {source["document"]: source for slide in slides for source in slide["sources"]}
    assert sources["i1"] == {"document": "i1", "name": "2026-11-20", "heading": "ships", "place": -1}
    await rows.pool.execute("UPDATE insights SET retracted_at = now() WHERE insight_id = 'i2'")
    async with rows.pool.acquire() as tx, tx.transaction():
        await store._store_deck(tx, job, step.deck, NOW_MS)
    tags = await rows.pool.fetch("SELECT space, numbers FROM surrogate_keys WHERE document = $1", f"deck:{job.id}")
    assert "channel:ships" in {row["space"] for row in tags}
    kept = await rows.pool.fetchval("SELECT slides::text FROM presentations WHERE presentation_id = $1", job.id)
    assert (said["i1"] in kept, said["i2"] in kept) == (True, False)
