"""From the sink of chunks through the deciding agent to the sinks that mark and remove: the history of chunks."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.sink_ingests import IngestsSink
from highwater.connectors.chunks.sink_namespaces import NamespacesSink
from highwater.connectors.jobs import redactions
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.slices import REDACTION
from highwater.schemas.chunks import (
    CHUNK_SUBMITTED,
    INGEST_DECIDED,
    INGEST_FINISHED,
    INGEST_PROGRESSED,
    SWEEP_REQUESTED,
)
from highwater.streams.chunks.agents import IngestAgent
from highwater.streams.chunks.completion import ABANDONED_MS
from highwater.streams.chunks.passports import load_passports
from highwater.streams.jobs.redaction import WITHDRAWN
from tests.conftest import Stack
from tests.integration.connecting import event, in_transaction
from tests.integration.databases import own_database
from tests.unit.chunks.test_agents import Case

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
DAY_MS = 24 * 3_600_000
TEN, SIX = tuple(range(10)), tuple(range(6))


@dataclass
class Flow:
    """All steps from submitted chunks to their outcome, without a broker between them."""

    context: ProcessContext
    now_ms: int = NOON
    offset: int = 0
    seen_ids: int = 0
    case: Case = field(default_factory=lambda: Case(IngestAgent))
    log: list[Sequence[Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = replace(self.context, clock=lambda: self.now_ms)

    def _event(self, topic: str, value: dict[str, Any]) -> Event:
        self.offset += 1
        return event(topic, value, offset=self.offset, arrived_ms=self.now_ms + self.offset)

    async def ingest(
        self,
        ingest_id: str,
        numbers: Sequence[int],
        *,
        source_id: str = "a.md",
        text: str = "v1",
        is_ended: bool = True,
        **end: Any,
    ) -> None:
        """Submit chunks of a source and, unless it is still to come, its end in one batch; `end` overrides what that says."""
        names = {"ingest_id": ingest_id, "ns": "docs", "slot": "main", "source_id": source_id}
        blank = {"title": None, "url": None, "embedding": None, "published_at": None, "lasts": False, "opens": False}
        batch = [
            self._event(CHUNK_SUBMITTED, {**names, "chunk_no": number, "content": f"{text} of {number}", **blank})
            for number in numbers
        ]
        told = {
            "full": True, "expected_count": len(numbers), "truncated": False, "ts": self.now_ms, "force": False,
            "window": None, **end,
        }  # fmt: skip
        if is_ended:
            batch.append(self._event(INGEST_FINISHED, {**names, **told}))
        await self.deliver(batch)

    async def deliver(self, batch: Sequence[Event]) -> None:
        """Deliver a batch to the sink of chunks, and the resulting events to their consumers."""
        self.log.append(batch)
        await in_transaction(self.context, ChunksSink(self.context, load_passports()), batch)
        for progress in await self._published(INGEST_PROGRESSED):
            await self.case.take(INGEST_PROGRESSED, progress)
        await self._decide()

    async def tick(self) -> None:
        """A tick, and the resulting decisions."""
        await self.case.tick(self.now_ms)
        await self._decide()

    async def _decide(self) -> None:
        decided = [self._event(INGEST_DECIDED, dict(told)) for told in self.case.published(INGEST_DECIDED)]
        self.case.sent.clear()
        if decided:
            await in_transaction(self.context, IngestsSink(self.context, REDACTION), decided)

    async def _published(self, topic: str) -> list[Mapping[str, Any]]:
        rows = await self.context.pool.fetch(
            "SELECT id, value FROM outbox WHERE topic = $1 AND id > $2 ORDER BY id", topic, self.seen_ids
        )
        self.seen_ids = max([self.seen_ids, *(row["id"] for row in rows)])
        return [self.context.codec.decode(topic, row["value"]) for row in rows]

    async def sweep(self) -> None:
        """A sweep now."""
        await in_transaction(
            self.context, NamespacesSink(self.context), [event(SWEEP_REQUESTED, {"sweep": "", "now": self.now_ms})]
        )

    async def rows(self, table: str = "chunks", source_id: str = "a.md", *, marked: bool = False) -> list[int]:
        """The chunks of a source that are marked, or are not."""
        query = f"SELECT chunk_no FROM {table} WHERE source_id = $1 AND to_delete = $2 ORDER BY chunk_no"
        return [row["chunk_no"] for row in await self.context.pool.fetch(query, source_id, marked)]

    async def status(self, ingest_id: str, source_id: str = "a.md") -> tuple[str, int]:
        """How the ingest of a source stands, and how many orphans it made."""
        query = "SELECT status, orphaned FROM chunk_ingests WHERE ingest_id = $1 AND source_id = $2"
        row = await self.context.pool.fetchrow(query, ingest_id, source_id)
        assert row is not None
        return row["status"], row["orphaned"]


@pytest.fixture
async def flow(stack: Stack) -> AsyncIterator[Flow]:
    """Ten chunks of two sources in an empty database."""
    async with own_database(stack) as context:
        made = Flow(context)
        for source_id in ("a.md", "b.md"):
            await made.ingest("first", TEN, source_id=source_id)
            assert await made.status("first", source_id) == ("complete", 0)
        yield made


@pytest.mark.requirement("R3.20")
async def test_ten_chunks_ingested_again_as_six_mark_four(flow: Flow):
    """Exactly those that it did not name, of that source only (R3.20)."""
    await flow.ingest("second", SIX)
    assert await flow.status("second") == ("complete", 4)
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*SIX], [6, 7, 8, 9])
    assert await flow.rows(source_id="b.md") == [*TEN]


async def _deck(flow: Flow, source_id: str) -> str:
    """A deck of a document and an answer that is kept of it, both of which quote its chunks 5 and 6; the deck's id."""
    presentation_id, slides = (
        str(uuid.uuid4()),
        [{"title": "v1 of 5", "bullets": ["It says: v1 of 6!"], "notes": "v1 of 5"}],
    )
    async with transaction(flow.context.pool) as tx:
        await tx.execute(
            "INSERT INTO presentations VALUES ($1, 'org', 'ada', 'Deck', $2::jsonb, 'p/0/1', now())",
            presentation_id,
            json.dumps(slides),
        )
        await redactions.tag_deck(tx, presentation_id, [source_id])
        if await redactions.tag_kept(tx, f"hash of {source_id}", "ada", [source_id], json.dumps(slides)):
            await tx.execute(
                "INSERT INTO semantic_vectors VALUES ($1, 'org', 's', 'm', '', now(), false)", f"hash of {source_id}"
            )
    return presentation_id


async def test_what_is_marked_leaves_decks_and_answers_that_are_kept(flow: Flow):
    """Lines that quote a chunk that is gone are withdrawn, and no answer of its document is given again; others stay."""
    decks = [await _deck(flow, source_id) for source_id in ("a.md", "b.md")]
    await flow.ingest("second", SIX)
    shown = [
        json.loads(
            await flow.context.pool.fetchval("SELECT slides FROM presentations WHERE presentation_id = $1", deck)
        )
        for deck in decks
    ]
    assert shown[0] == [{"title": "v1 of 5", "bullets": [WITHDRAWN], "notes": "v1 of 5"}]
    assert shown[1] == [{"title": "v1 of 5", "bullets": ["It says: v1 of 6!"], "notes": "v1 of 5"}]
    kept = "SELECT hash FROM semantic_vectors WHERE NOT is_withdrawn"
    assert [row["hash"] for row in await flow.context.pool.fetch(kept)] == ["hash of b.md"]
    # Rows stored after the mark do not quote it any more either.
    late = await _deck(flow, "a.md")
    query = "SELECT slides -> 0 ->> 'bullets' FROM presentations WHERE presentation_id = $1"
    assert json.loads(await flow.context.pool.fetchval(query, late)) == [WITHDRAWN]
    async with transaction(flow.context.pool) as tx:
        await redactions.withdraw_users(tx, ["bob"])
        await redactions.withdraw_users(tx, ["ada"])
    assert await flow.context.pool.fetch(kept) == []


@pytest.mark.requirement("R3.20")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ({"full": False}, "partial"),
        ({"truncated": True}, "truncated"),
        ({"expected_count": 7}, "running"),
        ({"expected_count": 5}, "failed"),
        ({"is_ended": False}, "running"),
    ],
)
async def test_what_is_not_whole_marks_nothing(flow: Flow, end: dict[str, Any], status: str):
    """Partial, truncated, cut off, or with counts that contradict: all ten stay (R3.20)."""
    await flow.ingest("second", SIX, **end)
    assert await flow.status("second") == (status, 0)
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*TEN], [])
    flow.now_ms += ABANDONED_MS
    await flow.tick()
    assert await flow.status("second") == ("abandoned" if status == "running" else status, 0)
    assert await flow.rows() == [*TEN]


async def test_a_chunk_that_is_refused_marks_nothing(flow: Flow):
    """The five others are stored, and counted with it (R3.24)."""
    await flow.ingest("second", (-1, 1, 2, 3, 4, 5))
    assert await flow.status("second") == ("failed", 0)
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*TEN], [])
    counted = await flow.context.pool.fetchrow(
        "SELECT unchanged, failures FROM chunk_ingests WHERE ingest_id = 'second'"
    )
    assert tuple(counted or ()) == (5, 1)


@pytest.mark.parametrize(("force", "left"), [(False, [*TEN]), (True, [])])
async def test_an_empty_source_marks_nothing_unless_forced(flow: Flow, force: bool, left: list[int]):
    """A folder that was not mounted does not delete its sources (R3.20)."""
    await flow.ingest("second", (), force=force)
    assert await flow.status("second") == (("complete", 10) if force else ("empty", 0))
    assert (await flow.rows(), await flow.rows(source_id="b.md")) == (left, [*TEN])


async def test_an_end_that_is_heard_first_waits_for_its_chunks(flow: Flow):
    """However they are spread over batches."""
    await flow.ingest("second", (), expected_count=6)
    for part in ((5, 0), (3,), (1, 2)):
        await flow.ingest("second", part, is_ended=False)
        assert await flow.rows(marked=True) == []
    await flow.ingest("second", (4,), is_ended=False)
    assert await flow.status("second") == ("complete", 4)
    assert await flow.rows(marked=True) == [6, 7, 8, 9]


async def test_of_two_ingests_at_once_the_later_one_counts(flow: Flow):
    """The one that began first marks nothing, though all of its chunks were dealt with in the end."""
    await flow.ingest("second", (0, 1, 2), is_ended=False)
    await flow.ingest("third", TEN[:8], text="v2")
    await flow.ingest("second", (3, 4, 5), expected_count=6)
    assert (await flow.status("third"), (await flow.status("second"))[1]) == (("complete", 2), 0)
    assert (await flow.status("second"))[0] == "superseded"
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*range(8)], [8, 9])
    texts = await flow.context.pool.fetch(
        "SELECT DISTINCT left(content, 2) AS v FROM chunks WHERE chunk_no < 8 AND source_id = 'a.md'"
    )
    assert [row["v"] for row in texts] == ["v2"]


async def test_orphans_are_kept_for_their_grace(flow: Flow):
    """Then they are in the archive and nowhere else; one that returned within the grace is not."""
    await flow.ingest("second", SIX)
    flow.now_ms += 6 * DAY_MS
    await flow.sweep()
    assert await flow.rows(marked=True) == [6, 7, 8, 9]
    await flow.ingest("third", (*SIX, 8))
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*SIX, 8], [6, 7, 9])
    flow.now_ms += DAY_MS
    await flow.sweep()
    assert (await flow.rows(), await flow.rows(marked=True)) == ([*SIX, 8], [])
    assert await flow.rows("chunks_archive", marked=True) == [6, 7, 9]
    flow.now_ms += 30 * DAY_MS
    await flow.sweep()
    assert (await flow.rows(), await flow.rows(source_id="b.md")) == ([*SIX, 8], [*TEN])


async def test_the_log_read_again_brings_nothing_back(flow: Flow):
    """Over filled tables, and with an agent that knows nothing any more: rows, counts and ends stay as they are."""
    await flow.ingest("second", SIX, text="v2")
    flow.now_ms += 8 * DAY_MS
    await flow.sweep()

    async def all_there_is() -> list[Any]:
        tables = ("chunks", "former_chunks", "chunks_archive", "chunk_ingests", "chunk_sources", "chunk_failures")
        return [
            await flow.context.pool.fetch(f"SELECT t.xmin::text, t.* FROM {table} AS t ORDER BY t::text")
            for table in tables
        ]

    before = await all_there_is()
    flow.case = Case(IngestAgent)
    for batch in tuple(flow.log):
        await flow.deliver(batch)
    assert await all_there_is() == before
