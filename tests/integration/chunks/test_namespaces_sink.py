"""The sink of namespaces: passports, ratings, and sweeps that remove exactly the expired chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from highwater.connectors.chunks import sink_namespaces as namespaces
from highwater.connectors.chunks.namespaces import ensure_passports
from highwater.connectors.chunks.sink_namespaces import NamespacesSink, align
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.pool import transaction
from highwater.schemas.chunks import CHUNK_CHANGED, NAMESPACE_RATED, SWEEP_REQUESTED
from highwater.schemas.errors import UnavailableError
from highwater.streams.chunks.identity import content_hash
from highwater.streams.chunks.passports import NOTHING_GIVEN, PASSPORT_KEYS, Passports, Removal, TtlMode, load_passports
from highwater.streams.clock import to_datetime
from tests.conftest import Stack
from tests.integration.connecting import event, in_outbox, in_transaction, until
from tests.integration.databases import own_database

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BASE = load_passports()
PASSPORTS = Passports(
    BASE.default,
    {
        **BASE.named,
        "hard": replace(BASE.default, removal=Removal.HARD, archives_cold=True),
        "soft": replace(BASE.default, archives_cold=True, ttl_days=90),
        "quick": replace(BASE.default, grace_days=0),
    },
)


@pytest.fixture
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """An empty database, at noon."""
    async with own_database(stack) as surroundings:
        yield replace(surroundings, clock=lambda: NOON)


async def chunk(
    context: ProcessContext,
    number: int,
    *,
    ns: str = "docs",
    source_id: str = "a.md",
    marked_days: float | None = None,
    age_days: float = 0.0,
    **columns: Any,
) -> None:
    """A chunk as the sink of chunks stores it, marked this many days before noon, or unmarked."""
    content = f"{ns} {source_id} {number}"
    born = to_datetime(int(NOON - age_days * DAY_MS))
    row = {
        "ns": ns, "slot": "main", "source_id": source_id, "chunk_no": number, "content": content, "title": "T",
        "url": "https://example.org", "content_hash": content_hash(ns, "main", source_id, number, content),
        "embedding": "[1,2]", "embedding_model": "sent", "created_at": born, "updated_at": born,
        "to_delete": marked_days is not None, "ingest_id": "i-1", "source_partition": 3, "source_offset": number,
        "marked_at": None if marked_days is None else to_datetime(int(NOON - marked_days * DAY_MS)), **columns,
    }  # fmt: skip
    places = ", ".join(
        f"${place}" + "::text::vector" * (name == "embedding") for place, name in enumerate(row, start=1)
    )
    async with transaction(context.pool) as tx:
        await ensure_passports(tx, {ns: NOTHING_GIVEN}, PASSPORTS, NOON)
        await tx.execute(
            "INSERT INTO chunk_sources VALUES ($1, 'main', $2, 'i-1') ON CONFLICT DO NOTHING", ns, source_id
        )
        await tx.execute(f"INSERT INTO chunks ({', '.join(row)}) VALUES ({places})", *row.values())


async def numbers(pool: asyncpg.Pool[asyncpg.Record], table: str, ns: str = "docs") -> list[tuple[str, int]]:
    """The chunk numbers in a table."""
    rows = await pool.fetch(f"SELECT source_id, chunk_no FROM {table} WHERE ns = $1 ORDER BY 1, 2", ns)
    return [tuple(row) for row in rows]


async def sweep(context: ProcessContext, now_ms: int = NOON, offset: int = 5) -> None:
    """A sweep, as the consumer hands it to the sink."""
    asked = event(SWEEP_REQUESTED, {"sweep": "2026-11-12T12:00:00Z", "now": now_ms}, offset=offset)
    assert await in_transaction(context, NamespacesSink(context), [asked]) == []


async def published(context: ProcessContext, topic: str = CHUNK_CHANGED) -> list[Mapping[str, Any]]:
    """The outbox events of a topic, in order."""
    return await in_outbox(context, topic)


async def version(context: ProcessContext, ns: str = "docs") -> int | None:
    """The version of the reads of a namespace."""
    found = await context.pool.fetchval("SELECT version FROM resource_versions WHERE key = $1", f"ns:{ns}")
    return None if found is None else int(found)


# -- passports -----------------------------------------------------------------------------------------------------------


async def passports_of(context: ProcessContext, ns: str) -> dict[str, Any]:
    """The row of a namespace, as far as the configuration says it."""
    row = await context.pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = $1", ns)
    assert row is not None
    return {name: row[name] for name in PASSPORT_KEYS}


async def ensure(context: ProcessContext, names: Iterable[str], passports: Passports = PASSPORTS) -> list[Any]:
    """Ensure the passports of namespaces; return the log lines meanwhile."""
    with capture_logs() as logs:
        async with transaction(context.pool) as tx:
            await ensure_passports(tx, dict.fromkeys(names, NOTHING_GIVEN), passports, NOON)
    return [(line["event"], line["ns"]) for line in logs]


async def test_a_namespace_has_the_passport_of_the_configuration(context: ProcessContext):
    """Column by column; a namespace that no file names has the default, which is logged once and not for every batch."""
    assert await ensure(context, ["hard", "new", "hard", "other"]) == [
        ("namespace_unknown", "new"),
        ("namespace_unknown", "other"),
    ]
    assert await ensure(context, ["hard", "new", "other"]) == []
    assert await ensure(context, []) == []
    for ns in ("hard", "new", "other"):
        passport = PASSPORTS.of(ns)
        assert await passports_of(context, ns) == {name: getattr(passport, name) for name in PASSPORT_KEYS}
    row = await context.pool.fetchrow("SELECT * FROM chunk_namespaces WHERE ns = 'new'")
    assert row is not None
    assert (row["created_at"], row["is_hot"], row["queries_per_day"]) == (to_datetime(NOON), False, 0)


async def test_the_configuration_wins_at_the_start(context: ProcessContext):
    """Rows that differ are brought in line, and only their pages get a version; how they were rated stays."""
    await ensure(context, ["hard", "new", "docs"])
    await context.pool.execute("UPDATE chunk_namespaces SET queries_per_day = 150, is_hot = true, dimensions = 3")
    changed = Passports(
        replace(BASE.default, hot_queries_per_day=200),
        {**PASSPORTS.named, "hard": replace(PASSPORTS.named["hard"], half_life_days=1.5, ttl_mode=TtlMode.ZERO_WEIGHT)},
    )
    for _ in range(2):
        await align(context.pool, context.codec, changed, NOON)
        for ns in ("hard", "new", "docs"):
            passport = changed.of(ns)
            assert await passports_of(context, ns) == {name: getattr(passport, name) for name in PASSPORT_KEYS}
        assert [await version(context, ns) is not None for ns in ("hard", "new", "docs")] == [True, True, False]
        assert len(await published(context, "cache.version-bumped")) == 2
    rows = await context.pool.fetch("SELECT ns, is_hot, queries_per_day, dimensions FROM chunk_namespaces ORDER BY ns")
    assert [tuple(row) for row in rows] == [("docs", True, 150, 3), ("hard", True, 150, 3), ("new", False, 150, 3)]


async def test_two_that_see_a_namespace_first_make_one_row(context: ProcessContext):
    """They run concurrently, and name namespaces in any order."""
    names = [f"n-{number}" for number in range(40)]
    await asyncio.gather(*(ensure(context, reversed(names) if odd else names) for odd in (False, True) * 4))
    assert await context.pool.fetchval("SELECT count(*) FROM chunk_namespaces") == 40


# -- ratings -------------------------------------------------------------------------------------------------------------


def rated(ns: str, is_hot: bool, queries_per_day: float, at_ms: int, offset: int = 0) -> Any:
    """A rating as the agent publishes it."""
    value = {"ns": ns, "is_hot": is_hot, "queries_per_day": queries_per_day, "decided_at": at_ms}
    return event(NAMESPACE_RATED, value, offset=offset)


async def ratings(context: ProcessContext) -> list[tuple[str, bool, float]]:
    """The stored ratings."""
    rows = await context.pool.fetch("SELECT ns, is_hot, queries_per_day FROM chunk_namespaces ORDER BY ns")
    return [tuple(row) for row in rows]


async def test_the_latest_rating_counts(context: ProcessContext):
    """This holds within a batch and between batches, for late and repeated ratings; pages get a version if temperatures
    changed.
    """
    await ensure(context, ["docs", "new"])
    sink = NamespacesSink(context)
    batch = [rated("docs", True, 120.5, NOON), rated("docs", False, 3, NOON - 1, 1), rated("new", False, 9, NOON, 2)]
    assert await in_transaction(context, sink, batch) == []
    expected = [("docs", True, 120.5), ("new", False, 9)]
    assert await ratings(context) == expected
    first = await version(context)
    assert (first is not None, await version(context, "new")) == (True, None)
    for again in (batch, batch[1:2], [rated("docs", False, 0, NOON - HOUR_MS)]):
        assert await in_transaction(context, sink, again) == []
    assert await ratings(context) == expected
    assert await in_transaction(context, sink, [rated("docs", True, 130, NOON + HOUR_MS)]) == []
    assert (await ratings(context), await version(context)) == ([("docs", True, 130), ("new", False, 9)], first)
    assert await in_transaction(context, sink, [rated("docs", False, 99, NOON + 2 * HOUR_MS)]) == []
    assert await version(context) == (first or 0) + 1


async def test_a_namespace_without_chunks_is_not_rated(context: ProcessContext):
    """A namespace without chunks has no row, for any number of searches; an invalid rating is dead-lettered."""
    wrong = rated("a|b", True, 1_000, NOON)
    dead = await in_transaction(context, NamespacesSink(context), [rated("nothing", True, 1_000, NOON), wrong])
    assert [letter.reason for letter in dead] == ["separator"]
    assert await ratings(context) == []


# -- sweeps --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3.20")
async def test_orphans_are_taken_away_when_their_grace_is_over(context: ProcessContext):
    """At the seventh day and not before; each as it was, with when and why; its neighbours stay."""
    await chunk(context, 0)
    await chunk(context, 1, marked_days=7)
    await chunk(context, 2, marked_days=6.999)
    await chunk(context, 3, marked_days=400)
    await chunk(context, 4, source_id="b.md", marked_days=8)
    columns = await context.pool.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'chunks'"
        " AND column_name NOT IN ('words', 'vector_text', 'content_since', 'language')"
    )
    names = ", ".join(row["column_name"] for row in columns)
    before = await context.pool.fetch(f"SELECT {names} FROM chunks WHERE chunk_no IN (1, 3, 4) ORDER BY chunk_no")
    await sweep(context)
    assert await numbers(context.pool, "chunks") == [("a.md", 0), ("a.md", 2)]
    kept = await context.pool.fetch(f"SELECT {names} FROM chunks_archive ORDER BY chunk_no")
    assert kept == before
    why = await context.pool.fetch("SELECT DISTINCT archived_at, reason FROM chunks_archive")
    assert [tuple(row) for row in why] == [(to_datetime(NOON), "orphaned")]


async def test_what_is_taken_away_is_told(context: ProcessContext):
    """One event per source, the chunks in order with their former state; and a version for reads of the namespace."""
    for number in (3, 1):
        await chunk(context, number, marked_days=8)
    await chunk(context, 4, source_id="b.md", marked_days=8)
    await sweep(context)
    assert [
        (one["source_id"], one["kind"], one["ingest_id"], [change["chunk_no"] for change in one["changes"]], one["at"])
        for one in await published(context)
    ] == [("a.md", "archived", None, [1, 3], NOON), ("b.md", "archived", None, [4], NOON)]
    changes = [change for one in await published(context) for change in one["changes"]]
    assert [change["old_hash"] for change in changes] == [
        content_hash("docs", "main", source_id, number, f"docs {source_id} {number}")
        for source_id, number in (("a.md", 1), ("a.md", 3), ("b.md", 4))
    ]
    assert {change["new_hash"] for change in changes} == {None}
    (bumped,) = await published(context, "cache.version-bumped")
    assert (bumped["key"], bumped["caused_by"]) == ("ns:docs", f"{SWEEP_REQUESTED}/0/5")


async def test_a_sweep_that_comes_again_changes_nothing(context: ProcessContext):
    """Nor does one of an earlier time, as a replay brings."""
    await chunk(context, 1, marked_days=8)
    await chunk(context, 2, marked_days=1)
    await sweep(context)
    first = (await published(context), await version(context))
    await sweep(context)
    await sweep(context, NOON - 300 * DAY_MS)
    assert (await published(context), await version(context)) == first
    assert (await numbers(context.pool, "chunks"), await numbers(context.pool, "chunks_archive")) == (
        [("a.md", 2)],
        [("a.md", 1)],
    )


async def test_hard_means_gone(context: ProcessContext):
    """Where the passport says so: no copy, and the event says so."""
    await chunk(context, 1, ns="hard", marked_days=8)
    await sweep(context)
    assert await numbers(context.pool, "chunks", "hard") == await numbers(context.pool, "chunks_archive", "hard") == []
    assert [one["kind"] for one in await published(context)] == ["removed"]


async def test_without_grace_orphans_go_at_once(context: ProcessContext):
    """In their namespace; another keeps its own."""
    for ns in ("quick", "docs"):
        await chunk(context, 1, ns=ns, marked_days=0)
    await sweep(context)
    assert (await numbers(context.pool, "chunks", "quick"), len(await numbers(context.pool, "chunks"))) == ([], 1)


@pytest.mark.requirement("R3.23")
async def test_cold_chunks_go_only_where_the_passport_says_so(context: ProcessContext):
    """R3.23: at exactly the TTL no chunk is cold yet; the publication time counts, otherwise the creation. Elsewhere they are
    counted and logged.
    """
    for ns, ttl in (("docs", 365), ("soft", 90), ("hard", 365)):
        await chunk(context, 1, ns=ns, age_days=ttl)
        await chunk(context, 2, ns=ns, age_days=ttl + 0.001)
        await chunk(context, 3, ns=ns, age_days=0, published_at=to_datetime(NOON - (ttl + 1) * DAY_MS))
        await chunk(context, 4, ns=ns, age_days=ttl + 1, published_at=to_datetime(NOON))
    with capture_logs() as logs:
        await sweep(context)
    left = {ns: [number for _, number in await numbers(context.pool, "chunks", ns)] for ns in ("docs", "soft", "hard")}
    assert left == {"docs": [1, 2, 3, 4], "soft": [1, 4], "hard": [1, 4]}
    assert [number for _, number in await numbers(context.pool, "chunks_archive", "soft")] == [2, 3]
    assert await numbers(context.pool, "chunks_archive", "hard") == []
    assert await context.pool.fetchval("SELECT array_agg(DISTINCT reason) FROM chunks_archive") == ["cold"]
    assert [(one["ns"], one["kind"]) for one in await published(context)] == [("hard", "removed"), ("soft", "archived")]
    (said,) = [line for line in logs if line["event"] == "swept"]
    assert (said["orphans"], said["cold"], said["cold_candidates"]) == (0, 4, {"docs": 2})


async def test_much_is_taken_away_in_bounded_parts(context: ProcessContext, monkeypatch: pytest.MonkeyPatch):
    """Each part is stored with its events; in the end nothing is left, and each chunk was published once."""
    monkeypatch.setattr(namespaces, "_CHUNKS_MAX", 4)
    for number in range(12):
        await chunk(context, number, source_id=f"{number % 3}.md", marked_days=8 + number)
    await sweep(context)
    assert await numbers(context.pool, "chunks") == []
    events = await published(context)
    gone = sorted((one["source_id"], change["chunk_no"]) for one in events for change in one["changes"])
    assert gone == await numbers(context.pool, "chunks_archive")
    assert len(gone) == len(set(gone)) == 12
    assert len(await published(context, "cache.version-bumped")) == 3


async def test_two_sweeps_side_by_side_take_nothing_twice(context: ProcessContext, monkeypatch: pytest.MonkeyPatch):
    """As after a rebalance that came too late."""
    monkeypatch.setattr(namespaces, "_CHUNKS_MAX", 5)
    for number in range(40):
        await chunk(context, number, source_id=f"{number % 7}.md", marked_days=8)
    await asyncio.gather(*(sweep(context) for _ in range(3)))
    gone = [(one["source_id"], change["chunk_no"]) for one in await published(context) for change in one["changes"]]
    assert sorted(gone) == await numbers(context.pool, "chunks_archive")
    assert len(gone) == len(set(gone)) == 40


async def waiting_backend(context: ProcessContext) -> int:
    """The server's process that waits for a lock, once there is one."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return int(await until(lambda: context.pool.fetchval(query), "the sweep waits"))


async def test_a_sweep_that_is_cut_off_is_done_again(context: ProcessContext, monkeypatch: pytest.MonkeyPatch):
    """What it removed and published stays; the next sweep finds the rest, and each chunk is published once."""
    monkeypatch.setattr(namespaces, "_CHUNKS_MAX", 4)
    for number in range(8):
        await chunk(context, number, source_id=f"{number // 4}.md", marked_days=20 - number)
    async with transaction(context.pool) as ingest:
        await ingest.execute("SELECT FROM chunk_sources WHERE source_id = '1.md' FOR UPDATE")
        sweeping = asyncio.create_task(sweep(context))
        await context.pool.execute("SELECT pg_terminate_backend($1)", await waiting_backend(context))
        with pytest.raises(UnavailableError):
            await sweeping
    assert await numbers(context.pool, "chunks_archive") == [("0.md", number) for number in range(4)]
    await sweep(context)
    gone = [(one["source_id"], change["chunk_no"]) for one in await published(context) for change in one["changes"]]
    assert (
        gone == await numbers(context.pool, "chunks_archive") == [(f"{number // 4}.md", number) for number in range(8)]
    )


async def test_a_chunk_that_is_revived_meanwhile_stays(context: ProcessContext):
    """The sweep waits for the lock of the source, and checks again."""
    await chunk(context, 1, marked_days=8)
    await chunk(context, 2, marked_days=8)
    async with transaction(context.pool) as ingest:
        await ingest.execute("SELECT FROM chunk_sources WHERE source_id = 'a.md' FOR UPDATE")
        sweeping = asyncio.create_task(sweep(context))
        await waiting_backend(context)
        await ingest.execute("UPDATE chunks SET to_delete = false, marked_at = NULL WHERE chunk_no = 1")
    await sweeping
    assert (await numbers(context.pool, "chunks"), await numbers(context.pool, "chunks_archive")) == (
        [("a.md", 1)],
        [("a.md", 2)],
    )
    assert [[change["chunk_no"] for change in one["changes"]] for one in await published(context)] == [[2]]


async def test_a_sweep_that_is_none_is_put_aside(context: ProcessContext):
    """It takes nothing away."""
    await chunk(context, 1, marked_days=8)
    asked = event(SWEEP_REQUESTED, {"sweep": "x", "now": 10**18})
    dead = await in_transaction(context, NamespacesSink(context), [asked])
    assert ([letter.reason for letter in dead], await numbers(context.pool, "chunks")) == (
        ["time_out_of_range"],
        [("a.md", 1)],
    )
