"""Runs of the pipeline in PostgreSQL: captured, stored with their events, given back.

Law: a change of status and its event are one transaction (R1.15), and both happen only if the run still is as whoever stores it
took it (R1.6). What is asked of the language model in a stage is written down in the transaction that stores what it is made
from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import asyncpg
import orjson

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.models.call_rows import CallBegin, begin_calls
from highwater.connectors.postgres.pool import Connection, Row, reading, transaction
from highwater.connectors.queries.raw_logs import Answer, log_answers
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, RUN_FAILED, RunFailed
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.queries.memory import Summary
from highwater.streams.queries.runs import (
    RETURNS_MAX,
    UPDATE,
    Run,
    archived_event,
    captured,
    failed,
    failed_event,
    returned,
    stage_event,
    stage_events,
)
from highwater.streams.queries.states import ArchiveStatus, Move, Stage, Status, advance, waiting_status

_SOURCE = "/connectors/workers/queries"


class Asked(NamedTuple):
    """A run that is to be worked on, and the command that says so."""

    run_id: str
    stage: Stage
    command: Position


class Call(NamedTuple):
    """A call of the language model that is about to be made, with the prompts it is made with."""

    stage: Stage
    attempt: int
    model: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Moves of a run that are stored together: as it was taken, and each step it took since; the last is what is stored."""

    before: Run
    steps: tuple[Run, ...]
    now_ms: int
    call: Call | None = None
    memory: Summary | None = None
    failure: RunFailed | None = None
    archive_error: str | None = None

    @property
    def after(self) -> Run:
        """The run as it is stored."""
        return self.steps[-1]


def run_of(row: Row) -> Run:
    """The run in a row of `pipeline_runs`."""
    return Run(
        id=str(row["id"]),
        user_id=str(row["user_id"]),
        ordinal=row["ordinal"],
        query=row["user_query"],
        status=Status(row["status"]),
        archive_status=None if row["archive_status"] is None else ArchiveStatus(row["archive_status"]),
        released=row["released"],
        revision=row["revision"],
        epoch=row["epoch"],
        worker=row["worker"],
        attempt=row["attempt"],
        unusable=row["unusable"],
        returns=row["returns"],
        lease_until_ms=row["lease_until_ms"],
        due_ms=row["due_ms"],
        analysis=_json(row["analysis_result"]),
        draft=row["draft_context"],
        payload=row["final_context_payload"],
        answer=row["final_answer"],
        sources=_json(row["sources"]),
        error=row["error"],
        position=row["position"],
        caused_by=row["caused_by"],
        created_ms=to_ms(row["created_at"]),
        updated_ms=to_ms(row["updated_at"]),
        completed_ms=None if row["completed_at"] is None else to_ms(row["completed_at"]),
    )


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


class Runs:
    """The store of runs for those that work on them."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], codec: Codec) -> None:
        self._pool = pool
        self._codec = codec

    async def capture(self, asked: Sequence[Asked], *, worker: int, lease_ms: int, now_ms: int) -> list[Run]:
        """The runs that were waiting for their stage and are ours now (R1.6)."""
        once = {one.run_id: one for one in asked}.values()  # however often a run is asked for
        if not once:
            return []
        waits = [waiting_status(one.stage) for one in once]
        works = [advance(status, Move.CAPTURE) for status in waits]
        ids, commands = [one.run_id for one in once], [str(one.command) for one in once]
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(
                QUERIES["capture_runs"], ids, waits, works, worker, now_ms + lease_ms, to_datetime(now_ms), commands
            )
            runs = [run_of(row) for row in rows]
            await outbox.add(tx, [self._told(run, now_ms) for run in runs])
        return runs

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[Run]:
        """Runs whose next attempt is due, ours now."""
        async with reading(self._pool) as tx:
            rows = await tx.fetch(QUERIES["take_due_runs"], now_ms, worker, now_ms + lease_ms, most)
        return [run_of(row) for row in rows]

    async def take_forgotten(self, *, worker: int, lease_ms: int, now_ms: int, silent_ms: int, most: int) -> list[Run]:
        """Runs whose turn it is and that nobody asks for, ours now (R1.16)."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["forgotten_runs"], to_datetime(now_ms - silent_ms), most)
            found = [run_of(row) for row in rows]
            changes = [
                Change(run, (captured(run, worker=worker, lease_ms=lease_ms, now_ms=now_ms),), now_ms) for run in found
            ]
            await self._store(tx, changes)
        return [change.after for change in changes]

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[Run]:
        """Runs whose worker is gone or whose lease is over, back where they waited, or failed after so many times (R1.7)."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["lost_runs"], list(dead), now_ms, most)
            changes = [_given_back(run_of(row), now_ms) for row in rows]
            await self._store(tx, changes)
        return [change.after for change in changes]

    async def workers(self, tx: Connection) -> list[int]:
        """Who holds runs."""
        return [row["worker"] for row in await tx.fetch(QUERIES["workers_with_runs"])]

    async def hand_over(self, worker: int, *, now_ms: int) -> int:
        """Give back what a worker holds that ends in order; the number of runs."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["runs_of_worker"], worker)
            runs = [run_of(row) for row in rows]
            await self._store(tx, [Change(run, (returned(run, now_ms, is_counted=False),), now_ms) for run in runs])
        return len(runs)

    async def store(self, changes: Sequence[Change]) -> list[bool]:
        """Store changes in one transaction; False for one whose run was not as it was taken: nothing of it is stored."""
        async with transaction(self._pool) as tx:
            stored = await self._store(tx, changes)
        return [change.before.id in stored for change in changes]

    # -- in a transaction -----------------------------------------------------------------------------------------------

    async def _store(self, tx: Connection, changes: Sequence[Change]) -> set[str]:
        if not changes:
            return set()
        if len(changes) > 1:
            await tx.execute(QUERIES["hold_runs"], [change.before.id for change in changes])
        columns = map(list, zip(*map(_row, changes), strict=True))
        stored = {row["id"] for row in await tx.fetch(QUERIES["store_runs"], *columns)}
        kept = [change for change in changes if change.before.id in stored]
        await begin_calls(tx, _begins(kept))
        memories = await _store_memories(tx, kept)
        await outbox.add(tx, [row for change in kept for row in self._events(change, memories.get(change.before.id))])
        await log_answers(tx, _answers(kept))
        return stored

    def _told(self, run: Run, now_ms: int) -> OutboxRow:
        return self._event(PIPELINE_STAGE, stage_event(run, UPDATE, now_ms, waiting=False), run, now_ms)

    def _events(self, change: Change, memory_id: int | None) -> list[OutboxRow]:
        run, now_ms = change.after, change.now_ms
        rows = [
            self._event(PIPELINE_STAGE, event, run, now_ms)
            for event in stage_events(change.before, change.steps, now_ms)
        ]
        has_left = run.archive_status in (ArchiveStatus.STORED, ArchiveStatus.FAILED)
        if has_left and change.before.archive_status is not run.archive_status:
            event = archived_event(run, now_ms, memory_id=memory_id, error=change.archive_error)
            rows.append(self._event(RUN_ARCHIVED, event, run, now_ms))
        if change.failure is not None:
            rows.append(self._event(RUN_FAILED, change.failure, run, now_ms))
        return rows

    def _event(self, topic: TopicName[EventT], event: EventT, run: Run, now_ms: int) -> OutboxRow:
        return outbox.event_row(self._codec, topic, event, source=_SOURCE, now_ms=now_ms, caused_by=_cause(run))


def _cause(run: Run) -> Position | None:
    return parse_position(run.caused_by) if run.caused_by else None


def _given_back(run: Run, now_ms: int) -> Change:
    """Back in the waiting status of its stage, or failed when that was so often enough."""
    if run.returns < RETURNS_MAX:
        return Change(run, (returned(run, now_ms, is_counted=True),), now_ms)
    error = f"its worker ended or went silent {run.returns + 1} times"
    told = failed_event(run, run.stage, "lost", error, "", now_ms, is_alert=True)
    return Change(run, (failed(run, error, now_ms),), now_ms, failure=told, archive_error=error)


def _row(change: Change) -> tuple[Any, ...]:
    """In the order of `store_runs`."""
    before, run = change.before, change.after
    return (
        run.id,
        before.status,
        before.archive_status,
        before.epoch,
        run.status,
        run.archive_status,
        run.released,
        run.revision,
        run.epoch,
        run.worker,
        run.attempt,
        run.unusable,
        run.returns,
        run.lease_until_ms,
        run.due_ms,
        run.error,
        to_datetime(run.updated_ms),
        None if run.completed_ms is None else to_datetime(run.completed_ms),
        None if run.analysis is before.analysis else orjson.dumps(run.analysis).decode(),
        None if run.draft is before.draft else run.draft,
        None if run.payload is before.payload else run.payload,
        None if run.answer is before.answer else run.answer,
        None if run.sources is before.sources else orjson.dumps(run.sources).decode(),
    )


def _begins(changes: Sequence[Change]) -> list[CallBegin]:
    return [
        CallBegin(
            change.after.id,
            change.call.stage,
            change.call.attempt,
            change.after.user_id,
            change.call.model,
            change.call.prompt_ids,
            change.now_ms,
        )
        for change in changes
        if change.call is not None
    ]


def _answers(changes: Sequence[Change]) -> list[Answer]:
    """Those of runs that are completed by a change."""
    return [
        Answer(step.user_id, step.answer or "", step.id, step.ordinal, to_datetime(change.now_ms))
        for change in changes
        for step in change.steps[:1]
        if step.status is Status.COMPLETED and change.before.status is not Status.COMPLETED
    ]


async def _store_memories(tx: Connection, changes: Sequence[Change]) -> dict[str, int]:
    """The ids of the memories stored, by run."""
    rows = [
        (
            change.after.user_id,
            to_datetime(change.now_ms).date(),
            orjson.dumps(change.memory.tags).decode(),
            change.memory.text,
            change.after.id,
            change.after.ordinal,
            to_datetime(change.now_ms),
        )
        for change in changes
        if change.memory is not None
    ]
    if not rows:
        return {}
    stored = await tx.fetch(QUERIES["store_memories"], *map(list, zip(*rows, strict=True)))
    return {row["pipeline_run_id"]: row["id"] for row in stored}
