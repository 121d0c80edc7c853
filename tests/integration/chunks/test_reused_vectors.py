"""Texts that only moved within their document keep their vectors; nothing else takes a vector of another chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from highwater.connectors.chunks import waiting
from highwater.connectors.chunks import worker_backfill as backfill
from highwater.connectors.chunks.worker_backfill import BackfillWorker
from highwater.connectors.kafka.handler import ProcessContext
from highwater.streams.chunks.identity import content_hash
from tests.conftest import Stack
from tests.integration.chunks.chunk_rows import NOW_MS, Rows
from tests.integration.connecting import in_outbox, until
from tests.integration.databases import address_of, own_database

MODEL, LENGTH = "scripted@4", 4


class Counting:
    """An embedder whose vectors depend on the letters of their texts; it remembers the requested texts."""

    basis_id, calls_at_once = MODEL, 1

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        self.texts += texts
        return [vector_of(text) for text in texts]


def vector_of(text: str) -> bytes:
    """The vector of a text: two texts of these tests never have the same."""
    return np.asarray([len(text), sum(map(ord, text)), ord(text[-1]), 1], "<f4").tobytes()


class Case:
    """A database with documents, and a worker."""

    def __init__(self, context: ProcessContext, url: str) -> None:
        self.rows, self.embedder, self._url = Rows(context.pool), Counting(), url
        self.context = replace(context, clock=lambda: NOW_MS + 5_000)
        self._offset = 1_000

    async def edit(self, source_id: str, texts: Sequence[str], *, title: str | None = None, ns: str = "docs") -> None:
        """The document has these texts now, written as the sink of chunks writes them."""
        self._offset += 1
        rows = [(number, text, content_hash(ns, "s", source_id, number, text)) for number, text in enumerate(texts)]
        await self.rows.pool.execute(
            "INSERT INTO chunks AS c (ns, slot, source_id, chunk_no, content, title, content_hash, created_at, updated_at, "
            "ingest_id, source_partition, source_offset) "
            "SELECT $1, 's', $2, n, content, $6, hashed, to_timestamp($7), to_timestamp($7), 'i', 0, $8 "
            "FROM unnest($3::bigint[], $4::text[], $5::text[]) AS w (n, content, hashed) "
            "ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE SET content = EXCLUDED.content, title = EXCLUDED.title, "
            "content_hash = EXCLUDED.content_hash, source_offset = EXCLUDED.source_offset, to_delete = false, "
            "embedding_stale = c.embedding IS NOT NULL AND (c.embedding_stale OR c.content_hash <> EXCLUDED.content_hash)",
            ns, source_id, *map(list, zip(*rows, strict=True)), title, NOW_MS / 1000, self._offset,
        )  # fmt: skip

    async def fill(self) -> list[str]:
        """Let a worker compute missing vectors; return the texts that it requested."""
        self.embedder.texts.clear()
        stop = asyncio.Event()
        task = asyncio.create_task(BackfillWorker(self._url, self.context, self.embedder, asyncio.Event()).run(stop))
        query = "SELECT count(*) FROM chunks WHERE (embedding IS NULL OR embedding_stale) AND NOT to_delete"

        async def is_filled() -> bool:
            return await self.rows.pool.fetchval(query) == 0

        try:
            await until(is_filled, "every chunk has its vector")
        finally:
            stop.set()
            await task
        await self._check()
        return list(self.embedder.texts)

    async def _check(self) -> None:
        """Each vector is the one of the row's own text."""
        for row in await self.rows.pool.fetch("SELECT content, embedding::text, title FROM chunks WHERE NOT to_delete"):
            text = f"{row['title']}\n\n{row['content']}" if row["title"] else row["content"]
            assert row["embedding"] == np.array2string(
                np.frombuffer(vector_of(text), "<f4"), separator=",", formatter={"float_kind": lambda one: f"{one:.0f}"}
            )


@pytest.fixture
async def case(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """An empty database with a namespace, and a worker that looks often."""
    monkeypatch.setattr(backfill, "POLL_SECONDS", 0.05)
    async with own_database(stack) as context:
        one = Case(context, await address_of(stack, context))
        await one.rows.namespace()
        yield one


def paragraphs(count: int, first: int = 0) -> list[str]:
    """Texts of a document, all different."""
    return [f"paragraph {'x' * (number % 7)} {number}" for number in range(first, first + count)]


async def told_numbers(case: Case) -> list[int]:
    """The numbers of chunks whose new vectors were published, in order."""
    events = await in_outbox(case.context, "chunks.chunk-changed")
    return [change["chunk_no"] for event in events for change in event["changes"]]


@pytest.mark.parametrize("reused_max", [2_000, 10])
async def test_a_paragraph_on_top_costs_one_vector(case: Case, monkeypatch: pytest.MonkeyPatch, reused_max: int):
    """When 200 chunks move by one only the new text is embedded; also if vectors are moved in several transactions.

    Each moved vector has its event, in a new version of the namespace.
    """
    monkeypatch.setattr(waiting, "REUSED_MAX", reused_max)
    texts = paragraphs(200)
    await case.edit("a", texts)
    assert len(await case.fill()) == 200
    version = "SELECT version FROM resource_versions WHERE key = 'ns:docs'"
    before, told = await case.rows.pool.fetchval(version), len(await told_numbers(case))
    await case.edit("a", ["on top", *texts])
    assert await case.fill() == ["on top"]
    assert sorted((await told_numbers(case))[told:]) == list(range(201))
    assert await case.rows.pool.fetchval(version) > before


async def test_a_paragraph_that_is_gone_costs_none(case: Case):
    """The texts behind it move up, the last one from a chunk that is marked for deletion; a swap costs none either."""
    texts = paragraphs(150)
    await case.edit("a", texts)
    await case.fill()
    await case.edit("a", [*texts[:70], *texts[71:]])
    await case.rows.pool.execute("UPDATE chunks SET to_delete = true WHERE chunk_no = 149")
    assert await case.fill() == []
    texts = [*texts[:70], *texts[71:]]
    await case.edit("a", [*texts[::-1]])
    assert await case.fill() == []


async def test_equal_texts_are_embedded_once(case: Case):
    """Each text of a batch is requested once, and all its chunks get the vector."""
    await case.edit("a", ["same", "other", "same", "same"])
    await case.edit("b", ["same"])
    assert await case.fill() == ["same", "other"]


async def test_texts_that_changed_twice_before_the_worker_came(case: Case):
    """A vector remembers the text that it was made of, not the one that came between; a text that is back keeps its vector."""
    await case.edit("a", ["one", "two", "three"])
    await case.fill()
    await case.edit("a", ["between 1", "between 2", "between 3"])
    await case.edit("a", ["new", "one", "three"])
    assert await case.fill() == ["new"]
    row = await case.rows.pool.fetchrow("SELECT count(*), count(vector_text) AS known FROM chunks")
    assert tuple(row) == (3, 0)


async def test_another_title_is_another_text(case: Case):
    """Title and text are embedded together, so a moved text under another title is embedded again."""
    await case.edit("a", ["one", "two"], title="Before")
    await case.fill()
    await case.edit("a", ["new", "one"], title="After")
    assert await case.fill() == ["After\n\nnew", "After\n\none"]


async def test_a_vector_is_reused_only_in_its_document_and_namespace(case: Case):
    """The same text of another document or namespace is embedded for it, also where its chunks are stale."""
    await case.rows.namespace("other")
    await case.edit("a", ["one", "two"])
    await case.edit("b", ["x", "y"])
    await case.edit("a", ["p", "q"], ns="other")
    await case.fill()
    await case.edit("b", ["one", "two"])
    await case.edit("a", ["one", "two"], ns="other")
    assert sorted(set(await case.fill())) == ["one", "two"]


@pytest.mark.parametrize("model", ["sent", "older@4"])
async def test_a_vector_of_another_model_is_not_reused(case: Case, model: str):
    """One that came with its chunk, or that an earlier model made, stays what it is for its own text only."""
    await case.edit("a", ["one", "two"])
    await case.fill()
    await case.rows.pool.execute("UPDATE chunks SET embedding_model = $1", model)
    await case.edit("a", ["new", "one"])
    assert await case.fill() == ["new", "one"]


async def test_a_vector_of_a_text_that_was_erased_is_not_reused(case: Case):
    """When the row is gone so are its vector and what it was of."""
    await case.edit("a", ["one", "two", "three"])
    await case.fill()
    await case.edit("a", ["new", "b", "one"])
    await case.rows.pool.execute("DELETE FROM chunks WHERE chunk_no = 0")
    assert await case.fill() == ["b", "one"]


async def test_a_stale_vector_whose_text_is_unknown_is_not_reused(case: Case):
    """Before the table remembered texts, a stale vector could be of any: it is neither of the row's text nor of another."""
    await case.edit("a", ["one", "two", "three"])
    await case.fill()
    await case.edit("a", ["four", "five", "four"])
    await case.rows.pool.execute("UPDATE chunks SET vector_text = NULL WHERE chunk_no = 0")
    assert await case.fill() == ["four", "five"]
