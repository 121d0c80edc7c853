"""What an erasure of users removes from queries: their runs, their logged messages and memories, and their calls.

Invariant: it erases alone (`connectors/identity/erasures.py`), while writers of queries wait. Every run that blocked
its user's next one is reported as ended, so that the queue does not wait for it; a worker that still holds it finds it
gone and stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxFactory, OutboxRow
from highwater.connectors.models.call_rows import erase_calls
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries import counting
from highwater.connectors.queries.rows import run_of
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.codec import Codec
from highwater.schemas.jobs import USAGE_RECORDED
from highwater.schemas.positions import Cause, parse_position
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED
from highwater.streams.queries.runs import UPDATE, Run, archived_event, failed, stage_event
from highwater.streams.queries.states import TERMINAL, ArchiveStatus, Status
from highwater.streams.queries.users import user_key

_SOURCE, ERASED = "/connectors/sinks/users", "the user was erased"
_BEFORE_CALLS = (QUERIES["erase_raw_logs"], QUERIES["erase_memories"])
_AFTER_CALLS = (QUERIES["erase_run_events"], QUERIES["erase_runs"])


async def erase_queries(tx: Connection, codec: Codec, erased: Mapping[str, Cause], now_ms: int) -> None:
    """Erase users in the transaction of their erasures (`erased`: user to event), under its locks, and publish it."""
    if not erased:
        return
    keys = [user_key(user_id) for user_id in erased]
    rows = await tx.fetch(QUERIES["runs_to_erase"], keys, [cause.arrived_ms for cause in erased.values()])
    runs = sorted(map(run_of, rows), key=lambda run: (run.user_id, run.ordinal))
    held = [run for run in runs if not run.released]
    usages = await counting.count(tx, held, now_ms)
    if runs:
        await _erase_runs(tx, [run.id for run in runs])
    await tx.execute(QUERIES["erase_query_users"], keys, list(erased))
    await outbox.add(tx, [_ended(codec, run, erased[run.user_id], now_ms) for run in held])
    used = [(usages[run.id], parse_position(erased[run.user_id].position)) for run in held if run.id in usages]
    await outbox.add(tx, [OutboxFactory(codec, _SOURCE).row(USAGE_RECORDED, usage, now_ms, at) for usage, at in used])


async def _erase_runs(tx: Connection, run_ids: Sequence[str]) -> None:
    for statement in _BEFORE_CALLS:
        await tx.execute(statement, run_ids)
    await erase_calls(tx, run_ids)
    await surrogate_keys.untag(tx, [f"run:{run_id}" for run_id in run_ids])
    for statement in _AFTER_CALLS:
        await tx.execute(statement, run_ids)


def _ended(codec: Codec, run: Run, cause: Cause, now_ms: int) -> OutboxRow:
    """Return the event that a run ended by the erasure; for a completed one, that its memory will not be stored."""
    tell = OutboxFactory(codec, _SOURCE)
    caused_by = parse_position(cause.position)
    if run.status is Status.COMPLETED:
        gone = replace(run, archive_status=ArchiveStatus.FAILED)
        event = archived_event(gone, now_ms, memory_id=None, error=ERASED)
        return tell.row(RUN_ARCHIVED, event, now_ms, caused_by)
    ended = run if run.status in TERMINAL else failed(run, ERASED, now_ms)
    return tell.row(PIPELINE_STAGE, stage_event(ended, UPDATE, now_ms, waiting=False), now_ms, caused_by)


ERASURE = ErasureStep(erase_queries)
