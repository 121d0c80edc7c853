"""Former texts of chunks: a search as of a time finds the results of that time, and nothing is kept for too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.connectors.retrieval.search import search
from highwater.streams.chunks.history import FORMER_MS
from highwater.streams.chunks.scoring import Mode
from tests.conftest import Stack
from tests.integration.chunks.test_chunk_lifecycle import DAY_MS, NOON, SIX, TEN, Flow
from tests.integration.databases import own_database


@pytest.fixture
async def flow(stack: Stack) -> AsyncIterator[Flow]:
    """An empty database."""
    async with own_database(stack) as context:
        yield Flow(context)


async def shown(flow: Flow, at_ms: int | None = None, **asked: Any) -> list[tuple[str, int, str]]:
    """Everything that is found now, or was found at a time, the best first."""
    namespace = await flow.context.pool.fetchrow("SELECT * FROM chunk_namespaces")
    given = {
        "q_vector": None,
        "words": None,
        "limit": 100,
        "as_of_ms": at_ms or flow.now_ms,
        "texts_of_ms": at_ms,
        **asked,
    }
    found = await search(flow.context.pool, namespace, **given)
    assert found.is_complete
    return [(one.source_id, one.chunk_no, one.content) for one in found.results]


async def test_a_search_as_of_a_time_finds_what_was_found_then(flow: Flow):
    """Texts that were replaced, marked, revived or archived since, with the order, the words and the chunks beside them."""
    times = {}
    ingests = [("first", TEN, "v1"), ("second", SIX, "v2"), ("third", (*SIX, 8), "v2"), ("fourth", (0, 8), "v3")]
    for number, (ingest_id, numbers, text) in enumerate(ingests):
        await flow.ingest(ingest_id, numbers, text=text, full=ingest_id != "fourth")
        await flow.ingest(ingest_id, numbers[:2], source_id="b.md", text=text, full=False)
        flow.now_ms += DAY_MS
        times[flow.now_ms] = await shown(flow)
        if number == 2:
            flow.now_ms += 7 * DAY_MS
            await flow.sweep()
            assert await flow.rows("chunks_archive", marked=True) == [6, 7, 9]
            times[flow.now_ms] = await shown(flow)
    assert len({tuple(found) for found in times.values()}) == 4
    for at_ms, found in times.items():
        assert await shown(flow, at_ms) == found, at_ms
        assert await shown(flow, at_ms, limit=1) == found[:1]
        by_source = [next(one for one in found if one[0] == source) for source in dict.fromkeys(o[0] for o in found)]
        assert await shown(flow, at_ms, per_source=1) == by_source
    assert await shown(flow, NOON - 1) == []
    assert await shown(flow, min(times), words="v1 7", mode=Mode.HYBRID, limit=1) == [("a.md", 7, "v1 of 7")]

    namespace = await flow.context.pool.fetchrow("SELECT * FROM chunk_namespaces")
    asked = {"q_vector": None, "words": "v1 7", "limit": 1, "as_of_ms": min(times), "texts_of_ms": min(times)}
    best = (await search(flow.context.pool, namespace, neighbours=2, **asked)).results[0]
    assert [one.content for one in (*best.before, *best.after)] == ["v1 of 5", "v1 of 6", "v1 of 8", "v1 of 9"]
    assert best.valid_until_ms is not None
    assert min(times) < best.valid_until_ms < sorted(times)[1]


async def test_the_history_does_not_depend_on_batches(flow: Flow):
    """Texts that follow each other within one batch are kept as if each had come alone, from and until the same times."""
    for text in ("v1", "v2", "v2", "v3"):
        await flow.ingest(text, (0, 1), source_id="a.md", text=text, is_ended=False)
        flow.now_ms += DAY_MS
    alone = list(flow.log)
    together = [
        event._replace(value={**event.value, "source_id": "b.md"}, record=event.record)
        for one in alone
        for event in one
    ]
    await flow.deliver(together)
    query = (
        "SELECT chunk_no, content, source_offset, content_since, valid_until FROM former_chunks WHERE source_id = $1"
        " ORDER BY content_since, chunk_no"
    )
    kept = [tuple(row) for row in await flow.context.pool.fetch(query, "a.md")]
    assert [row[1] for row in kept] == ["v1 of 0", "v1 of 1", "v2 of 0", "v2 of 1"]
    assert [tuple(row) for row in await flow.context.pool.fetch(query, "b.md")] == kept


async def test_former_texts_are_erased(flow: Flow):
    """They are erased after their time, to the millisecond; and all of a namespace at once if its removals are hard."""
    await flow.ingest("first", TEN)
    await flow.ingest("second", SIX, text="v2")
    ends = [
        row[0] for row in await flow.context.pool.fetch("SELECT DISTINCT valid_until FROM former_chunks ORDER BY 1")
    ]
    first_ms = round(ends[0].timestamp() * 1_000)

    async def kept() -> int:
        count: int = await flow.context.pool.fetchval("SELECT count(*) FROM former_chunks")
        return count

    flow.now_ms = first_ms + FORMER_MS - 1
    await flow.sweep()
    assert await kept() == 10
    flow.now_ms += 1
    await flow.sweep()
    assert await kept() == 9
    await flow.context.pool.execute("UPDATE chunk_namespaces SET removal = 'hard'")
    await flow.ingest("third", SIX, text="v3")
    assert await kept() == 9
    await flow.sweep()
    assert await kept() == 0
