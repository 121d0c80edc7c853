"""The API's reads of jobs and presentations from PostgreSQL: values, never rows, and every time in milliseconds.

Invariant: one function is one statement, so its result is one snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.pool import Row, fetched
from highwater.schemas.jobs import JobSubmitted
from highwater.streams.checks import is_uuid
from highwater.streams.clock import to_datetime, to_ms, to_ms_or_none
from highwater.streams.jobs.states import ENDED, JobStatus

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# The start of a list that begins with the newest: above every time of a datetime and every id.
PLACE_MAX = (253_402_300_799_999, "ffffffff-ffff-ffff-ffff-ffffffffffff")


@dataclass(frozen=True, slots=True)
class JobRead:
    """The state of a job. `args` and `result` are JSON as stored; `seq` is the last published progress, `updated_ms`
    its time.

    `approval_until_ms`: the deadline for the approval of its outline; `outline`, JSON, is read only with a single job.
    """

    job_id: str
    kind: str
    organization_id: str
    user_id: str
    args: str
    status: str
    seq: int
    version: int
    progress_pct: int
    steps_done: int
    steps_total: int
    result: str | None
    tokens: int
    cost_usd: Decimal
    cost_cents: int | None
    error: str | None
    position: str
    caused_by: str
    expires_ms: int | None
    created_ms: int
    updated_ms: int
    completed_ms: int | None
    approval_until_ms: int | None = None
    outline: str | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether the job has ended."""
        return JobStatus(self.status) in ENDED

    @property
    def waits_for_approval(self) -> bool:
        """Return whether its outline can be approved."""
        return self.status == JobStatus.RUNNING and self.approval_until_ms is not None


@dataclass(frozen=True, slots=True)
class Presentation:
    """A deck; `slides` is JSON as stored, `view_count` the stored part of its views."""

    presentation_id: str
    organization_id: str
    user_id: str
    title: str
    slides: str
    position: str
    created_ms: int
    view_count: int


async def jobs(pool: Pool, job_ids: Sequence[str]) -> dict[str, JobRead]:
    """Return those of these jobs that exist, by id.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return {row["job_id"]: _job(row) for row in await fetched(pool, QUERIES["jobs_read"], list(job_ids))}


async def accepted(_pool: Pool, event: Event[JobSubmitted]) -> JobRead:
    """Return a job that was accepted and is not stored yet."""
    record, submitted = event
    at = str(record.position)
    return JobRead(
        job_id=submitted["job_id"],
        kind=submitted["kind"],
        organization_id=submitted["organization_id"],
        user_id=submitted["user_id"],
        args=submitted["args"],
        seq=0,
        version=0,
        progress_pct=0,
        steps_done=0,
        steps_total=0,
        result=None,
        tokens=0,
        cost_cents=None,
        error=None,
        completed_ms=None,
        status=JobStatus.PENDING,
        cost_usd=Decimal(0),
        position=at,
        caused_by=at,
        expires_ms=submitted["expires_at"],
        created_ms=record.arrived_ms,
        updated_ms=record.arrived_ms,
    )


class JobFilter(NamedTuple):
    """Which jobs are listed; None: of all users, in every status, of every kind."""

    user_id: str | None = None
    status: str | None = None
    kind: str | None = None


async def jobs_of_organization(
    pool: Pool, organization_id: str, before: tuple[int, str], job_filter: JobFilter, limit: int
) -> list[JobRead]:
    """Return jobs of an organization, the newest first, from the one before a place (time, id) on.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    at_ms, job_id = before
    rows = await fetched(
        pool, QUERIES["jobs_of_organization_read"], organization_id, to_datetime(at_ms), job_id, *job_filter, limit
    )
    return [_job(row) for row in rows]


async def failed_jobs(
    pool: Pool,
    organization_id: str,
    user_id: str | None,
    kind: str | None,
    span_ms: tuple[int, int],
    limit: int,
    *,
    job_ids: Collection[str] | None = None,
) -> list[JobRead]:
    """Return failed jobs of an organization, the last to fail first; `span_ms`: failed from and before these times.

    Of `job_ids` alone where they are given; a malformed id names no job.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    begin, end = map(to_datetime, span_ms)
    only = None if job_ids is None else [name for name in job_ids if is_uuid(name)]
    rows = await fetched(pool, QUERIES["failed_jobs_read"], organization_id, user_id, kind, begin, end, limit, only)
    return [_job(row) for row in rows]


async def calls(pool: Pool, job_id: str) -> list[Mapping[str, Any]]:
    """Return a job's calls of the language model, in order; times in ms since 1970.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return [dict(row) for row in await fetched(pool, QUERIES["job_calls_read"], job_id)]


async def presentation(pool: Pool, presentation_id: str) -> Presentation | None:
    """Return a deck; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["presentation_read"], presentation_id)
    if not rows:
        return None
    row = rows[0]
    return Presentation(
        presentation_id=row["presentation_id"],
        organization_id=row["organization_id"],
        user_id=row["user_id"],
        title=row["title"],
        slides=row["slides"],
        position=row["position"],
        created_ms=to_ms(row["created_at"]),
        view_count=row["view_count"],
    )


_AS_THEY_ARE = (
    *("job_id", "kind", "organization_id", "user_id", "args", "status", "seq", "version", "progress_pct", "steps_done"),
    *("steps_total", "result", "tokens", "cost_usd", "cost_cents", "error", "position", "caused_by", "expires_ms"),
    *("approval_until_ms", "outline"),
)


def _job(row: Row) -> JobRead:
    return JobRead(
        **{name: row[name] for name in _AS_THEY_ARE},
        created_ms=to_ms(row["created_at"]),
        updated_ms=to_ms(row["updated_at"]),
        completed_ms=to_ms_or_none(row["completed_at"]),
    )
