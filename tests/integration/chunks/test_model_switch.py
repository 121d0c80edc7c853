"""A namespace changes its embedding model while it is searched: by batches, with the old vectors until the last one is there."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from highwater.api.cli.checks import check_embedder
from highwater.connectors.chunks import indexes as chunk_indexes
from highwater.connectors.chunks import switching as chunk_switching
from highwater.connectors.chunks import worker_backfill as backfill
from highwater.connectors.chunks.indexes import ChunkIndexes
from highwater.connectors.chunks.switching import Switching
from highwater.connectors.chunks.worker_backfill import Backfill
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.embeddings import BuiltInEmbedder
from highwater.connectors.models.local_model import LocalEmbedder
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.retrieval import search as chunk_search
from highwater.connectors.retrieval.search import search
from highwater.streams.chunks.identity import content_hash
from highwater.streams.clock import ProductClock, to_ms
from highwater.streams.settings import read_settings
from tests.integration.api_server import NOW, Seeds, running_api
from tests.integration.chunks.making import store_chunk, store_namespace
from tests.integration.connecting import surroundings, until

CONTENTS = ["the suite was repaired by Anna", "apples and pears", "partitions of a topic"]


@pytest.fixture
async def context(stack, seeds, monkeypatch) -> AsyncIterator[ProcessContext]:
    """The shared resources of a worker, on this module's database without the namespaces of other tests; it polls often."""
    monkeypatch.setattr(backfill, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(backfill, "TEXTS_MAX", 1)
    async with surroundings(stack) as made, await open_pool(seeds.url) as pool:
        for table in ("chunks", "chunk_sources", "chunk_namespaces"):
            await pool.execute(f"DELETE FROM {table}")
        yield ProcessContext(pool, made.client, made.admin, made.registry, made.codec, ProductClock())


class Gated:
    """An embedder that returns N vectors and then waits."""

    calls_at_once = 1

    def __init__(self, made_by: Any, before_waiting: int) -> None:
        self.made_by, self.basis_id = made_by, made_by.basis_id
        self.left, self.gate = before_waiting, asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        if self.left < len(texts):
            await self.gate.wait()
        self.left -= len(texts)
        made: list[bytes] = await self.made_by.embed(texts)
        return made


async def filled(seeds: Seeds, embedder: Any, **columns: Any) -> str:
    """A namespace with vectors of a model; its name."""
    ns = f"ns-{uuid.uuid4().hex[:8]}"
    await store_namespace(seeds, ns, dimensions=384, embedding_model=embedder.basis_id)
    await seeds.insert("chunk_sources", ns=ns, slot="main", source_id="readme", ingest_id="i")
    for number, vector in enumerate(await embedder.embed(CONTENTS)):
        text = "[" + ",".join(map(str, np.frombuffer(vector, "<f4"))) + "]"
        named = {
            "content": CONTENTS[number],
            "content_hash": content_hash(ns, "main", "readme", number, CONTENTS[number]),
        }
        await store_chunk(
            seeds, ns, number, **named, embedding=text, **{"embedding_model": embedder.basis_id, **columns}
        )
    return ns


async def held(context: ProcessContext, ns: str) -> dict[int, tuple[str | None, bytes | None]]:
    """The vectors that searches compare, with their models, by number."""
    async with context.pool.acquire() as tx:
        await vectors.enable(tx)
        rows = await tx.fetch("SELECT chunk_no, embedding_model, embedding FROM chunks WHERE ns = $1", ns)
    return {row["chunk_no"]: (row["embedding_model"], row["embedding"]) for row in rows}


async def passport(context: ProcessContext, ns: str) -> Any:
    """The row of a namespace."""
    return await context.pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", ns)


@asynccontextmanager
async def working(seeds: Seeds, context: ProcessContext, *embedders: Any) -> AsyncIterator[None]:
    """The connector, with what makes vectors; it ends as a killed process does."""
    connector = Backfill(seeds.url, context, *embedders)
    task = asyncio.create_task(connector.run(asyncio.Event()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_vectors(context: ProcessContext, ns: str) -> int:
    """How many vectors of another model a namespace has waiting."""
    count: int = await context.pool.fetchval("SELECT count(*) FROM chunk_next_vectors WHERE ns = $1", ns)
    return count


async def test_built_in_vectors_become_those_of_the_local_model(own_settings, seeds, context):
    """Half way the old ones are compared, and after a killed worker the next one continues; at the end all change at once,
    and chunks that are no longer found lose their own. The answer names the model that compared; progress is published meanwhile.
    """
    older, local = BuiltInEmbedder(), LocalEmbedder(read_settings({}).model_dir)
    ns = await filled(seeds, older)
    await store_chunk(seeds, ns, 3, content="gone", embedding="[" + ",".join(["1"] * 384) + "]", to_delete=True)
    before = await held(context, ns)
    with running_api(own_settings(HIGHWATER_EMBEDDER="local")) as api:

        async def searched() -> tuple[str, list[int]]:
            answer = (await api.get("/api/chunks/search", params={"ns": ns, "q": "who fixed the broken tests"})).json()
            return answer["compared_by"], [one["chunk_no"] for one in answer["results"]]

        gated = Gated(local, 2)
        async with working(seeds, context, gated, older):
            await until(lambda: _equals(next_vectors(context, ns), 2), "two of three vectors are made")
            assert await held(context, ns) == before
            compared_by, _ = await searched()
            assert compared_by == older.basis_id
            told = (await api.get("/api/chunks/lifecycle", params={"ns": ns})).json()
            assert (told["embedding_model"], told["switch"]["embedding_model"]) == (older.basis_id, local.basis_id)
            assert told["switch"]["made"] == 2
            (checked,) = await check_embedder(own_settings(HIGHWATER_EMBEDDER="local"))
            assert "; 1 namespace in a change of embedding model: 1 vector missing, expected end " in checked.detail
        assert await next_vectors(context, ns) == 2  # computed vectors stay
        version = await context.pool.fetchval("SELECT version FROM resource_versions WHERE key = $1", f"ns:{ns}")
        asked = Gated(local, 2)
        async with working(seeds, context, asked, older):
            await until(lambda: _is_of(context, ns, local.basis_id), "the namespace is of the local model")
            await until(lambda: _equals(next_vectors(context, ns), 0), "the separate table is cleared")
        assert asked.left == 1  # one text was left to be read
        wanted = await local.embed(CONTENTS)
        found = await held(context, ns)
        assert found == {**{number: (local.basis_id, wanted[number]) for number in range(3)}, 3: (None, None)}
        assert await searched() == (local.basis_id, [0, *[number for number in (await searched())[1] if number != 0]])
        assert (await api.get("/api/chunks/lifecycle", params={"ns": ns})).json()["switch"] is None
    after = await context.pool.fetchval("SELECT version FROM resource_versions WHERE key = $1", f"ns:{ns}")
    assert after > (version or 0)


async def _equals(value: Any, expected: int) -> bool:
    return bool(await value == expected)


async def _is_of(context: ProcessContext, ns: str, model: str) -> bool:
    row = await passport(context, ns)
    return bool(row["embedding_model"] == model and row["next_model"] is None and not row["vectors_beside"])


async def test_a_search_that_began_before_compares_no_two_models(seeds, context):
    """It read whose the vectors are, then all became another's: words are left, though both are of one length."""
    older = BuiltInEmbedder()
    ns = await filled(seeds, older)
    row = await passport(context, ns)
    (vector,) = await older.embed(CONTENTS[:1])
    asked = {"q_vector": vector, "words": "pears", "limit": 3, "as_of_ms": context.clock()}
    assert (await search(context.pool, row, **asked)).results[0].chunk_no == 0
    await context.pool.execute("UPDATE chunk_namespaces SET embedding_model = 'next@384' WHERE ns = $1", ns)
    found = (await search(context.pool, row, **asked)).results
    assert (found[0].chunk_no, {one.cosine for one in found}) == (1, {None})


async def test_what_is_begun_and_given_up(seeds, context):
    """A model that is changed back has nothing switched, nor are vectors that were sent; a text that changed is read again."""
    older, next_one = BuiltInEmbedder(), Gated(BuiltInEmbedder(), 99)
    next_one.basis_id = "next@384"
    ns, sent = await filled(seeds, older), await filled(seeds, older, embedding_model="sent")
    switching, back = (Switching(context.codec, context.clock, one.basis_id) for one in (next_one, older))
    async with context.pool.acquire() as tx:

        async def turn() -> int:
            return await switching.turn(
                tx, lambda chunks: next_one.embed([one.text for one in chunks]), most=3, aside=(), may_end=True
            )

        await switching.review(tx)
        assert [(await passport(context, one))["next_model"] for one in (ns, sent)] == ["next@384", None]
        assert (await turn(), await next_vectors(context, ns)) == (3, 3)
        await back.review(tx)
        assert ((await passport(context, ns))["next_model"], await next_vectors(context, ns)) == (None, 0)
        await switching.review(tx)
        assert await turn() == 3
        await context.pool.execute("UPDATE chunks SET title = 'Other' WHERE ns = $1 AND chunk_no = 1", ns)
        assert (await turn(), (await passport(context, ns))["embedding_model"]) == (1, older.basis_id)
        assert (await turn(), (await passport(context, ns))["embedding_model"]) == (1, "next@384")
        while await switching.exchange(tx):
            pass
    (wanted,) = await older.embed([f"Other\n\n{CONTENTS[1]}"])
    assert (await held(context, ns))[1] == ("next@384", wanted)


class Backwards:
    """An embedder of another model: vectors of texts read from their ends."""

    calls_at_once, basis_id = 1, "next@384"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        return await BuiltInEmbedder().embed([text[::-1] for text in texts])


async def test_the_change_of_one_row_switches_all_searches(seeds, context, monkeypatch):
    """It waits for no writer of the sources. While batches exchange the vectors, and after a kill between any two of them,
    searches answer the same, by an index or one by one; a text that changes meanwhile loses its vector, and former texts are
    compared by no other model's.
    """
    monkeypatch.setattr(chunk_switching, "EXCHANGED_MAX", 1)
    embedder = Backwards()
    ns = await filled(seeds, BuiltInEmbedder())
    changed = "UPDATE chunks SET content = 'pears alone', content_hash = 'new', updated_at = $2 WHERE ns = $1 AND chunk_no = 1"
    await context.pool.execute(changed, ns, NOW + timedelta(hours=1))
    switching = Switching(context.codec, context.clock, embedder.basis_id)
    q_vector, *made = await embedder.embed(["apples", CONTENTS[0], "pears alone", CONTENTS[2]])
    asked, *compared = (np.frombuffer(vector, "<f4") for vector in (q_vector, *made))
    wanted = {number: pytest.approx(float(asked @ vector), abs=1e-6) for number, vector in enumerate(compared)}

    async def found(compared_max: int, texts_of_ms: int | None = None) -> dict[int, float]:
        monkeypatch.setattr(chunk_search, "COMPARED_MAX", compared_max)
        row, now_ms = await passport(context, ns), context.clock()
        told = await search(
            context.pool, row, q_vector=q_vector, words=None, limit=9, as_of_ms=now_ms, texts_of_ms=texts_of_ms
        )
        return {one.chunk_no: one.similarity for one in told.results}

    async with context.pool.acquire() as tx:

        async def turn() -> int:
            return await switching.turn(
                tx, lambda chunks: embedder.embed([one.text for one in chunks]), most=3, aside=(), may_end=True
            )

        await switching.review(tx)
        assert await turn() == 3
        async with context.pool.acquire() as writer, writer.transaction():
            await writer.execute("SELECT FROM chunk_sources WHERE ns = $1 FOR UPDATE", ns)
            async with asyncio.timeout(30):
                assert await turn() == 1
        steps = 0
        while True:
            assert [await found(9), await found(0)] == [wanted, wanted], f"after {steps} batches"
            former = await found(9, to_ms(NOW) + 60_000)
            assert former == {**wanted, 1: 0.0}, f"after {steps} batches"
            if not await switching.exchange(tx):
                break
            steps += 1
            if steps == 1:
                await context.pool.execute("UPDATE chunks SET title = 'Other' WHERE ns = $1 AND chunk_no = 2", ns)
                wanted[2] = 0.0
    assert steps >= len(CONTENTS)
    assert await held(context, ns) == {**{n: (embedder.basis_id, made[n]) for n in range(2)}, 2: (None, None)}
    assert (await next_vectors(context, ns), (await passport(context, ns))["vectors_beside"]) == (0, False)


async def test_no_search_of_a_large_namespace_is_without_an_index(seeds, context, monkeypatch):
    """The change waits for the index of the vectors beside, and its end for that of the chunks; each search between reads one of
    them, and answers as the formula says, also by a vector that came meanwhile. At the end the first index is gone.
    """
    for module in (chunk_search, chunk_indexes, chunk_switching):
        monkeypatch.setattr(module, "COMPARED_MAX", 2)
    monkeypatch.setattr(chunk_switching, "EXCHANGED_MAX", 1)
    embedder, indexes = Backwards(), ChunkIndexes(seeds.url, context.clock)
    ns = await filled(seeds, BuiltInEmbedder())
    switching = Switching(context.codec, context.clock, embedder.basis_id)
    q_vector, *made = await embedder.embed(["apples", *CONTENTS, "apples alone"])
    asked, *compared = (np.frombuffer(vector, "<f4") for vector in (q_vector, *made))
    plans: list[str] = []

    async def explained(tx: Any, statement: str, asked: Any, words: Any, depth: Any, limit: int) -> Any:
        rows = await tx.fetch(f"EXPLAIN {statement}", *asked, limit, depth.nearest, depth.recent)
        plans.append("\n".join(row[0] for row in rows))
        return await look(tx, statement, asked, words, depth, limit)

    look = chunk_search._look
    monkeypatch.setattr(chunk_search, "_look", explained)

    async def found() -> tuple[str, dict[int, float]]:
        plans.clear()
        row = await passport(context, ns)
        vector = (
            q_vector if row["embedding_model"] == embedder.basis_id else (await BuiltInEmbedder().embed(["apples"]))[0]
        )
        told = await search(context.pool, row, q_vector=vector, words=None, limit=9, as_of_ms=context.clock())
        (index,) = {word for plan in plans for word in re.findall("chunks_vectors_(?:next_)?", plan)}
        return index, {one.chunk_no: one.similarity for one in told.results}

    async with context.pool.acquire() as tx:

        async def turn() -> int:
            return await switching.turn(
                tx, lambda chunks: embedder.embed([one.text for one in chunks]), most=3, aside=(), may_end=True
            )

        await indexes._look()
        await switching.review(tx)
        assert (await turn(), await turn()) == (3, 0)
        assert ((await passport(context, ns))["index_awaited"], (await found())[0]) == (True, "chunks_vectors_")
        await indexes._look()
        assert (await turn(), (await passport(context, ns))["embedding_model"]) == (1, embedder.basis_id)
        wanted = {number: pytest.approx(float(asked @ vector), abs=1e-6) for number, vector in enumerate(compared[:3])}
        while await switching.exchange(tx):
            assert await found() == ("chunks_vectors_next_", wanted)
            if 3 not in wanted:  # a chunk that came since the change, and got its vector
                wanted[3] = pytest.approx(float(asked @ compared[3]), abs=1e-6)
                text = "[" + ",".join(map(str, compared[3])) + "]"
                columns = {"content": "apples alone", "embedding": text, "embedding_model": embedder.basis_id}
                await store_chunk(seeds, ns, 3, **columns)
        row = await passport(context, ns)
        assert (row["vectors_beside"], row["index_awaited"], await found()) == (
            True,
            True,
            ("chunks_vectors_next_", wanted),
        )
        await indexes._look()
        assert await found() == ("chunks_vectors_next_", wanted)
        while await switching.exchange(tx):
            assert await found() == ("chunks_vectors_", wanted)
    await indexes._look()
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'chunks\\_vectors\\_next%'"
    assert (await context.pool.fetchval(left), await next_vectors(context, ns)) == (0, 0)
    assert not (await passport(context, ns))["vectors_beside"]
