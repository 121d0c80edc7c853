"""The backfill against a scripted embedder: what waits gets its vector once, hot ones first, and none that came too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import numpy as np
import pytest

from highwater.connectors.chunks import indexes as chunk_indexes
from highwater.connectors.chunks import waiting as chunk_backfill
from highwater.connectors.chunks import worker_backfill as backfill
from highwater.connectors.chunks.indexes import ChunkIndexes
from highwater.connectors.chunks.worker_backfill import Backfill, BackfillWorker
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.embeddings import EmbeddingError
from highwater.schemas.errors import UnavailableError
from highwater.streams.chunks.identity import content_hash
from highwater.streams.clock import to_datetime
from highwater.streams.telemetry import CHUNKS_EMBEDDED
from tests.conftest import Stack
from tests.integration.chunks.chunk_rows import NOW_MS, Rows
from tests.integration.connecting import fresh, in_outbox, send, until
from tests.integration.databases import address_of, own_database

LENGTH = 4
LATER_MS = NOW_MS + 5_000


@dataclass
class Scripted:
    """A scripted embedder: a vector depends on the length of its text."""

    basis_id: str = "scripted@4"
    calls_at_once: int = 1
    length: int = LENGTH
    asked: list[list[str]] = field(default_factory=list)
    refused: str = "\0"
    is_away: bool = False
    before: Callable[[Sequence[str]], Any] | None = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors in order."""
        self.asked.append(list(texts))
        if self.before is not None:
            await self.before(texts)
        if self.is_away or any(self.refused in text for text in texts):
            raise UnavailableError("the embedding service fails: scripted")
        return [_vector(text, self.length) for text in texts]

    @property
    def texts(self) -> list[str]:
        """All texts asked for."""
        return [text for call in self.asked for text in call]


def _vector(text: str, length: int = LENGTH) -> bytes:
    return np.asarray([len(text), *range(1, length)], "<f4").tobytes()


@dataclass
class Case:
    """A database with a worker's parts."""

    context: ProcessContext
    rows: Rows
    url: str
    embedder: Scripted = field(default_factory=Scripted)

    def worker(self, embedder: Any = None) -> BackfillWorker:
        """A worker."""
        context = replace(self.context, clock=lambda: LATER_MS)
        return BackfillWorker(self.url, context, embedder or self.embedder, asyncio.Event())

    @asynccontextmanager
    async def working(self, *workers: Any) -> AsyncIterator[None]:
        """Run workers."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(worker.run(stop)) for worker in workers or (self.worker(),)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)

    async def waiting(self) -> int:
        """How many chunks wait."""
        query = "SELECT count(*) FROM chunks WHERE (embedding IS NULL OR embedding_stale) AND NOT to_delete"
        return int(await self.rows.pool.fetchval(query))

    async def filled(self, left: int = 0) -> None:
        """Wait until no more than these wait."""

        async def look() -> bool:
            return await self.waiting() == left

        await until(look, f"{left} chunks wait")

    async def published(self) -> list[dict[str, Any]]:
        """The events of changes in the outbox, in order."""
        return await in_outbox(self.context, "chunks.chunk-changed")


@pytest.fixture
async def case(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """An empty database, and a worker that looks often."""
    monkeypatch.setattr(backfill, "POLL_SECONDS", 0.05)
    async with own_database(stack) as context:
        yield Case(context, Rows(context.pool), await address_of(stack, context))


@pytest.mark.requirement("R3.13")
async def test_what_waits_gets_its_vector(case: Case):
    """Rows without a vector and stale ones get one of title and content; it is an update, published once per source, in a
    version.
    """
    await case.rows.namespace()
    await case.rows.put("a", ["one", "two"], title="T")
    await case.rows.put("b", ["three"], vector=[[9, 9, 9, 9]], embedding_stale=True)
    await case.rows.put("c", ["has one"], vector=[[9, 9, 9, 9]])
    before = (await case.rows.rows("c"))[0]
    async with case.working():
        await case.filled()
    assert sorted(case.embedder.texts) == ["T\n\none", "T\n\ntwo", "three"]
    for row in [*await case.rows.rows("a"), *await case.rows.rows("b")]:
        text = f"T\n\n{row['content']}" if row["title"] else row["content"]
        assert (row["embedding"], row["embedding_model"]) == (_vector(text), "scripted@4")
        assert (row["embedding_stale"], row["updated_at"]) == (False, to_datetime(LATER_MS))
    after = (await case.rows.rows("c"))[0]
    assert dict(after) == dict(before)
    told = await case.published()
    assert [(event["source_id"], event["kind"], [one["chunk_no"] for one in event["changes"]]) for event in told] == [
        ("a", "embedded", [0, 1]),
        ("b", "embedded", [0]),
    ]
    assert told[0]["changes"][0]["new_hash"] == content_hash("docs", "s", "a", 0, "one")
    row = await case.rows.pool.fetchrow("SELECT * FROM resource_versions WHERE key = 'ns:docs'")
    assert row["position"] == "chunks.chunk-submitted/0/1" or row["position"].startswith("chunks.chunk-submitted")
    passport = await case.rows.passport()
    assert (passport["dimensions"], passport["embedding_model"]) == (LENGTH, "scripted@4")


@pytest.mark.requirement("R3.14")
async def test_a_text_that_changed_meanwhile_discards_the_vector(case: Case):
    """A vector made of a text that is no more is thrown away; the new text gets its own (R3.14)."""
    await case.rows.namespace()
    await case.rows.put("a", ["before", "stays"])

    async def change(texts: Sequence[str]) -> None:
        if "before" in texts:
            await case.rows.pool.execute(
                "UPDATE chunks SET content = 'after it', content_hash = $1 WHERE chunk_no = 0",
                content_hash("docs", "s", "a", 0, "after it"),
            )

    case.embedder.before = change
    before = [CHUNKS_EMBEDDED.labels(outcome)._value.get() for outcome in ("stored", "late")]
    async with case.working():
        await case.filled()
    after = [CHUNKS_EMBEDDED.labels(outcome)._value.get() for outcome in ("stored", "late")]
    assert [late - early for early, late in zip(before, after, strict=True)] == [2, 1]
    assert case.embedder.asked == [["before", "stays"], ["after it"]]
    assert [row["embedding"] for row in await case.rows.rows("a")] == [_vector("after it"), _vector("stays")]


async def test_a_vector_that_was_sent_meanwhile_stays(case: Case):
    """A submitted vector wins over a computed one that is late; so does a mark for deletion."""
    await case.rows.namespace(dimensions=LENGTH)
    await case.rows.put("a", ["sent", "gone"])
    sent = "UPDATE chunks SET embedding = '[7,7,7,7]', embedding_model = 'sent' WHERE chunk_no = 0"
    gone = "UPDATE chunks SET to_delete = true WHERE chunk_no = 1"

    async def change(_: Sequence[str]) -> None:
        await case.rows.pool.execute(sent)
        await case.rows.pool.execute(gone)

    case.embedder.before = change
    async with case.working():
        await case.filled()
    rows = await case.rows.rows("a")
    assert [row["embedding_model"] for row in rows] == ["sent", None]
    assert await case.published() == []


@pytest.mark.requirement("R3.14", "R3.15")
async def test_hot_ones_come_first(case: Case, monkeypatch: pytest.MonkeyPatch):
    """Recent chunks of a hot namespace, then all others; cold and marked ones never (R3.14, R3.15)."""
    monkeypatch.setattr(backfill, "TEXTS_MAX", 2)
    await case.rows.namespace("quiet")
    await case.rows.namespace("zhot", is_hot=True)
    await case.rows.put("a", ["q1", "q2", "q3"], ns="quiet")
    await case.rows.put("a", ["old"], ns="zhot", age_days=15)
    await case.rows.put("b", ["h1", "h2", "h3"], ns="zhot", age_days=13)
    await case.rows.put("c", ["cold"], ns="zhot", age_days=366)
    await case.rows.put("d", ["marked"], ns="zhot", to_delete=True)
    async with case.working():
        await case.filled(left=1)
    assert case.embedder.texts == ["h1", "h2", "h3", "q1", "q2", "q3", "old"]


@pytest.mark.requirement("R3.14")
async def test_two_workers_make_each_vector_once(case: Case, monkeypatch: pytest.MonkeyPatch):
    """A source is one worker's at a time; together they do all of it, and no text twice."""
    monkeypatch.setattr(backfill, "TEXTS_MAX", 3)
    await case.rows.namespace()
    for source in range(30):
        await case.rows.put(f"s{source}", [f"{source}.{n}" for n in range(5)])
    first, second = Scripted(), Scripted()
    both = asyncio.Barrier(2)

    async def meet(_: Sequence[str]) -> None:
        """No first batch ends before the other worker has one too: what one works on leaves enough for the other."""
        if len(first.asked) <= 1 and len(second.asked) <= 1:
            await both.wait()

    first.before = second.before = meet
    async with case.working(case.worker(first), case.worker(second)):
        await case.filled()
    assert sorted(first.texts + second.texts) == sorted(f"{source}.{n}" for source in range(30) for n in range(5))


@pytest.mark.requirement("R3.13")
async def test_whoever_writes_chunks_does_not_wait_for_it(case: Case):
    """While a vector is made, its row and its source can be locked and changed by others at once (R3.13)."""
    await case.rows.namespace()
    await case.rows.put("a", ["text"])
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Sequence[str]) -> None:
        begun.set()
        await go_on.wait()

    case.embedder.before = wait
    async with case.working():
        await begun.wait()
        async with case.rows.pool.acquire() as tx, tx.transaction():
            await tx.execute("SELECT FROM chunk_namespaces FOR UPDATE NOWAIT")
            await tx.execute("SELECT FROM chunk_sources FOR UPDATE NOWAIT")
            await tx.execute("SELECT FROM chunks FOR UPDATE NOWAIT")
        go_on.set()
        await case.filled()


async def test_a_text_that_is_refused_holds_up_no_other(case: Case):
    """It is left aside, and all others get their vectors; when it changes it is tried again."""
    await case.rows.namespace()
    await case.rows.put("a", [f"text {n}" for n in range(9)])
    await case.rows.put("b", ["poison"])
    case.embedder.refused = "poison"
    async with case.working():
        await case.filled(left=1)
        calls = len(case.embedder.asked)
        await case.rows.pool.execute(
            "UPDATE chunks SET content = 'better', content_hash = $1 WHERE source_id = 'b'",
            content_hash("docs", "s", "b", 0, "better"),
        )
        await case.filled()
    assert (await case.rows.rows("b"))[0]["embedding"] == _vector("better")
    assert calls < 30


async def test_a_service_that_is_away_is_waited_for(case: Case, monkeypatch: pytest.MonkeyPatch):
    """No text is left aside for long for its sake: when it is back, all get vectors; the worker was degraded meanwhile."""
    monkeypatch.setattr(backfill, "ASIDE_SECONDS", 500.0)
    monkeypatch.setattr(backfill, "SOON_SECONDS", 0.1)
    await case.rows.namespace()
    await case.rows.put("a", [f"text {n}" for n in range(4)])
    case.embedder.is_away = True
    worker = case.worker()
    async with case.working(worker):
        await until(lambda: len(case.embedder.asked) >= 6, "it was asked for several times")
        assert (worker.problem, worker.degraded is None) == (None, False)
        case.embedder.is_away = False
        await case.filled()
        await until(lambda: worker.degraded is None, "it goes on")


async def test_vectors_of_another_are_not_mixed(case: Case):
    """A namespace whose vectors were sent by another model, or are of another length, is left alone; others are not held up."""
    await case.rows.namespace("model", dimensions=LENGTH, embedding_model="other@4")
    await case.rows.put("sent", ["sent"], ns="model", vector=[[9, 9, 9, 9]])
    await case.rows.namespace("length", dimensions=7)
    await case.rows.namespace("mine")
    for ns in ("model", "length", "mine"):
        await case.rows.put("a", [ns], ns=ns)
    async with case.working():
        await case.filled(left=2)
        await asyncio.sleep(0.3)
    assert await case.waiting() == 2
    assert (await case.rows.rows("a", "mine"))[0]["embedding"] is not None
    assert (await case.rows.passport("length"))["dimensions"] == 7


async def test_a_killed_worker_leaves_no_claim(case: Case):
    """When its connection ends, another worker continues with its source at once."""
    await case.rows.namespace()
    await case.rows.put("a", ["text"])
    holder = await asyncpg.connect(case.url)
    claims = chunk_backfill.claims()
    assert await chunk_backfill.claim(holder, claims, {chunk_backfill.SourceKey("docs", "s", "a"): 1}, chunks=1)
    async with case.working():
        await asyncio.sleep(0.3)
        assert case.embedder.asked == []
        holder.terminate()
        await case.filled()


async def test_the_topic_wakes_it(case: Case, stack: Stack, monkeypatch: pytest.MonkeyPatch):
    """An event is enough: no poll is needed."""
    monkeypatch.setattr(backfill, "POLL_SECONDS", 300.0)
    await case.rows.namespace()
    connector = Backfill(case.url, replace(case.context, clock=lambda: LATER_MS), case.embedder)
    async with case.working(connector):
        await until(lambda: connector.problem is None, "the connector is ready")
        await case.rows.put(fresh("a"), ["text"])
        event = {
            "ns": "docs", "slot": "s", "source_id": "a", "priority": "warm", "chunks": 1, "requested_at": NOW_MS,
        }  # fmt: skip
        value = case.context.codec.encode(backfill.REQUESTED, event)
        await asyncio.to_thread(send, stack.kafka, backfill.REQUESTED, [(b"docs|s|a", value)])
        await case.filled()


async def test_a_namespace_keeps_the_model_of_its_vectors(case: Case):
    """Beside a new model the previous one continues with the namespaces that have vectors of it, until the new one has
    computed all; namespaces without vectors, or with the new model's, belong to the new one. None is reported as unassigned.
    """
    older = Scripted(basis_id="older@4")
    for ns, model in (("old", older.basis_id), ("new", case.embedder.basis_id), ("empty", None)):
        await case.rows.namespace(ns, dimensions=None if model is None else LENGTH, embedding_model=model)
        await case.rows.put(f"of {ns}", [f"text of {ns}"], ns=ns)
    connector = Backfill(case.url, replace(case.context, clock=lambda: LATER_MS), case.embedder, older)
    async with case.working(connector):
        await case.filled()
        query = "SELECT ns, embedding_model FROM chunk_namespaces ORDER BY ns"

        async def are_switched() -> bool:
            rows = [tuple(row) for row in await case.rows.pool.fetch(query)]
            return rows == [("empty", "scripted@4"), ("new", "scripted@4"), ("old", "scripted@4")]

        await until(are_switched, "all namespaces are of the new model")
    assert older.texts in ([], ["text of old"])  # either of them may be faster
    assert sorted(case.embedder.texts) == ["text of empty", "text of new", "text of old"]
    assert connector._worker._named == set()


async def test_an_index_that_was_left_half_made_is_made_again(case: Case, monkeypatch: pytest.MonkeyPatch):
    """An invalid index is dropped and built; names that need quoting are quoted; one is built by one process at a time."""
    monkeypatch.setattr(chunk_indexes, "COMPARED_MAX", 5)
    ns = 'o\'ne "two"'
    await case.rows.namespace(ns, dimensions=LENGTH)
    await case.rows.put("a", [str(n) for n in range(9)], ns=ns, vector=[[n, 1, 1, 1] for n in range(9)])
    await case.rows.namespace("small", dimensions=LENGTH)
    await case.rows.put("a", [str(n) for n in range(5)], ns="small", vector=[[n, 1, 1, 1] for n in range(5)])
    keeper = ChunkIndexes(case.url, case.context.clock)
    await keeper._look()
    query = (
        "SELECT c.relname, i.indisvalid, pg_get_indexdef(c.oid) AS said FROM pg_index AS i "
        "JOIN pg_class AS c ON c.oid = i.indexrelid WHERE c.relname LIKE 'chunks_vectors_%'"
    )
    (made,) = await case.rows.pool.fetch(query)
    assert made["indisvalid"]
    assert "o''ne" in made["said"]
    await case.rows.pool.execute(f'DROP INDEX "{made["relname"]}"')
    # Two rows of another length than the index is made for: the build fails half way and leaves an invalid index.
    await case.rows.pool.execute("UPDATE chunks SET embedding = '[1,2]' WHERE ns = $1 AND chunk_no = 8", ns)
    with pytest.raises(asyncpg.PostgresError):
        await keeper._look()
    (broken,) = await case.rows.pool.fetch(query)
    assert not broken["indisvalid"]
    await case.rows.pool.execute("UPDATE chunks SET embedding = '[1,2,3,4]' WHERE ns = $1 AND chunk_no = 8", ns)
    await keeper._look()
    (again,) = await case.rows.pool.fetch(query)
    assert again["indisvalid"]


async def test_an_index_of_holes_is_made_anew(case: Case, monkeypatch: pytest.MonkeyPatch):
    """R3.21: the index of a hot namespace at a fifth of holes, another one at a half; the holes are counted periodically."""
    monkeypatch.setattr(chunk_indexes, "COMPARED_MAX", 5)
    monkeypatch.setattr(chunk_indexes, "_HOT_LOOK_MS", 0)
    monkeypatch.setattr(chunk_indexes, "_OTHER_LOOK_MS", 0)
    for ns in ("hot", "warm"):
        await case.rows.namespace(ns, dimensions=LENGTH, is_hot=ns == "hot")
        await case.rows.put("a", [str(n) for n in range(20)], ns=ns, vector=[[n, 1, 1, 1] for n in range(20)])
    keeper = ChunkIndexes(case.url, case.context.clock)

    async def files() -> dict[str, int]:
        """The file of each index: a rebuilt index has another one."""
        rows = await case.rows.pool.fetch("SELECT ns, pg_relation_filenode(name::regclass) AS file FROM chunk_indexes")
        return {row["ns"]: row["file"] for row in rows}

    await keeper._look()
    made = await files()
    await case.rows.pool.execute("DELETE FROM chunks WHERE chunk_no >= 14")
    await keeper._look()
    thinned = await files()
    assert (thinned["hot"] != made["hot"], thinned["warm"] != made["warm"]) == (True, False)
    await case.rows.pool.execute("DELETE FROM chunks WHERE chunk_no >= 8")
    await keeper._look()
    emptied = await files()
    assert emptied["warm"] != thinned["warm"]
    await keeper._look()
    assert await files() == emptied


@pytest.mark.requirement("R3.21")
async def test_indexes_of_hot_namespaces_come_first(case: Case, monkeypatch: pytest.MonkeyPatch):
    """They are built and rebuilt before all others (R3.21)."""
    monkeypatch.setattr(chunk_indexes, "COMPARED_MAX", 5)
    monkeypatch.setattr(chunk_indexes, "_HOT_LOOK_MS", 0)
    monkeypatch.setattr(chunk_indexes, "_OTHER_LOOK_MS", 0)
    for ns in ("a quiet", "b hot", "c quiet", "d hot"):
        await case.rows.namespace(ns, dimensions=LENGTH, is_hot="hot" in ns)
        await case.rows.put("a", [str(n) for n in range(20)], ns=ns, vector=[[n, 1, 1, 1] for n in range(20)])
    keeper = ChunkIndexes(case.url, case.context.clock)

    async def in_order() -> list[str]:
        """Namespaces in the order in which their indexes were made: each is given the next number."""
        rows = await case.rows.pool.fetch("SELECT ns FROM chunk_indexes ORDER BY name::regclass::oid::bigint")
        return [row["ns"] for row in rows]

    await keeper._look()
    assert await in_order() == ["b hot", "d hot", "a quiet", "c quiet"]
    await case.rows.pool.execute("DELETE FROM chunks WHERE chunk_no >= 8")
    await case.rows.pool.execute("UPDATE chunk_namespaces SET is_hot = ns IN ('c quiet', 'd hot')")
    await keeper._look()
    assert await in_order() == ["c quiet", "d hot", "a quiet", "b hot"]


async def test_an_embedder_that_answers_nonsense_is_like_one_that_refuses(case: Case, monkeypatch: pytest.MonkeyPatch):
    """An error of its answer is waited out too, and ends no worker."""
    monkeypatch.setattr(backfill, "ASIDE_SECONDS", 0.1)
    await case.rows.namespace()
    await case.rows.put("a", ["text"])
    answers = iter([EmbeddingError("scripted")])

    async def nonsense(_: Sequence[str]) -> None:
        for error in answers:
            raise error

    case.embedder.before = nonsense
    async with case.working():
        await case.filled()
    assert len(case.embedder.asked) == 2
