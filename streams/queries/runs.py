"""A run of the pipeline and the moves it makes, as values: what a worker stores is decided here.

Law: whoever holds a run has raised its epoch; a move is stored only if the run still is as it was when it was taken (R1.6), so a
worker that was given up changes nothing. An attempt keeps its number over a crash, and with it its idempotency key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from highwater.schemas.queries import PipelineStage, RunArchived, RunFailed
from highwater.streams.queries.states import (
    ArchiveStatus,
    Move,
    Stage,
    Status,
    advance,
    advance_archive,
    stage_at,
)

# R1.7: so often is a stage begun again whose worker ended or went silent.
RETURNS_MAX = 3
INSERT, UPDATE = "INSERT", "UPDATE"


@dataclass(frozen=True, slots=True)
class Run:
    """A row of `pipeline_runs`. Times are ms since 1970; `worker` holds it, None = nobody; `due_ms`: its next attempt.

    `organization_id` pays for it; None: the operator.
    """

    id: str
    user_id: str
    ordinal: int
    query: str
    status: Status
    organization_id: str | None = None
    archive_status: ArchiveStatus | None = None
    released: bool = False
    revision: int = 1
    epoch: int = 0
    worker: int | None = None
    attempt: int = 0
    unusable: int = 0
    returns: int = 0
    lease_until_ms: int | None = None
    due_ms: int | None = None
    analysis: Mapping[str, Any] | None = None
    draft: str | None = None
    payload: str | None = None
    answer: str | None = None
    sources: Sequence[Mapping[str, Any]] | None = None
    error: str | None = None
    position: str = ""
    caused_by: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    completed_ms: int | None = None

    @property
    def stage(self) -> Stage | None:
        """The stage it waits for or is in; None at its end."""
        return stage_at(self.status, self.archive_status)


def call_key(run_id: str, stage: str, attempt: int) -> str:
    """What a call of one attempt is known by, to us and to the service: its idempotency key."""
    return f"{run_id}/{stage}/{attempt}"


def captured(run: Run, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> Run:
    """The run in the hands of a worker, from the waiting status of its stage; `command` asked for it, if that is known."""
    return replace(
        _moved(run, Move.CAPTURE, now_ms), epoch=run.epoch + 1, worker=worker, lease_until_ms=now_ms + lease_ms,
        caused_by=command or run.caused_by,
    )  # fmt: skip


def resumed(run: Run, *, worker: int, lease_ms: int, now_ms: int) -> Run:
    """The run in the hands of a worker again, for the attempt that it was put aside for (`waiting_until`)."""
    return replace(run, epoch=run.epoch + 1, worker=worker, lease_until_ms=now_ms + lease_ms, due_ms=None)


def begun(run: Run) -> Run:
    """With its next attempt begun."""
    return replace(run, attempt=run.attempt + 1)


def waiting_until(run: Run, due_ms: int) -> Run:
    """Put aside until its next attempt is due; it stays in its stage (R1.37)."""
    return replace(begun(run), due_ms=due_ms, worker=None, lease_until_ms=None)


def finished(run: Run, now_ms: int, **given: Any) -> Run:
    """With what its stage gave (`given`: fields of the run); waits for the next stage."""
    after = _moved(replace(run, **given), Move.FINISH, now_ms)
    return replace(after, worker=None, lease_until_ms=None, attempt=0, unusable=0, returns=0)


def returned(run: Run, now_ms: int, *, is_counted: bool) -> Run:
    """Given back to the waiting status of its stage. Not counted when its worker gives it back in order."""
    after = _moved(run, Move.RETURN, now_ms)
    return replace(after, worker=None, lease_until_ms=None, returns=run.returns + is_counted, epoch=run.epoch + 1)


def failed(run: Run, error: str, now_ms: int) -> Run:
    """At its end without what it was to give. A completed run stays completed; what failed is its memory (R1.28)."""
    return replace(
        _moved(run, Move.FAIL, now_ms), worker=None, lease_until_ms=None, due_ms=None, released=True,
        error=run.error if run.status is Status.COMPLETED else error,
    )  # fmt: skip


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
    """The events of moves that are stored together (R1.15): one a change of status, and none for anything else."""
    events = []
    for place, run in enumerate(steps):
        if run.status is not before.status:
            is_last = place == len(steps) - 1
            # A stage that has ended tells how many attempts it took; the run counts those of the next one already.
            told = replace(run, attempt=max(before.attempt, run.attempt))
            events.append(stage_event(told, UPDATE, now_ms, waiting=is_last and is_waiting(run)))
        before = run
    return events


def stage_event(run: Run, operation: str, now_ms: int, *, waiting: bool, requested: bool = False) -> PipelineStage:
    """The event that tells where a run stands; `requested`: it waits for a slot, and all before it have released the user."""
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
    """Whether nobody holds it and it is to be requested."""
    return run.worker is None and run.due_ms is None and run.status in (Status.NEW, Status.ANALYZED, Status.READY)


def archived_event(run: Run, now_ms: int, *, memory_id: int | None, error: str | None) -> RunArchived:
    """The event that lifts the block (R1.26, R1.28)."""
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
    """What an operator needs to know of a failure; `run` as it was when it failed."""
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
