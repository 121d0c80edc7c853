"""The sinks of chunks and ingests on real parts: one row a chunk, unchanged rows untouched, orphans exactly marked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.sink_ingests import IngestsSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres import vectors
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS
from highwater.streams.chunks.completion import ABANDONED_MS, decide, decided_event, progressed
from highwater.streams.chunks.identity import content_hash
from highwater.streams.chunks.passports import DAYS_MAX, load_passports
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_outbox, in_transaction, running, send, until
from tests.integration.databases import own_database

SUBMITTED, FINISHED, DECIDED = "chunks.chunk-submitted", "chunks.ingest-finished", "chunks.ingest-decided"
CHANGED, PROGRESSED, REPORTED = "chunks.chunk-changed", "chunks.ingest-progressed", "chunks.ingest-reported"
WANTED, BUMPED = "chunks.embedding-requested", "cache.version-bumped"
NOW_MS = 1_731_672_000_000
PASSPORTS = load_passports()


def vector(*values: float) -> bytes:
    """Little-endian float32."""
    return np.array(values, dtype="<f4").tobytes()


class Document:
    """A source in its own namespace, its submissions, and the stored state."""

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.now_ms = NOW_MS
        moved = replace(context, clock=lambda: self.now_ms)
        self.chunks, self.ingests = ChunksSink(moved, PASSPORTS), IngestsSink(moved)
        self.ns, self.ingest = fresh("ns"), fresh("ingest")
        self.key = {"ns": self.ns, "slot": "main", "source_id": "a.md"}
        self._at = 1_000

    def begins(self) -> str:
        """Another ingest; the earlier one's id."""
        earlier, self.ingest = self.ingest, fresh("ingest")
        return earlier

    def _event(self, topic: str, value: dict[str, Any], at: int | None = None, partition: int = 3) -> Event:
        self._at += 1
        at = self._at if at is None else at
        return event(topic, value, partition=partition, offset=at, arrived_ms=at)

    def chunk(self, number: int = 0, content: str = "Text", *, at: int | None = None, **changes: Any) -> Event:
        """A chunk of the ingest in progress."""
        value = {
            "ingest_id": self.ingest,
            **self.key,
            "chunk_no": number,
            "content": content,
            "title": None,
            "url": None,
            "embedding": None,
            "published_at": None,
            "lasts": False,
            "opens": False,
            **changes,
        }
        return self._event(SUBMITTED, value, at)

    def end(self, expected: int, *, at: int | None = None, **changes: Any) -> Event:
        """Its end, full unless it says otherwise."""
        value = {
            "ingest_id": self.ingest,
            **self.key,
            "full": True,
            "expected_count": expected,
            "truncated": False,
            "ts": 1,
            "force": False,
            "window": None,
            **changes,
        }
        return self._event(FINISHED, value, at)

    async def stores(self, *events: Event) -> list[str]:
        """One batch through the sink; why events were dead-lettered."""
        sink = self.ingests if events[0].record.topic == DECIDED else self.chunks
        dead: Sequence[DeadLetter] = await in_transaction(self.context, sink, events)
        return [letter.reason for letter in dead]

    async def decision(self, ingest: str | None = None) -> Event:
        """The decision of the decision worker after the last published progress, after a long silence if it has to wait."""
        told = [one for one in await self.published(PROGRESSED) if one["ingest_id"] == (ingest or self.ingest)][-1]
        row = progressed(None, told)
        decision = decide(row, self.now_ms) or decide(row, self.now_ms + ABANDONED_MS)
        assert decision is not None
        return self._event(DECIDED, dict(decided_event(row, decision, self.now_ms)))

    async def ended(self, count: int, **changes: Any) -> dict[str, Any]:
        """End the ingest in progress after this many chunks, and have it decided; return its row."""
        assert await self.stores(self.end(count, **changes)) == []
        assert await self.stores(await self.decision()) == []
        return await self.counters()

    async def rows(self, columns: str = "*, xmin::text AS version") -> list[dict[str, Any]]:
        """Its chunks by number."""
        query = f"SELECT {columns} FROM chunks WHERE ns = $1 ORDER BY source_id, chunk_no"
        async with self.context.pool.acquire() as connection:
            await vectors.enable(connection)
            return [dict(row) for row in await connection.fetch(query, self.ns)]

    async def marked(self) -> list[int]:
        """The numbers of those to be deleted."""
        return [row["chunk_no"] for row in await self.rows("chunk_no, to_delete") if row["to_delete"]]

    async def counters(self, ingest: str | None = None) -> dict[str, Any]:
        """The row of an ingest."""
        query = "SELECT * FROM chunk_ingests WHERE ingest_id = $1 AND source_id = 'a.md'"
        row = await self.context.pool.fetchrow(query, ingest or self.ingest)
        return {} if row is None else dict(row)

    async def counted(self, ingest: str | None = None) -> tuple[int, int, int, int]:
        """Inserted, updated, unchanged, failures."""
        row = await self.counters(ingest)
        return row["inserted"], row["updated"], row["unchanged"], row["failures"]

    async def published(self, topic: str) -> list[Any]:
        """Events of its namespace that wait in the outbox."""
        found = await in_outbox(self.context, topic)
        return [one for one in found if self.ns in (one.get("ns"), one.get("key", "").removeprefix("ns:"))]


@pytest.fixture
def document(context: ProcessContext) -> Document:
    """A source of the test's own."""
    return Document(context)


# -- vectors -------------------------------------------------------------------------------------------------------------


async def test_vectors_come_back_bit_by_bit(context: ProcessContext):
    """Also in arrays; to enable the codec again, on any proxy of the connection, changes nothing."""
    given = [vector(1.5, -0.0, 3.4e38), vector(2.0**-149, 1e-20, -7)]
    for _ in range(2):
        async with context.pool.acquire() as connection:
            await vectors.enable(connection)
            await vectors.enable(connection)
            assert await connection.fetchval("SELECT $1::vector", given[0]) == given[0]
            assert await connection.fetchval("SELECT $1::vector[]", [given[1], None]) == [given[1], None]
            assert await connection.fetchval("SELECT $1::vector::text", vector(1, 2.5)) == "[1,2.5]"


# -- stored state ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.2")
async def test_a_chunk_is_a_row(document: Document):
    """With all that it says, its hash (R3.2), the vector that came with it, and where in the log it stood."""
    one = document.chunk(7, "Größe", title="T", url="https://x.y", embedding=vector(1, 0), published_at=1_000)
    assert await document.stores(one, document.chunk(8)) == []
    row, bare = await document.rows()
    now = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert (row["slot"], row["source_id"], row["chunk_no"], row["content"]) == ("main", "a.md", 7, "Größe")
    assert row["content_hash"] == content_hash(document.ns, "main", "a.md", 7, "Größe")
    assert (row["title"], row["url"], row["published_at"]) == ("T", "https://x.y", datetime.fromtimestamp(1, UTC))
    assert (row["embedding"], row["embedding_model"], row["embedding_stale"]) == (vector(1, 0), "sent", False)
    assert (row["created_at"], row["updated_at"], row["to_delete"], row["marked_at"]) == (now, now, False, None)
    place = (row["ingest_id"], row["source_partition"], row["source_offset"])
    assert place == (document.ingest, 3, one.record.offset)
    assert (bare["embedding"], bare["embedding_model"], bare["published_at"]) == (None, None, None)


async def namespace_row(document: Document, columns: str) -> Any:
    """These columns of the document's namespace."""
    return tuple(
        await document.context.pool.fetchrow(f"SELECT {columns} FROM chunk_namespaces WHERE ns = $1", document.ns)
    )


async def test_a_namespace_that_is_given_documents_has_no_life(document: Document):
    """From the first such chunk on, be it one that is stored already; other chunks of it do not end that."""

    async def life() -> tuple[float, bool]:
        return await namespace_row(document, "ttl_days, is_lasting")

    await document.stores(document.chunk(0, "a"))
    assert await life() == (365.0, False)
    await document.stores(document.chunk(0, "a", lasts=True))
    assert await life() == (DAYS_MAX, True)
    await document.stores(document.chunk(1, "b"))
    assert await life() == (DAYS_MAX, True)
    other = Document(document.context)
    await other.stores(other.chunk(0, "a", lasts=True))
    document.ns = other.ns
    assert await life() == (DAYS_MAX, True)


async def test_a_namespace_that_was_opened_stays_open(document: Document):
    """From the first such chunk on; later chunks do not change that."""

    async def openness() -> tuple[bool, bool]:
        return await namespace_row(document, "is_open, is_opened")

    await document.stores(document.chunk(0, "a"))
    assert await openness() == (False, False)
    await document.stores(document.chunk(1, "b", opens=True), document.chunk(2, "c"))
    assert await openness() == (True, True)
    await document.stores(document.chunk(3, "d", lasts=True))
    assert await openness() == (True, True)


async def test_what_a_batch_did_is_told(document: Document):
    """One event a source and kind, one an ingest and source, one for the vectors to be made, one new version of the namespace."""
    await document.stores(document.chunk(0), document.chunk(1, embedding=vector(1)), document.chunk(2))
    (changed,) = await document.published(CHANGED)
    assert (changed["kind"], changed["ingest_id"], changed["source_id"]) == ("inserted", document.ingest, "a.md")
    assert [(one["chunk_no"], one["old_hash"]) for one in changed["changes"]] == [(0, None), (1, None), (2, None)]
    (progress,) = await document.published(PROGRESSED)
    assert (progress["revision"], progress["seen"], progress["inserted"], progress["expected"]) == (1, 3, 3, None)
    (wanted,) = await document.published(WANTED)
    assert (wanted["chunks"], wanted["priority"]) == (2, "warm")
    (bumped,) = await document.published(BUMPED)
    assert (bumped["key"], bumped["version"]) == (f"ns:{document.ns}", 1)
    assert bumped["caused_by"] == f"{SUBMITTED}/3/1003"


@pytest.mark.requirement("R3.3")
async def test_identical_chunks_are_not_written(document: Document):
    """Row versions, times and vectors are unchanged; only the count is published (R3.3)."""
    chunks = [document.chunk(number, f"Text {number}", embedding=vector(number + 1)) for number in range(3)]
    await document.stores(*chunks)
    before, versions = await document.rows(), await document.published(BUMPED)
    document.begins()
    document.now_ms += 5_000
    again = [document.chunk(number, f"Text {number}", embedding=vector(9)) for number in range(3)]
    assert await document.stores(*again, document.end(3)) == []
    assert await document.rows() == before
    assert await document.counted() == (0, 0, 3, 0)
    assert (len(await document.published(CHANGED)), await document.published(BUMPED)) == (1, versions)
    assert (await document.ended(3))["status"] == "complete"
    assert await document.rows() == before


@pytest.mark.requirement("R3.7", "R3.9", "R3.11")
async def test_another_text_makes_the_vector_stale(document: Document):
    """The vector stays until another comes (R3.7, R3.11); the time of the row moves, that of its making does not (R3.9)."""
    await document.stores(document.chunk(0, "old", embedding=vector(1, 2)), document.chunk(1, "old"))
    (made, *_), *_ = [await document.rows()]
    document.begins()
    document.now_ms += 5_000
    await document.stores(document.chunk(0, "new"), document.chunk(1, "new"))
    with_vector, without = await document.rows()
    assert (with_vector["embedding"], with_vector["embedding_stale"]) == (vector(1, 2), True)
    assert (without["embedding"], without["embedding_stale"]) == (None, False)
    assert with_vector["created_at"] == made["created_at"] < with_vector["updated_at"]
    assert (await document.published(WANTED))[-1]["chunks"] == 2
    changed = (await document.published(CHANGED))[-1]
    assert (changed["kind"], changed["changes"][0]["old_hash"]) == ("updated", made["content_hash"])
    document.begins()
    await document.stores(document.chunk(0, "newer", embedding=vector(3, 4)))
    assert (await document.rows())[0]["embedding_stale"] is False
    assert (await document.rows())[0]["embedding"] == vector(3, 4)


async def test_a_vector_that_is_made_while_a_new_text_waits_is_stale(document: Document):
    """The sink planned on a row without a vector; its write refers to the vector that exists by then."""
    await document.stores(document.chunk(0, "old"))
    document.begins()
    one = document.chunk(0, "new")
    prepared = await document.chunks.prepare([one])
    pool = document.context.pool
    async with pool.acquire() as backfill, pool.acquire() as tx:
        await vectors.enable(backfill)
        await vectors.enable(tx)
        during = backfill.transaction()
        await during.start()
        made = "UPDATE chunks SET embedding = $1 WHERE ns = $2 AND embedding IS NULL"
        await backfill.execute(made, vector(5, 6), document.ns)
        async with tx.transaction():
            applying = asyncio.create_task(document.chunks.apply(tx, [one], prepared))
            pid = tx.get_server_pid()
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
            await until(lambda: pool.fetchval(waits, pid), "the sink waits for the row")
            await during.commit()
            await applying
    (row,) = await document.rows()
    assert (row["content"], row["embedding"], row["embedding_stale"]) == ("new", vector(5, 6), True)


async def test_an_earlier_offset_never_rolls_a_row_back(document: Document):
    """The log is read again from its beginning: nothing changes, also where the ingests are forgotten."""
    first, last = document.chunk(0, "old"), document.chunk(1, "old")
    await document.stores(first, last)
    document.begins()
    await document.stores(document.chunk(0, "new"))
    before, told = await document.rows(), await document.published(PROGRESSED)
    assert await document.stores(first, last) == []
    assert (await document.rows(), await document.published(PROGRESSED)) == (before, told)
    await document.context.pool.execute("DELETE FROM chunk_ingests WHERE ns = $1", document.ns)
    await document.context.pool.execute("DELETE FROM chunk_sources WHERE ns = $1", document.ns)
    assert await document.stores(first) == []
    assert await document.rows() == before


# -- bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.24")
async def test_bad_chunks_are_counted_and_dead_lettered_and_the_others_stored(document: Document):
    """Each once, with its reason and number; the four counters add up to the number of received chunks (R3.24)."""
    good = document.chunk(0, embedding=vector(1, 2))
    bad = [
        document.chunk(-1),
        document.chunk(1, "a\x00"),
        document.chunk(2, embedding=b"123"),
        document.chunk(3, embedding=vector(float("nan"), 1)),
        document.chunk(4, embedding=vector(1, 2, 3)),
    ]
    reasons = await document.stores(good, *bad)
    assert sorted(reasons) == sorted(
        ["bad_number", "control_character", "bad_embedding", "bad_embedding", "wrong_dimensions"]
    )
    assert await document.counted() == (1, 0, 0, 5)
    rows = await document.context.pool.fetch(
        "SELECT * FROM chunk_failures WHERE ns = $1 ORDER BY chunk_no", document.ns
    )
    assert [(row["chunk_no"], row["reason"]) for row in rows] == [
        (-1, "bad_number"), (1, "control_character"), (2, "bad_embedding"), (3, "bad_embedding"), (4, "wrong_dimensions"),
    ]  # fmt: skip
    assert rows[0]["position"] == str(bad[0].record.position)
    again = document.chunk(-1)
    assert await document.stores(again) == ["bad_number"]
    assert await document.counted() == (1, 0, 0, 5)
    assert (await document.published(PROGRESSED))[-1]["failed"] == 5


async def test_a_chunk_that_does_not_say_whose_it_is_belongs_to_no_ingest(document: Document):
    """It is dead-lettered and counted nowhere; nor does a bad end begin anything."""
    bad = [document.chunk(slot="a|b"), document.chunk(ns=""), document.chunk(ingest_id="\x00"), document.end(-1)]
    reasons = await document.stores(*bad, document.end(1, window="{"))
    assert reasons == ["separator", "empty_id", "control_character", "bad_number", "bad_window"]
    assert (await document.counters(), await document.published(PROGRESSED)) == ({}, [])


async def test_a_number_with_another_text_in_one_ingest_is_refused(document: Document):
    """The first counts; the same text again is not a fault."""
    assert await document.stores(document.chunk(0, "a"), document.chunk(0, "a"), document.chunk(0, "b")) == ["repeated"]
    assert await document.stores(document.chunk(0, "a"), document.chunk(0, "c")) == ["repeated"]
    assert await document.counted() == (1, 0, 0, 2)
    assert (await document.rows())[0]["content"] == "a"


async def test_a_namespace_keeps_the_length_of_its_first_vector(document: Document):
    """Over sources and batches; two sinks that bring the first at once agree."""
    other = Document(document.context)
    other.ns, other.key = document.ns, {**document.key, "source_id": "b.md"}
    results = await asyncio.gather(
        document.stores(document.chunk(0, embedding=vector(1, 2))),
        other.stores(other.chunk(0, embedding=vector(1, 2, 3))),
    )
    assert sorted(map(tuple, results)) == [(), ("wrong_dimensions",)]
    lengths = await document.context.pool.fetch("SELECT vector_dims(embedding) FROM chunks WHERE ns = $1", document.ns)
    kept = await document.context.pool.fetchval("SELECT dimensions FROM chunk_namespaces WHERE ns = $1", document.ns)
    assert [row[0] for row in lengths] == [kept]


# -- ends of ingests ----------------------------------------------------------------------------------------------------------


async def ten(document: Document) -> None:
    """A full ingest of ten chunks."""
    await document.stores(*[document.chunk(number, f"Text {number}") for number in range(10)])
    assert (await document.ended(10))["status"] == "complete"
    document.begins()


@pytest.mark.requirement("R3.19")
async def test_ten_chunks_ingested_again_as_six_mark_exactly_four(document: Document):
    """Only those of this source are marked, published, reported, and hidden by a new version (R3.20)."""
    await document.stores(*[document.chunk(number, source_id="b.md") for number in range(9)])
    await ten(document)
    versions = len(await document.published(BUMPED))
    document.now_ms += 5_000
    await document.stores(*[document.chunk(number, f"Text {number}") for number in range(6)])
    row = await document.ended(6, window='{"source": "x", "truncated": false}')
    assert (row["status"], row["orphaned"], await document.marked()) == ("complete", 4, [6, 7, 8, 9])
    marked = (await document.rows())[6]
    assert marked["marked_at"] == marked["updated_at"] == datetime.fromtimestamp(document.now_ms / 1000, UTC)
    orphaned = (await document.published(CHANGED))[-1]
    assert (orphaned["kind"], [one["chunk_no"] for one in orphaned["changes"]]) == ("orphaned", [6, 7, 8, 9])
    assert len(await document.published(BUMPED)) == versions + 1
    report = (await document.published(REPORTED))[-1]
    facts = ("sources", "sources_done", "inserted", "updated", "unchanged", "failures", "orphaned")
    assert [report[name] for name in facts] == [1, 1, 0, 0, 6, 0, 4]
    assert (report["outcomes"], report["window"]) == ({"complete": 1}, '{"source": "x", "truncated": false}')


@pytest.mark.parametrize(
    ("count", "changes", "outcome"),
    [
        (6, {"full": False}, "partial"),
        (6, {"truncated": True}, "truncated"),
        (7, {}, "abandoned"),
        (5, {}, "failed"),
        (0, {}, "empty"),
    ],
)
async def test_an_ingest_that_is_not_complete_marks_nothing(
    document: Document, count: int, changes: dict[str, Any], outcome: str
):
    """Partial, truncated, cut off, with more chunks than its end announced, or empty: chunks that it does not name stay."""
    await ten(document)
    chunks = [document.chunk(number, f"Text {number}") for number in range(6 if count else 0)]
    await document.stores(document.end(count), *chunks)
    row = await document.ended(count, **changes)
    assert (row["status"], row["orphaned"], await document.marked()) == (outcome, 0, [])


async def test_an_ingest_with_a_failure_marks_nothing(document: Document):
    """Also one that came after the decision was made, which is then passed over."""
    await ten(document)
    await document.stores(*[document.chunk(number, f"Text {number}") for number in range(6)], document.end(6))
    decided = await document.decision()
    assert decided.value["marks_orphans"]
    await document.stores(document.chunk(6, "\x00"))
    assert await document.stores(decided) == []
    assert ((await document.counters())["status"], await document.marked()) == ("running", [])
    late = await document.decision()
    assert await document.stores(late) == []
    assert ((await document.counters())["status"], await document.marked()) == ("failed", [])


async def test_a_superseded_ingest_marks_nothing_and_its_chunks_fail(document: Document):
    """Two ingests of one source at once: the one that began last counts, and can mark (R3.20)."""
    await ten(document)
    await document.stores(document.chunk(0, "Text 0"), document.end(1))
    decided = await document.decision()
    earlier = document.begins()
    await document.stores(*[document.chunk(number, f"Text {number}") for number in range(5)])
    assert await document.stores(decided) == []
    assert ((await document.counters(earlier))["status"], await document.marked()) == ("superseded", [])
    late = document.chunk(9, "late", ingest_id=earlier)
    assert await document.stores(late) == []
    assert await document.counted(earlier) == (0, 0, 1, 1)
    assert (await document.rows())[9]["content"] == "Text 9"
    assert (await document.published(PROGRESSED))[-1]["is_superseded"] is True
    row = await document.ended(5)
    assert (row["status"], row["orphaned"], await document.marked()) == ("complete", 5, [5, 6, 7, 8, 9])


async def test_what_is_marked_is_not_marked_again(document: Document):
    """Its grace continues, and no later ingest counts it."""
    await ten(document)
    await document.stores(document.chunk(0, "Text 0"))
    await document.ended(1)
    before = await document.rows()
    document.begins()
    document.now_ms += 5_000
    await document.stores(document.chunk(0, "Text 0"))
    assert (await document.ended(1))["orphaned"] == 0
    assert await document.rows() == before


async def test_two_decisions_on_a_source_in_one_batch_do_not_share_orphans(document: Document):
    """Those that the later ingest marked are not counted for the one that it superseded."""
    await ten(document)
    await document.stores(document.chunk(0, "Text 0"), document.end(1))
    earlier = document.begins()
    await document.stores(document.chunk(0, "Text 0"), document.end(1))
    assert await document.stores(await document.decision(earlier), await document.decision()) == []
    ends = [await document.counters(one) for one in (earlier, document.ingest)]
    assert [(row["status"], row["orphaned"]) for row in ends] == [("superseded", 0), ("complete", 9)]
    assert [one["ingest_id"] for one in await document.published(CHANGED) if one["kind"] == "orphaned"] == [
        document.ingest
    ]
    assert {one["ingest_id"]: one["orphaned"] for one in (await document.published(REPORTED))[-2:]} == {
        earlier: 0,
        document.ingest: 9,
    }


async def test_a_marked_chunk_is_revived(document: Document):
    """By a later ingest that has it; counted as updated."""
    await ten(document)
    await document.stores(document.chunk(0, "Text 0"))
    await document.ended(1)
    document.begins()
    await document.stores(document.chunk(5, "Text 5"))
    assert (await document.marked(), await document.counted()) == ([1, 2, 3, 4, 6, 7, 8, 9], (0, 1, 0, 0))
    assert (await document.published(CHANGED))[-1]["kind"] == "revived"
    assert (await document.rows())[5]["marked_at"] is None


async def test_a_forced_empty_ingest_marks_all(document: Document):
    """And nothing is empty without force."""
    await ten(document)
    row = await document.ended(0, force=True)
    assert (row["status"], row["orphaned"], len(await document.marked())) == ("complete", 10, 10)


async def test_an_end_may_overtake_its_data(document: Document):
    """Nothing is done before the chunks are there; those of the ingest before it are stored too."""
    early, end = document.chunk(0, "a"), document.end(2, at=5)
    earlier = document.begins()
    await document.stores(document.end(1, at=6), end)
    assert sorted(one["expected"] for one in await document.published(PROGRESSED)) == [1, 2]
    await document.stores(early, document.chunk(1, "b"))
    assert (await document.counted(earlier), await document.counted()) == ((1, 0, 0, 0), (1, 0, 0, 0))
    assert (await document.counters(earlier))["is_superseded"] is True
    assert (await document.ended(1))["status"] == "complete"
    assert await document.marked() == [0]


async def test_a_report_adds_up_the_sources_of_an_ingest(document: Document):
    """Decided at the same moment by two sinks, the last report holds both."""
    other = Document(document.context)
    other.ns, other.ingest, other.key = document.ns, document.ingest, {**document.key, "source_id": "b.md"}
    await document.stores(document.chunk(0), document.chunk(1), document.end(2))
    await other.stores(other.chunk(0), other.end(1))
    told = {one["source_id"]: one for one in await document.published(PROGRESSED)}
    decisions = []
    for one in told.values():
        said = {name: value for name, value in one.items() if name != "at"}
        decisions.append(
            document._event(DECIDED, {**said, "outcome": "complete", "marks_orphans": True, "decided_at": 1})
        )
    assert await asyncio.gather(*(document.stores(one) for one in decisions)) == [[], []]
    reports = await document.published(REPORTED)
    assert [(one["sources"], one["sources_done"], one["inserted"]) for one in reports] == [(2, 1, 3), (2, 2, 3)]


async def test_a_decision_is_made_once(document: Document):
    """Repeated or followed by another, it changes nothing."""
    await ten(document)
    await document.stores(document.chunk(0, "Text 0"))
    row, told = await document.ended(1), await document.published(REPORTED)
    document.now_ms += 5_000
    assert await document.stores(await document.decision(), await document.decision()) == []
    assert (await document.counters(), await document.published(REPORTED)) == (row, told)


# -- with the log --------------------------------------------------------------------------------------------------------------


async def test_a_decision_that_is_ahead_waits_for_the_sink_of_chunks(stack: Stack):
    """Read again into an empty store, decisions come before their data; with all data stored one on nothing is refused."""
    async with own_database(stack) as context:
        document = Document(context)
        one, end = document.chunk(0), document.end(1)
        said = {
            name: value
            for name, value in end.value.items()
            if name in (*document.key, "ingest_id", "full", "truncated")
        }
        counts = {"revision": 2, "seen": 1, "failed": 0, "inserted": 1, "updated": 0, "unchanged": 0, "expected": 1}
        more = {"outcome": "complete", "marks_orphans": True, "force": False, "is_superseded": False, "decided_at": 1}
        decision = document._event(DECIDED, {**said, **counts, **more})
        send(stack.kafka, SUBMITTED, [(b"k", context.codec.encode(SUBMITTED, one.value))])
        with pytest.raises(UnavailableError, match="behind"):
            await document.stores(decision)
        await document.stores(one, end)
        assert (await document.counters())["revision"] == 1
        assert await document.stores(decision) == []
        assert (await document.counters())["status"] == "complete"
        ids = await context.admin.topic_ids([SUBMITTED, FINISHED])
        for topic in (SUBMITTED, FINISHED):
            ends = await context.admin.log_ranges([(topic, number) for number in range(TOPICS[topic].partitions)])
            for (_, partition), found in ends.items():
                await context.pool.execute(
                    'INSERT INTO positions ("group", topic, partition, topic_id, next) VALUES ($1, $2, $3, $4, $5)',
                    "chunks", topic, partition, ids[topic], found.high,
                )  # fmt: skip
        document.begins()
        unknown = document._event(DECIDED, {**decision.value, "ingest_id": document.ingest})
        assert await document.stores(unknown) == ["unknown_ingest"]


async def test_the_log_read_into_an_empty_store_gives_the_same_rows(stack: Stack):
    """This holds for any batches, and with ends before or after their data."""
    async with own_database(stack) as context:
        document = Document(context)
        records: list[tuple[str, dict[str, Any]]] = []
        for texts in (["a", "b", "c", "d"], ["a", "B", "c"], ["a", "B", "c", "D", "e"]):
            records += [
                (SUBMITTED, document.chunk(number, text, embedding=vector(1, number)).value)
                for number, text in enumerate(texts)
            ]
            records.append((FINISHED, document.end(len(texts), full=False).value))
            document.begins()
        for topic, value in records:
            key = "|".join(document.key.values()).encode()
            send(stack.kafka, topic, [(key, context.codec.encode(topic, value), None, 5)])

        async def consumed() -> list[dict[str, Any]]:
            sink = ChunksSink(context, PASSPORTS)
            columns = "chunk_no, content, content_hash, embedding, embedding_stale, ingest_id, source_offset"
            async with running(BatchConsumer(sink, context)):
                done = "SELECT sum(inserted + updated + unchanged) = 12 AND count(expected) = 3 FROM chunk_ingests WHERE ns = $1"
                await until(lambda: context.pool.fetchval(done, document.ns), "all is stored")
                return await document.rows(columns)

        first = await consumed()
        assert [row["content"] for row in first] == ["a", "B", "c", "D", "e"]
        tables = "chunks, chunk_sources, chunk_ingests, chunk_failures, chunk_namespaces, positions, outbox"
        await context.pool.execute(f"TRUNCATE {tables} CASCADE")
        assert await consumed() == first
        await context.pool.execute("TRUNCATE positions")  # over a filled store
        counters = await context.pool.fetch("SELECT * FROM chunk_ingests ORDER BY ingest_id")
        async with running(BatchConsumer(ChunksSink(context, PASSPORTS), context)):
            topic_read = 'SELECT sum(next) FROM positions WHERE topic = ANY ($1) AND "group" = $2'
            ends = await context.admin.log_ranges(
                [(topic, number) for topic in (SUBMITTED, FINISHED) for number in range(TOPICS[topic].partitions)]
            )
            total = sum(found.high for found in ends.values())

            async def is_read() -> bool:
                return bool(await context.pool.fetchval(topic_read, [SUBMITTED, FINISHED], "chunks") == total)

            await until(is_read, "all is read again")
        columns = "chunk_no, content, content_hash, embedding, embedding_stale, ingest_id, source_offset"
        assert await document.rows(columns) == first
        assert await context.pool.fetch("SELECT * FROM chunk_ingests ORDER BY ingest_id") == counters
