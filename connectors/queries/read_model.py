"""The API's reads of the query pipeline from PostgreSQL: values, never rows, and every time in milliseconds.

Invariant: one function is one statement, so its result is one snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg
import orjson

from highwater.connectors.postgres.pool import Row, fetched
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.checks import is_uuid
from highwater.streams.clock import to_datetime, to_ms, to_ms_or_none
from highwater.streams.queries.restarts import StageCost
from highwater.streams.queries.users import user_key

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# Above every place in an order: the start of a list that begins with the newest.
PLACE_MAX = 2**62
_ARCHIVING_ENDED = ("STORED", "FAILED")


@dataclass(frozen=True, slots=True)
class Run:
    """The state of a run. `sources` is JSON as it is stored and served; `organization_id` None: the operator pays."""

    request_id: str
    user_id: str
    organization_id: str | None
    query: str
    status: str
    archive_status: str | None
    version: int
    answer: str | None
    sources: str | None
    error: str | None
    position: str
    caused_by: str
    has_analysis: bool
    has_context: bool


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run with its events and its calls, in the form of JSON; `ended_ms` also for a failed one."""

    request_id: str
    user_id: str
    query: str
    status: str
    archive_status: str | None
    error: str | None
    sources: str | None
    position: str
    caused_by: str
    restarted_from: str | None
    created_ms: int
    ended_ms: int | None
    version: int
    events: tuple[Mapping[str, Any], ...]
    calls: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed, was not cancelled and was not restarted, and its results so far."""

    request_id: str
    user_id: str
    organization_id: str | None
    query: str
    error: str
    has_analysis: bool
    has_context: bool
    failed_ms: int


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the list of a user's runs; `ordinal` is its place in the user's order."""

    request_id: str
    ordinal: int
    query: str
    status: str
    archive_status: str | None
    error: str | None
    restarted_from: str | None
    position: str
    created_ms: int
    completed_ms: int | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a role."""

    prompt_id: int
    role: str
    template: str
    is_active: bool
    position: str
    changed_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a completed run."""

    user_id: str
    text: str


async def run(pool: Pool, request_id: str) -> Run | None:
    """Return a run; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["run_read"], request_id)
    if not rows:
        return None
    row = rows[0]
    archive_status = served_archive_status(row["archive_status"])
    return Run(
        request_id=row["request_id"],
        user_id=row["user_id"],
        organization_id=row["organization_id"],
        query=row["user_query"],
        status=row["status"],
        archive_status=archive_status,
        version=_version(row["revision"], archive_status) + row["redactions"],
        answer=row["final_answer"],
        sources=row["sources"],
        error=row["error"],
        position=row["position"],
        caused_by=row["caused_by"],
        has_analysis=row["has_analysis"],
        has_context=row["has_context"],
    )


async def run_history(pool: Pool, request_id: str) -> RunHistory | None:
    """Return a run with its whole history; None if the id is unknown.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["run_timeline_read"], request_id)
    if not rows:
        return None
    row = rows[0]
    events = _ordered_events(orjson.loads(row["events"] or b"[]"))
    calls = sorted(orjson.loads(row["calls"] or b"[]"), key=lambda call: (call["started_ms"], call["attempt"]))
    archive_status = served_archive_status(row["archive_status"])
    ended_at = row["completed_at"] or (row["updated_at"] if row["status"] == "FAILED" else None)
    # Each of these only grows, and every change of the document makes one of them grow.
    version = _version(row["revision"], archive_status) + row["redactions"] + len(events) + (row["sources"] is not None)
    version += sum(call["sends"] + 1 + (call["outcome"] is not None) for call in calls)
    return RunHistory(
        request_id=row["request_id"],
        user_id=row["user_id"],
        query=row["user_query"],
        status=row["status"],
        archive_status=archive_status,
        error=row["error"],
        sources=row["sources"],
        position=row["position"],
        caused_by=row["caused_by"],
        restarted_from=row["restarted_from"],
        created_ms=to_ms(row["created_at"]),
        ended_ms=to_ms_or_none(ended_at),
        version=version,
        events=tuple(events),
        calls=tuple(calls),
    )


async def runs_of_user(pool: Pool, user_id: str, before: int, limit: int) -> list[RunLine]:
    """Return runs of a user, the newest first, from the one before a place on.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return [
        RunLine(
            request_id=row["request_id"],
            ordinal=row["ordinal"],
            query=row["user_query"],
            status=row["status"],
            archive_status=served_archive_status(row["archive_status"]),
            error=row["error"],
            restarted_from=row["restarted_from"],
            position=row["position"],
            created_ms=to_ms(row["created_at"]),
            completed_ms=to_ms_or_none(row["completed_at"]),
        )
        for row in await fetched(pool, QUERIES["runs_of_user_read"], user_key(user_id), before, limit)
    ]


async def failed_runs(
    pool: Pool,
    organization_id: str | None,
    user_id: str | None,
    span_ms: tuple[int, int],
    limit: int,
    *,
    request_ids: Collection[str] | None = None,
) -> list[FailedRun]:
    """Return failed runs, the last to fail first; of one organization and one user, or of all; `span_ms`: from and
    before these times.

    Of `request_ids` alone where they are given; a malformed id names no run.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    begin, end = map(to_datetime, span_ms)
    only = None if request_ids is None else [name for name in request_ids if is_uuid(name)]
    key = None if user_id is None else user_key(user_id)
    rows = await fetched(pool, QUERIES["failed_runs_read"], organization_id, key, begin, end, limit, only)
    return [
        FailedRun(
            request_id=row["request_id"],
            user_id=row["user_id"],
            organization_id=row["organization_id"],
            query=row["user_query"],
            error=row["error"] or "",
            has_analysis=row["has_analysis"],
            has_context=row["has_context"],
            failed_ms=to_ms(row["failed_at"]),
        )
        for row in rows
    ]


async def stage_costs(pool: Pool, since_ms: int) -> dict[str, StageCost]:
    """Return the average cost of answered calls by stage of queries since a time.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["stage_costs_read"], to_datetime(since_ms))
    return {row["stage"]: StageCost(row["tokens"], row["cost_usd"]) for row in rows}


async def answers(pool: Pool, request_ids: Sequence[str]) -> dict[str, Answer]:
    """Return the answers of those runs that exist and are completed, by run.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["run_answers_read"], list(request_ids))
    return {row["request_id"]: Answer(row["user_id"], row["final_answer"] or "") for row in rows}


async def prompts(pool: Pool) -> list[Prompt]:
    """Return the active prompts, one for each role that has one.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return [_prompt(row) for row in await fetched(pool, QUERIES["prompts_read"])]


async def prompt_history(pool: Pool, role: str, before: int, limit: int) -> list[Prompt]:
    """Return current and former prompts of a role, the newest first, from the one before an id on.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    return [_prompt(row) for row in await fetched(pool, QUERIES["prompt_history_read"], role, before, limit)]


def served_archive_status(archive_status: str | None) -> str | None:
    """Return the archive status as it is served: a memory in progress still waits.

    A worker that ends releases it, so the two statuses would alternate, and a version can only grow.
    """
    return "WAITING" if archive_status not in (None, *_ARCHIVING_ENDED) else archive_status


def _version(revision: int, archive_status: str | None) -> int:
    """Return the version. The status has a revision of its own; the end of archiving, which happens once, is added to it."""
    return 2 * revision + (archive_status in _ARCHIVING_ENDED)


def _ordered_events(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return events in their order. The relay may have published one twice: the earlier position counts."""
    first: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for event in sorted(events, key=lambda event: (event["revision"] is None, event["revision"], *_place(event))):
        first.setdefault((event["operation"] if event["revision"] is None else "", event["revision"]), event)
    return list(first.values())


def _place(event: Mapping[str, Any]) -> tuple[str, int, int]:
    topic, partition, offset = event["position"].split("/")
    return topic, int(partition), int(offset)


def _prompt(row: Row) -> Prompt:
    return Prompt(
        row["id"], row["role_name"], row["prompt_template"], row["is_active"], row["position"], to_ms(row["changed_at"])
    )
