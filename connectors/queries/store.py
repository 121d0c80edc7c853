"""Runs of the pipeline in PostgreSQL: requested, claimed, stored with their events, released.

Invariant: a change of status and its event are one transaction (R1.15), and are stored only if the run is unchanged
since the caller claimed it (R1.6). A call of the language model is stored in the transaction that stores its input, and
its answer at the latest in the one that stores the consequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
import orjson

from highwater.connectors.engines.changes import call_begins
from highwater.connectors.engines.sharing import Share
from highwater.connectors.engines.store import RequestedWork, Statements, WorkStore, cause_of
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.models.call_rows import begin_calls, end_calls
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, Row, transaction
from highwater.connectors.queries import counting, redactions
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.raw_logs import Answer, log_answers
from highwater.connectors.queries.rows import whole_run_of as run_of
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.codec import Codec
from highwater.schemas.jobs import USAGE_RECORDED
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, RUN_FAILED
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import to_datetime
from highwater.streams.engines.work import RETURNS_MAX, resumed
from highwater.streams.queries.runs import (
    Run,
    archived_event,
    captured,
    failed,
    failed_event,
    returned,
    stage_events,
)
from highwater.streams.queries.states import ArchiveStatus, Stage, Status, waiting_status
from highwater.streams.queries.users import user_key

# Notified by a transaction that has stored a run to be claimed: the watches of all processes check at once.
CHANNEL = "highwater_queries"
_SOURCE = "/connectors/workers/queries"
STATEMENTS = Statements(
    has_waiting=QUERIES["has_waiting_runs"],
    waiting=QUERIES["waiting_runs"],
    in_progress=QUERIES["runs_in_progress"],
    wanted=QUERIES["wanted_runs"],
    ask_for_forgotten=QUERIES["ask_for_forgotten_runs"],
    lost=QUERIES["lost_runs"],
    of_worker=QUERIES["runs_of_worker"],
    workers=QUERIES["workers_with_runs"],
    has_unended=QUERIES["has_unended_runs"],
)
# The organization of runs without one, when slots are shared.
_OPERATOR = ""


class Runs(WorkStore[Run, Change]):
    """The store of runs for their workers."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], codec: Codec, *, begun_max: int) -> None:
        """`begun_max`: the maximum of runs of one organization in progress, in all processes; the operator's own are exempt."""
        super().__init__(pool, STATEMENTS, (LockClass.QUERY_SLOTS, 0), Share(begun_max, uncapped=(_OPERATOR,)))
        self._codec = codec

    async def ask(self, tx: Connection, requests: Sequence[RequestedWork]) -> None:
        """Let runs wait for a slot; those that do not wait for that stage, or whose turn it is not, are left alone (R1.6)."""
        once = {one.work_id: one for one in requests}.values()  # however often a run is requested
        waits = [waiting_status(Stage(one.stage)) for one in once]
        ids, commands = [one.work_id for one in once], [str(one.command) for one in once]
        await tx.execute(QUERIES["ask_for_runs"], ids, waits, commands)

    async def count_late(self, work_id: str, now_ms: int) -> None:
        """Count the usage of a call of an ended run that was answered after its end; nothing if the run continues elsewhere."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["hold_run"], work_id)
            await self._count(tx, [run for run in map(run_of, rows) if run.released], now_ms)

    # -- the parts for runs
    # -----------------------------------------------------------------------------------------------

    def _taken(self, row: Row, worker: int, lease_ms: int, now_ms: int) -> Change:
        return _taken(row, worker, lease_ms, now_ms)

    def _work_of(self, row: Row) -> Run:
        return run_of(row)

    def _given_back(self, work: Run, now_ms: int, *, is_cause: bool = True) -> Change:
        return _given_back(work, now_ms)

    def _handed_over(self, work: Run, now_ms: int) -> Change:
        return Change(work, (returned(work, now_ms, is_counted=False),), now_ms)

    async def _stored(self, tx: Connection, changes: Sequence[Change]) -> Mapping[str, Run]:
        if not changes:
            return {}
        changes = await redactions.without_withdrawn(tx, changes)
        if len(changes) > 1 or changes[0].end is not None:  # all writers of both lock runs before their calls
            await tx.execute(QUERIES["hold_runs"], [change.before.id for change in changes])
        changes = await _following(tx, changes)
        if not changes:
            return {}
        columns = map(list, zip(*map(_row, changes), strict=True))
        stored = {row["id"] for row in await tx.fetch(QUERIES["store_runs"], *columns)}
        kept = [change for change in changes if change.before.id in stored]
        await redactions.tag_sources(tx, kept)
        await begin_calls(tx, call_begins(kept))
        memories = await _store_memories(tx, kept)
        await outbox.add(tx, [row for change in kept for row in self._events(change, memories.get(change.before.id))])
        ended = [change for change in kept if change.after.released and not change.before.released]
        if ended:
            await self._count(tx, [change.after for change in ended], ended[0].now_ms)
        await log_answers(tx, _answers(kept))
        return {change.before.id: change.after for change in kept}

    async def _count(self, tx: Connection, ended: Sequence[Run], now_ms: int) -> None:
        usages = await counting.count(tx, ended, now_ms)
        runs = [run for run in ended if run.id in usages]
        await outbox.add(tx, [self._event(USAGE_RECORDED, usages[run.id], run, now_ms) for run in runs])

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
        return outbox.event_row(self._codec, topic, event, source=_SOURCE, now_ms=now_ms, caused_by=cause_of(run))


async def _following(tx: Connection, changes: Sequence[Change]) -> Sequence[Change]:
    """Store the ends of calls; return the changes except for those that follow from a call that had another answer before."""
    ending = [change for change in changes if change.end is not None]
    stored = await end_calls(tx, [change.end for change in ending if change.end is not None])
    void = {change.before.id for change, is_stored in zip(ending, stored, strict=True) if not is_stored}
    return [change for change in changes if change.before.id not in void]


def _taken(row: Row, worker: int, lease_ms: int, now_ms: int) -> Change:
    """Return the run claimed by the command that requested it, or continued where it was postponed."""
    run, command = run_of(row), row["command"]
    if run.due_ms is not None:
        return Change(run, (resumed(run, worker=worker, lease_ms=lease_ms, now_ms=now_ms),), now_ms)
    after = captured(run, worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command)
    return Change(run, (after,), now_ms, command=command)


def _given_back(run: Run, now_ms: int) -> Change:
    """Return the run in the waiting status of its stage, or failed if that has happened too often."""
    if run.returns < RETURNS_MAX:
        return Change(run, (returned(run, now_ms, is_counted=True),), now_ms)
    error = f"its worker ended or went silent {run.returns + 1} times"
    told = failed_event(run, run.stage, "lost", error, "", now_ms, is_alert=True)
    return Change(run, (failed(run, error, now_ms),), now_ms, failure=told, archive_error=error)


def _row(change: Change) -> tuple[Any, ...]:
    """Return a row in the order of `store_runs`."""
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
        change.command,
        run.ordinal,
    )


def _answers(changes: Sequence[Change]) -> list[Answer]:
    """Return the answers of runs that a change completes."""
    return [
        Answer(user_key(step.user_id), step.answer or "", step.id, step.ordinal, to_datetime(change.now_ms))
        for change in changes
        for step in change.steps[:1]
        if step.status is Status.COMPLETED and change.before.status is not Status.COMPLETED
    ]


async def _store_memories(tx: Connection, changes: Sequence[Change]) -> dict[str, int]:
    """Store memories and return their ids, by run."""
    rows = [
        (
            user_key(change.after.user_id),
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
