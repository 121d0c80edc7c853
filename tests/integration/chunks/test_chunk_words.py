"""The sums of words: after any change of chunks they equal those of the chunks that are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.postgres import vectors
from highwater.connectors.verify.live import live_snapshot
from highwater.connectors.verify.report import Checked
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.connectors.verify.word_sums import verify_word_sums
from highwater.streams.settings import Settings
from tests.conftest import Stack
from tests.integration.chunks.chunk_rows import Rows
from tests.integration.databases import own_database

WORDS = ("outbox", "offset", "lag", "commits", "broker", "leader", "replica", "tombstone")


@pytest.fixture
async def rows(stack: Stack) -> AsyncIterator[Rows]:
    """An empty database of its own."""
    async with own_database(stack) as context:
        yield Rows(context.pool)


async def kept(tx: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """The sums by namespace and word."""
    found = await tx.fetch(
        "SELECT ns, word, sum(chunks)::int AS chunks, sum(octets)::int AS octets FROM chunk_words "
        "GROUP BY ns, word HAVING sum(chunks) <> 0 OR sum(octets) <> 0"
    )
    return {(row["ns"], row["word"]): (row["chunks"], row["octets"]) for row in found}


async def counted(tx: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """The same, counted from the chunks."""
    found = await tx.fetch(
        "SELECT ns, tsvector_to_array(words) AS words, title, content FROM chunks WHERE NOT to_delete"
    )
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in found:
        octets = len((row["title"] or "").encode()) + min(8_000, len(row["content"].encode()))
        for word, more in (*((one, 0) for one in row["words"]), ("", octets)):
            chunks, held = sums.get((row["ns"], word), (0, 0))
            sums[row["ns"], word] = (chunks + 1, held + more)
    return sums


def text(rng: np.random.Generator) -> str:
    """Some words."""
    return " ".join(rng.choice(WORDS, rng.integers(0, 7)))


async def change(tx: Any, rng: np.random.Generator) -> None:
    """One statement that changes some chunks in a way that the product does."""
    number, ns = int(rng.integers(12)), str(rng.choice(["a", "b"]))
    statements = (
        (
            "INSERT INTO chunks (ns, slot, source_id, chunk_no, content, title, content_hash, created_at, updated_at, ingest_id, "
            "source_partition, source_offset) SELECT $1, 's', 'x', n, $3 || n, $4, 'h', now(), now(), 'i', 0, 0 "
            "FROM generate_series($2::int, $2 + 3) AS n ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE SET "
            "content = excluded.content, title = excluded.title, to_delete = false"
        ),
        "UPDATE chunks SET to_delete = NOT to_delete WHERE ns = $1 AND chunk_no >= $2 AND $3 || $4 <> '-'",
        "UPDATE chunks SET embedding = '[1,2]' WHERE ns = $1 AND chunk_no <= $2 AND $3 || $4 <> '-'",
        "UPDATE chunks SET title = $4 WHERE ns = $1 AND chunk_no <= $2 AND $3 <> '-'",
        "DELETE FROM chunks WHERE ns = $1 AND chunk_no = $2 AND $3 || $4 <> '-'",
    )
    await tx.execute(statements[int(rng.integers(len(statements)))], ns, number, text(rng), text(rng))


@pytest.mark.parametrize("seed", range(3))
async def test_the_sums_are_those_of_the_chunks(rows: Rows, seed: int):
    """After every statement, transactions that were rolled back and folds between them included."""
    rng = np.random.default_rng(seed)
    async with rows.pool.acquire() as tx:
        await vectors.enable(tx)
        for turn in range(60):
            if rng.random() < 0.2:
                unwanted = tx.transaction()
                await unwanted.start()
                await change(tx, rng)
                await unwanted.rollback()
            await change(tx, rng)
            if turn % 7 == 0:
                for ns in ("a", "b"):
                    await tx.execute(QUERIES["fold_chunk_words"], ns)
            assert await kept(tx) == await counted(tx)
        assert await kept(tx)
        await tx.execute("TRUNCATE chunks CASCADE")
        assert await kept(tx) == {}


async def test_a_fold_leaves_one_part_a_word(rows: Rows):
    """A search reads a bounded number of rows per word, and a word without chunks is removed."""
    for number in range(40):
        await rows.put("s", ["outbox offset"], first=number)
    await rows.pool.execute("DELETE FROM chunks WHERE chunk_no > 0")
    await rows.pool.execute("UPDATE chunks SET content = 'offset'")
    assert [row["ns"] for row in await rows.pool.fetch(QUERIES["namespaces_to_fold"], 32)] == ["docs"]
    await rows.pool.execute(QUERIES["fold_chunk_words"], "docs")
    parts = await rows.pool.fetch("SELECT word, chunks, octets FROM chunk_words ORDER BY word")
    assert [tuple(row) for row in parts] == [("", 1, 6), ("offset", 1, 0)]
    assert await rows.pool.fetch(QUERIES["namespaces_to_fold"], 32) == []


async def test_folds_and_writers_beside_each_other(rows: Rows):
    """Neither waits for the other's rows, and nothing is counted twice or lost."""

    async def write(first: int) -> None:
        for number in range(first, first + 20):
            await rows.put("s", ["outbox lag"], first=number)

    async def fold() -> None:
        for _ in range(20):
            await rows.pool.execute(QUERIES["fold_chunk_words"], "docs")

    await asyncio.gather(write(0), write(100), fold(), fold())
    async with rows.pool.acquire() as tx:
        assert (
            await kept(tx)
            == await counted(tx)
            == {("docs", ""): (40, 400), ("docs", "lag"): (40, 0), ("docs", "outbox"): (40, 0)}
        )


async def test_a_verification_names_the_namespace_and_the_word(rows: Rows):
    """Whichever way a sum is not that of the texts; chunks that are to be deleted or gone make no difference."""

    async def verified() -> Checked:
        async with live_snapshot(Settings(database=str(rows.pool._connect_args[0]))) as live:
            return await verify_word_sums(live, "read models", TimeLimit())

    await rows.put("s", ["outbox offset", "Offsets lag"], title="Ä")
    await rows.put("s", ["outbox"], ns="other")
    await rows.put("s", ["leader"], first=7, to_delete=True)
    await rows.put("s", ["leader"], first=8)
    await rows.pool.execute("DELETE FROM chunks WHERE chunk_no = 8")
    told = await verified()
    # The title, three words and all chunks of the one; a word and all chunks of the other.
    assert (told.compared, told.differences) == (7, [])
    await rows.pool.execute("UPDATE chunk_words SET chunks = 5 WHERE ns = 'docs' AND word = 'lag'")
    await rows.pool.execute("DELETE FROM chunk_words WHERE ns = 'other' AND word = 'outbox'")
    await rows.pool.execute("INSERT INTO chunk_words VALUES ('docs', 'broker', 2, 0), ('other', '', 0, 3)")
    found = [(one.key, one.field, one.expected, one.found) for one in (await verified()).differences]
    assert found == [
        ("docs|broker", "chunks", None, 2),
        ("docs|lag", "chunks", 1, 5),
        ("other|(all chunks)", "octets", 6, 9),
        ("other|outbox", "chunks", 1, None),
    ]
