"""Work that takes long and outlives the process that began it, as values: what a run of a query and a job have in common.

Invariant: a worker that takes work raises its epoch; a move is stored only if the work still is as it was when it was taken, so a
worker that was given up, or that comes to life again, changes nothing. An attempt keeps its number over a crash, and with it its
idempotency key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

# Work is begun again so often after its worker ended or went silent without having finished a step: what kills three workers at
# one place kills the fourth (R1.7).
RETURNS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a row of `pipeline_runs` and one of `jobs` both have. Times are ms since 1970.

    `worker` holds it, None = nobody; `due_ms`: its next attempt. `attempt` and `unusable` count calls of the present step,
    `returns` workers that ended in it. `caused_by` is the position of the event that asked for it last.
    """

    id: str
    epoch: int = 0
    worker: int | None = None
    attempt: int = 0
    unusable: int = 0
    returns: int = 0
    lease_until_ms: int | None = None
    due_ms: int | None = None
    error: str | None = None
    position: str = ""
    caused_by: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    completed_ms: int | None = None

    def call_key(self, stage: str) -> str:
        """What a call of its present attempt is known by."""
        return call_key(self.id, stage, self.attempt)

    @property
    def tries(self) -> int:
        """The calls of the present step that are limited (R1.32)."""
        return self.attempt


WorkT = TypeVar("WorkT", bound=Work)


def call_key(work_id: str, stage: str, attempt: int) -> str:
    """What a call of one attempt is known by, to us and to the service: its idempotency key."""
    return f"{work_id}/{stage}/{attempt}"


def taken_by(moved: WorkT, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> WorkT:
    """Work that has made its move, in the hands of a worker; `command` is the position of the event that asked for it."""
    return replace(
        moved,
        epoch=moved.epoch + 1,
        worker=worker,
        lease_until_ms=now_ms + lease_ms,
        caused_by=command or moved.caused_by,
    )


def resumed(work: WorkT, *, worker: int, lease_ms: int, now_ms: int) -> WorkT:
    """Work that was put aside in the hands of a worker again, now that its next attempt is due."""
    return replace(work, epoch=work.epoch + 1, worker=worker, lease_until_ms=now_ms + lease_ms, due_ms=None)


def begun(work: WorkT) -> WorkT:
    """With its next attempt begun."""
    return replace(work, attempt=work.attempt + 1)


def waiting_until(work: WorkT, due_ms: int) -> WorkT:
    """Put aside until its next attempt is due; it stays where it is (R1.37)."""
    return replace(begun(work), due_ms=due_ms, worker=None, lease_until_ms=None)


def given_back(moved: WorkT, *, is_counted: bool) -> WorkT:
    """Work that has made its move, back where it waits. Not counted when its worker gives it back in order."""
    return replace(unheld(moved), epoch=moved.epoch + 1, returns=moved.returns + is_counted)


def unheld(work: WorkT) -> WorkT:
    """With nobody who holds it, and no attempt that is due."""
    return replace(work, worker=None, lease_until_ms=None, due_ms=None)
