"""What the API reads about chunks from PostgreSQL, except for the search: namespaces, ingests, lifecycles.

Invariant: each function returns one snapshot. It returns values, not rows, except for a namespace's row, which the
search uses unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.pool import one_row, reading, snapshot
from highwater.streams.chunks.completion import Counted, reason_of
from highwater.streams.chunks.states import Outcome
from highwater.streams.clock import to_datetime, to_ms, to_ms_or_none

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# Refused chunks that an answer lists; all of them are in the dead-letter topic.
FAILURES_TOLD = 100
# The place before every source: no part of a key is empty.
FIRST_PLACE = ("", "", "")
# The status of an ingest whose sources ended differently: the worst one.
WORST_FIRST = (
    *(Outcome.FAILED, Outcome.ABANDONED, Outcome.PARTIAL, Outcome.TRUNCATED, Outcome.SUPERSEDED, Outcome.EMPTY),
    Outcome.COMPLETE,
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace; `row` is that of `chunk_namespaces`, None if it never had a chunk.

    `version` and `etag` are those of its contents.
    """

    ns: str
    row: Any
    version: int
    etag: str
    caused_by: str


@dataclass(frozen=True, slots=True)
class SourceIngest:
    """The ingest of a source; `window` is JSON as stored."""

    ns: str
    slot: str
    source_id: str
    status: str
    is_full: bool
    is_forced: bool
    is_truncated: bool
    window: str | None
    expected: int | None
    inserted: int
    updated: int
    unchanged: int
    failures: int
    orphaned: int
    position: str
    created_ms: int
    updated_ms: int
    decided_ms: int | None

    @property
    def reason(self) -> str | None:
        """Return why it is not complete; None while it runs and when it is complete."""
        seen = self.inserted + self.updated + self.unchanged
        return reason_of(self.status, Counted(seen, self.failures, self.expected))


@dataclass(frozen=True, slots=True)
class Failure:
    """A chunk that was refused."""

    ns: str
    slot: str
    source_id: str
    chunk_no: int
    reason: str
    detail: str
    position: str
    failed_ms: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """An ingest over its sources, with a page of them. `statuses`: number of sources by status; `window` is JSON as
    stored.

    `worst` is the first source with the worst status; None if none has ended.
    """

    ingest_id: str
    version: int
    caused_by: str
    sources_total: int
    sources_done: int
    inserted: int
    updated: int
    unchanged: int
    failures: int
    orphaned: int
    window: str | None
    created_ms: int
    updated_ms: int
    decided_ms: int | None
    statuses: Mapping[str, int]
    sources: Sequence[SourceIngest]
    worst: SourceIngest | None
    failed: Sequence[Failure]


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The contents of a namespace at a time; `row` is that of `chunk_namespaces`. Only `to_delete` counts marked
    chunks.

    `next_made`: vectors of the model that it switches to.
    """

    row: Any
    chunks: int
    hot: int
    cold: int
    without_embedding: int
    stale_embedding: int
    to_delete: int
    sources: int
    archived: int
    next_made: int

    @property
    def warm(self) -> int:
        """Return the number of chunks that are neither hot nor cold."""
        return self.chunks - self.hot - self.cold


async def namespace(pool: Pool, ns: str) -> Namespace:
    """Return a namespace and the version of its contents.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        row = await one_row(connection, QUERIES["chunk_namespace_read"], ns)
    version = row["floor"] if row["version"] is None else row["version"]
    return Namespace(ns, None if row["ns"] is None else row, version, row["etag"] or "", row["position"] or "")


async def ingest(pool: Pool, ingest_id: str, after: tuple[str, str, str], limit: int) -> Ingest | None:
    """Return an ingest with up to `limit` of its sources after a place; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with snapshot(pool) as connection:
        row = await one_row(connection, QUERIES["chunk_ingest_read"], ingest_id)
        if not row["sources"]:
            return None
        statuses = await connection.fetch(QUERIES["chunk_ingest_statuses_read"], ingest_id)
        sources = await connection.fetch(QUERIES["chunk_ingest_sources_read"], ingest_id, *after, limit)
        worst = await connection.fetchrow(QUERIES["chunk_ingest_worst_read"], ingest_id, list(WORST_FIRST))
        failed = await connection.fetch(QUERIES["chunk_ingest_failures_read"], ingest_id, FAILURES_TOLD)
    return Ingest(
        ingest_id=ingest_id,
        caused_by=row["position"],
        sources_total=row["sources"],
        window=row["pagination"],
        **{name: row[name] for name in ("version", "sources_done", *_COUNTERS)},
        **_times(row),
        statuses={one["status"]: one["sources"] for one in statuses},
        sources=[_source(one) for one in sources],
        worst=None if worst is None else _source(worst),
        failed=[_failure(one) for one in failed],
    )


async def accepted(_pool: Pool, event: Event[Any]) -> Ingest:
    """Return an ingest that was accepted and of which nothing is stored yet; its first event created it."""
    record = event.record
    return Ingest(
        ingest_id=event.value["ingest_id"],
        version=0,
        caused_by=str(record.position),
        sources_total=0,
        sources_done=0,
        **dict.fromkeys(_COUNTERS, 0),
        window=None,
        created_ms=record.arrived_ms,
        updated_ms=record.arrived_ms,
        decided_ms=None,
        statuses={},
        sources=(),
        worst=None,
        failed=(),
    )


async def ingest_namespaces(pool: Pool, ingest_id: str) -> list[str]:
    """Return the namespaces of an ingest's sources; none if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        return [row["ns"] for row in await connection.fetch(QUERIES["chunk_ingest_namespaces_read"], ingest_id)]


_COUNTERS = ("inserted", "updated", "unchanged", "failures", "orphaned")
_OF_SOURCE = ("ns", "slot", "source_id", "status", "is_full", "is_forced", "is_truncated", "expected", "position")
_OF_FAILURE = ("ns", "slot", "source_id", "chunk_no", "reason", "detail", "position")
_OF_LIFECYCLE = (
    "chunks",
    "hot",
    "cold",
    "without_embedding",
    "stale_embedding",
    "to_delete",
    "sources",
    "archived",
    "next_made",
)


def _times(row: Any) -> dict[str, Any]:
    return {
        "created_ms": to_ms(row["created_at"]),
        "updated_ms": to_ms(row["updated_at"]),
        "decided_ms": to_ms_or_none(row["decided_at"]),
    }


def _source(row: Any) -> SourceIngest:
    named = {name: row[name] for name in (*_OF_SOURCE, *_COUNTERS)}
    return SourceIngest(**named, window=row["pagination"], **_times(row))


def _failure(row: Any) -> Failure:
    return Failure(**{name: row[name] for name in _OF_FAILURE}, failed_ms=to_ms(row["failed_at"]))


async def lifecycles(pool: Pool, ns: str | None, now_ms: int) -> list[Lifecycle]:
    """Return the contents of one or every namespace at a time; a namespace that never had a chunk is left out.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["chunk_lifecycle_read"], ns, to_datetime(now_ms))
    return [Lifecycle(row, **{name: row[name] for name in _OF_LIFECYCLE}) for row in rows]
