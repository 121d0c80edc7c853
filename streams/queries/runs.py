"""A run of the pipeline and its moves, as values: this decides what a worker stores.

The fields that a run shares with a job, and the moves that are the same for both, are in `streams/engines/work.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from highwater.schemas.queries import PipelineStage, RunArchived, RunFailed
from highwater.streams.engines.work import Work, claimed_by, released_work, unclaimed
from highwater.streams.queries.states import (
    ArchiveStatus,
    Move,
    Stage,
    Status,
    advance,
    advance_archive,
    stage_at,
)

INSERT, UPDATE = "INSERT", "UPDATE"


@dataclass(frozen=True, slots=True)
class Run(Work):
    """A row of `pipeline_runs`. `organization_id` pays for it; None: the operator."""

    id: str
    user_id: str
    ordinal: int
    query: str
    status: Status
    organization_id: str | None = None
    archive_status: ArchiveStatus | None = None
    released: bool = False
    revision: int = 1
    analysis: Mapping[str, Any] | None = None
    draft: str | None = None
    payload: str | None = None
    answer: str | None = None
    sources: Sequence[Mapping[str, Any]] | None = None

    @property
    def stage(self) -> Stage | None:
        """Return the stage it waits for or is in; None if it has ended."""
        return stage_at(self.status, self.archive_status)


def captured(run: Run, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> Run:
    """Return the run claimed by a worker, from the waiting status of its stage; `command` requested it, if known."""
    return claimed_by(
        _moved(run, Move.CAPTURE, now_ms), worker=worker, lease_ms=lease_ms, now_ms=now_ms, command=command
    )


def finished(run: Run, now_ms: int, **given: Any) -> Run:
    """Return the run with the results of its stage (`given`: fields of the run), waiting for the next stage."""
    after = _moved(replace(run, **given), Move.FINISH, now_ms)
    return replace(after, worker=None, lease_until_ms=None, attempt=0, unusable=0, returns=0)


def returned(run: Run, now_ms: int, *, is_counted: bool) -> Run:
    """Return the run released to the waiting status of its stage. Not counted if its worker releases it in order."""
    return released_work(_moved(run, Move.RETURN, now_ms), is_counted=is_counted)


def failed(run: Run, error: str, now_ms: int) -> Run:
    """Return the failed run. A completed run stays completed; only its memory failed (R1.28)."""
    told = run.error if run.status is Status.COMPLETED else error
    return replace(unclaimed(_moved(run, Move.FAIL, now_ms)), released=True, error=told)


def _moved(run: Run, move: Move, now_ms: int) -> Run:
    if run.status is Status.COMPLETED and run.archive_status is not None:
        after = advance_archive(run.archive_status, move)
        return replace(run, archive_status=after, released=run.released or after is ArchiveStatus.STORED)
    status = advance(run.status, move)
    is_completed = status is Status.COMPLETED
    return replace(
        run,
        status=status,
        archive_status=ArchiveStatus.WAITING if is_completed else None,
        completed_ms=now_ms if is_completed else run.completed_ms,
        revision=run.revision + 1,
        updated_ms=now_ms,
    )


def stage_events(before: Run, steps: Sequence[Run], now_ms: int) -> list[PipelineStage]:
    """Return the events of moves that are stored together (R1.15): one per change of status, and none for anything else."""
    events = []
    for place, run in enumerate(steps):
        if run.status is not before.status:
            is_last = place == len(steps) - 1
            # The event of an ended stage has the number of its attempts; the run already counts those of the next one.
            told = replace(run, attempt=max(before.attempt, run.attempt))
            events.append(stage_event(told, UPDATE, now_ms, waiting=is_last and is_waiting(run)))
        before = run
    return events


def stage_event(run: Run, operation: str, now_ms: int, *, waiting: bool, requested: bool = False) -> PipelineStage:
    """Return the event with the status of a run; `requested`: it waits for a slot, and all runs before it have released
    the user.
    """
    return {
        "id": run.id,
        "user_id": run.user_id,
        "status": run.status,
        "operation": operation,
        "attempt": run.attempt,
        "at": now_ms,
        "ordinal": run.ordinal,
        "revision": run.revision,
        "waiting": waiting,
        "error": run.error,
        "requested": requested,
    }


def is_waiting(run: Run) -> bool:
    """Return whether no worker holds it and it is to be requested."""
    return run.worker is None and run.due_ms is None and run.status in (Status.NEW, Status.ANALYZED, Status.READY)


def archived_event(run: Run, now_ms: int, *, memory_id: int | None, error: str | None) -> RunArchived:
    """Return the event that releases the user (R1.26, R1.28)."""
    return {
        "request_id": run.id,
        "user_id": run.user_id,
        "ordinal": run.ordinal,
        "archive_status": str(run.archive_status),
        "memory_id": memory_id,
        "error": error,
        "at": now_ms,
    }


def failed_event(
    run: Run, stage: Stage | None, reason: str, error: str, stack: str, now_ms: int, *, is_alert: bool
) -> RunFailed:
    """Return the report of a failure for an operator; `run` is the run when it failed."""
    return {
        "request_id": run.id,
        "user_id": run.user_id,
        "stage": stage or "",
        "reason": reason,
        "error": error,
        "stack": stack,
        "is_alert": is_alert,
        "at": now_ms,
    }
