"""Chunks, their sources and ingests in PostgreSQL, as their sinks read and store them.

Invariant: a transaction that changes chunks of a source locks its row, so that its plan still holds when it is stored;
only vectors may arrive meanwhile, and a statement that writes a chunk checks the vector (`store_chunks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.pages.surrogate_keys import source_space
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.redaction import Withdrawn
from highwater.schemas.chunks import IngestReported
from highwater.schemas.positions import Position
from highwater.streams.chunks.passports import NOTHING_GIVEN, Given
from highwater.streams.chunks.upserts import Failure, Ingest, Plan, Source, Stored, Submitted, Write
from highwater.streams.clock import to_datetime
from highwater.streams.languages import text_language

# The advisory lock of an ingest's report; other numbers are beside it in this folder.
_REPORT_CLASS = 7_431
# Rows per execution of a statement. In a namespace with a vector index each costs milliseconds, and a statement that
# takes longer than `STATEMENT_SECONDS_MAX` counts as stuck; elsewhere more rows gain nothing.
_WRITTEN_MAX = 1_000


class SourceKey(NamedTuple):
    """The source of chunks."""

    ns: str
    slot: str
    source_id: str


class Namespace(NamedTuple):
    """A namespace as the sink sees it; `dimensions` is None before its first vector."""

    dimensions: int | None
    is_hot: bool
    hot_days: float
    given: Given = NOTHING_GIVEN


class Ended(NamedTuple):
    """How an ingest of a source ended; `position` is that of the decision."""

    key: SourceKey
    ingest: Ingest
    status: str
    position: Position

    @property
    def of(self) -> tuple[SourceKey, str]:
        """Return the source and the ingest."""
        return self.key, self.ingest.ingest_id


class Orphan(NamedTuple):
    """A chunk that was marked for deletion."""

    chunk_no: int
    content_hash: str


class Planned(NamedTuple):
    """What a batch does to a source, and the last event of each ingest."""

    plan: Plan
    before: Source
    positions: Mapping[str, Position]


async def namespaces_of(tx: Connection, names: Collection[str]) -> dict[str, Namespace]:
    """Return the namespaces that exist."""
    rows = await tx.fetch(QUERIES["chunk_namespaces_of"], list(names))
    return {row["ns"]: Namespace(row["dimensions"], row["is_hot"], row["hot_days"], Given.of_row(row)) for row in rows}


async def hold_without_dimensions(tx: Connection, names: Collection[str]) -> None:
    """Lock the namespaces that have no vector yet."""
    await tx.execute(QUERIES["hold_namespaces_without_dimensions"], list(names))


async def set_dimensions(tx: Connection, ns: str, dimensions: int) -> None:
    """Set the dimension of a namespace's vectors, once."""
    await tx.execute(QUERIES["set_namespace_dimensions"], ns, dimensions)


# -- gather --------------------------------------------------------------------------------------------------------------


async def lock_sources(tx: Connection, keys: Collection[SourceKey]) -> dict[SourceKey, Source]:
    """Lock sources, creating missing ones, and return their latest ingests."""
    columns = _transposed(keys, 3)
    await tx.execute(QUERIES["ensure_chunk_sources"], *columns)
    return {
        SourceKey(row["ns"], row["slot"], row["source_id"]): Source(
            row["ingest_id"], row["began_ms"], row["is_emptied"]
        )
        for row in await tx.fetch(QUERIES["lock_chunk_sources"], *columns)
    }


async def ingests_of(
    tx: Connection, ingest_keys: Iterable[tuple[SourceKey, str]]
) -> dict[SourceKey, dict[str, Ingest]]:
    """Return ingests of sources by their ids, if they exist."""
    found: dict[SourceKey, dict[str, Ingest]] = {}
    for row in await tx.fetch(QUERIES["chunk_ingests_of"], *_transposed([(*key, one) for key, one in ingest_keys], 4)):
        key = SourceKey(row["ns"], row["slot"], row["source_id"])
        found.setdefault(key, {})[row["ingest_id"]] = _ingest(row)
    return found


def _ingest(row: Row) -> Ingest:
    return Ingest(
        row["ingest_id"],
        row["status"],
        is_full=row["is_full"],
        is_forced=row["is_forced"],
        is_truncated=row["is_truncated"],
        is_superseded=row["is_superseded"],
        expected=row["expected"],
        window=row["pagination"],
        inserted=row["inserted"],
        updated=row["updated"],
        unchanged=row["unchanged"],
        failures=row["failures"],
        revision=row["revision"],
        seen=tuple((one.lower, one.upper) for one in row["seen"]),
        dealt=orjson.loads(row["dealt"]),
    )


async def rows_of(
    tx: Connection, by_source: Mapping[SourceKey, Sequence[Submitted]]
) -> dict[SourceKey, dict[int, Stored]]:
    """Return the stored chunks among those submitted."""
    # Numbers are sent as one text per source: encoding an array of them is ten times slower.
    asked = [
        (*key, ",".join(map(str, sorted({said.chunk_no for said in submitted}))))
        for key, submitted in by_source.items()
    ]
    found: dict[SourceKey, dict[int, Stored]] = {key: {} for key in by_source}
    by_place = list(found.values())
    for place, number, *stored in await tx.fetch(QUERIES["chunks_of"], *_transposed(asked, 4)):
        by_place[place - 1][number] = Stored(*stored)
    return found


async def failures_of(
    tx: Connection, by_source: Mapping[SourceKey, Sequence[Submitted]]
) -> dict[SourceKey, set[tuple[str, int, str]]]:
    """Return the known failures of submitted chunks."""
    found: dict[SourceKey, set[tuple[str, int, str]]] = {key: set() for key in by_source}
    asked = {(*key, said.ingest_id, said.chunk_no) for key, submitted in by_source.items() for said in submitted}
    for ns, slot, source_id, *failure in await tx.fetch(QUERIES["chunk_failures_of"], *_transposed(asked, 5)):
        found[SourceKey(ns, slot, source_id)].add(tuple(failure))
    return found


# -- store ---------------------------------------------------------------------------------------------------------------


async def store_plans(tx: Connection, planned: Mapping[SourceKey, Planned], now_ms: int) -> None:
    """Store what was planned for locked sources."""
    await _store_sources(tx, planned)
    await _store_ingests(tx, planned, now_ms)
    await _store_failures(tx, planned, now_ms)
    await _store_chunks(tx, planned, now_ms)


async def _store_sources(tx: Connection, planned: Mapping[SourceKey, Planned]) -> None:
    rows = [
        (*key, one.plan.source.latest, one.plan.source.began_ms, one.plan.source.is_emptied)
        for key, one in planned.items()
        if one.plan.source.latest != one.before.latest
    ]
    if rows:
        await tx.execute(QUERIES["store_chunk_sources"], *_transposed(rows, 6))


async def _store_ingests(tx: Connection, planned: Mapping[SourceKey, Planned], now_ms: int) -> None:
    rows = [
        _ingest_row(key, ingest, one.positions) for key, one in planned.items() for ingest in one.plan.ingests.values()
    ]
    if rows:
        await tx.execute(QUERIES["store_chunk_ingests"], *_transposed(rows, 18), to_datetime(now_ms))


def _ingest_row(key: SourceKey, ingest: Ingest, positions: Mapping[str, Position]) -> tuple[Any, ...]:
    """Return a row in the order of `store_chunk_ingests`."""
    # A superseded ingest was changed by the event that began its successor.
    position = positions.get(ingest.ingest_id) or max(positions.values())
    return (
        *key,
        ingest.ingest_id,
        ingest.is_full,
        ingest.is_forced,
        ingest.is_truncated,
        ingest.is_superseded,
        ingest.window,
        ingest.expected,
        "{" + ",".join(f"[{first},{end})" for first, end in ingest.seen) + "}",
        ingest.inserted,
        ingest.updated,
        ingest.unchanged,
        ingest.failures,
        ingest.revision,
        orjson.dumps(ingest.dealt).decode(),
        str(position),
    )


async def _store_failures(tx: Connection, planned: Mapping[SourceKey, Planned], now_ms: int) -> None:
    rows = [
        _failure_row(key, failure) for key, one in planned.items() for failure in one.plan.failures if failure.is_new
    ]
    if rows:
        await tx.execute(QUERIES["store_chunk_failures"], *_transposed(rows, 9), to_datetime(now_ms))


def _failure_row(key: SourceKey, failure: Failure) -> tuple[Any, ...]:
    said, (reason, detail), _ = failure
    return (*key, said.ingest_id, said.chunk_no, said.content_hash, reason, detail, f"{said.place}/{said.offset}")


async def _store_chunks(tx: Connection, planned: Mapping[SourceKey, Planned], now_ms: int) -> None:
    keys = [key for key, one in planned.items() if one.plan.writes]
    if not keys:
        return
    await vectors.enable(tx)
    for depth in range(max(len(planned[key].plan.passed) for key in keys)):
        passed = [planned[key].plan.passed[depth : depth + 1] for key in keys]
        await _write_chunks(tx, keys, [layer[0] if layer else {} for layer in passed], now_ms)
    await _write_chunks(tx, keys, [planned[key].plan.writes for key in keys], now_ms)


async def _write_chunks(
    tx: Connection, keys: Sequence[SourceKey], writes: Sequence[Mapping[int, Write]], now_ms: int
) -> None:
    """Write chunks of sources, each once."""
    rows = [
        _chunk_row(place, number, write)
        for place, of_source in enumerate(writes, start=1)
        for number, write in sorted(of_source.items())
    ]
    for first in range(0, len(rows), _WRITTEN_MAX):
        *columns, offsets, arrived, languages = _transposed(rows[first : first + _WRITTEN_MAX], 14)
        await tx.execute(
            QUERIES["store_chunks"], *_transposed(keys, 3), *columns, to_datetime(now_ms), offsets, arrived, languages
        )


def _chunk_row(place: int, number: int, write: Write) -> tuple[Any, ...]:
    """Return a row in the order of `store_chunks`."""
    said = write.said
    return (
        place,
        number,
        said.content,
        said.title,
        said.url,
        said.content_hash,
        write.embedding,
        write.is_stale,
        write.row.published_at,
        said.ingest_id,
        said.partition,
        said.offset,
        to_datetime(said.arrived_ms),
        text_language(f"{said.title or ''} {said.content}"),  # only of what is written: most ingests repeat most chunks
    )


# -- ends of ingests -----------------------------------------------------------------------------------------------------


async def mark_orphans(
    tx: Connection, ended: Mapping[tuple[SourceKey, str], int], now_ms: int
) -> dict[tuple[SourceKey, str], list[Orphan]]:
    """Mark chunks that are not among the chunks of these ingests, in locked sources (R3.20).

    `ended`: for each when the log recorded the decision that ended it, in ms since 1970.
    """
    found: dict[tuple[SourceKey, str], list[Orphan]] = {}
    if not ended:
        return found
    columns = _transposed([(*key, ingest_id) for key, ingest_id in ended], 4)
    arrived = [to_datetime(arrived_ms) for arrived_ms in ended.values()]
    for *key, ingest_id, number, hashed in await tx.fetch(
        QUERIES["mark_orphans"], *columns, to_datetime(now_ms), arrived
    ):
        found.setdefault((SourceKey(*key), ingest_id), []).append(Orphan(number, hashed))
    return {one: sorted(orphans) for one, orphans in found.items()}


async def withdrawn_chunks(tx: Connection, marked: Mapping[tuple[SourceKey, int], str]) -> list[Withdrawn]:
    """Return the marked chunks (place to the position of the event) that some document holds, with their texts."""
    columns = _transposed([(*key, number) for key, number in marked], 4)
    return [
        Withdrawn(
            source_space(row["ns"], row["slot"], row["source_id"]),
            row["chunk_no"],
            f"{row['slot']}|{row['source_id']}|{row['chunk_no']}",
            row["text"],
            marked[SourceKey(row["ns"], row["slot"], row["source_id"]), row["chunk_no"]],
        )
        for row in await tx.fetch(QUERIES["withdrawn_chunks"], *columns)
    ]


async def end_ingests(
    tx: Connection, ended: Sequence[Ended], orphans: Mapping[tuple[SourceKey, str], Sequence[Orphan]], now_ms: int
) -> None:
    """Store how ingests ended."""
    rows = [
        (*one.key, one.ingest.ingest_id, one.status, len(orphans.get(one.of, ())), str(one.position)) for one in ended
    ]
    await tx.execute(QUERIES["end_chunk_ingests"], *_transposed(rows, 7), to_datetime(now_ms))


async def reports_of(tx: Connection, ingest_ids: Collection[str], now_ms: int) -> list[IngestReported]:
    """Return what ingests did over all their sources; locks the reports until the transaction ends."""
    ordered = sorted(ingest_ids)
    for ingest_id in ordered:
        await tx.execute(QUERIES["hold_ingest"], _REPORT_CLASS, ingest_id)
    return [_report(row, now_ms) for row in await tx.fetch(QUERIES["ingest_totals"], ordered)]


def _report(row: Row, now_ms: int) -> IngestReported:
    return {
        "ingest_id": row["ingest_id"],
        "ns": row["ns"],
        "sources": row["sources"],
        "sources_done": row["sources_done"],
        "inserted": row["inserted"],
        "updated": row["updated"],
        "unchanged": row["unchanged"],
        "failures": row["failures"],
        "orphaned": row["orphaned"],
        "outcomes": dict(Counter(row["outcomes"] or ())),
        "window": row["pagination"],
        "at": now_ms,
    }


def _transposed(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return the columns of rows of this width, also for no rows."""
    return list(map(list, zip(*rows, strict=True))) or [[] for _ in range(width)]
