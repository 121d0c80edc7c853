"""Long work that outlives the process that began it, as values: what a query run and a job have in common.

Invariant: a worker that claims work raises its epoch; a move is stored only if the work is unchanged since it was
claimed, so an abandoned worker that recovers changes nothing. An attempt keeps its number over a crash, and with it its
idempotency key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

# How often work is begun again after its worker ended or hung without finishing a step: work that kills three workers
# at one place kills the fourth (R1.7).
RETURNS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The common columns of a row of `pipeline_runs` and of `jobs`. Times are ms since 1970.

    `worker` holds it, None if none does; `due_ms`: its next attempt. `attempt` and `unusable` count calls of the
    current step, `returns` workers that ended during it. `caused_by` is the position of the event that requested it
    last.
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
        """Return the id of a call of its current attempt."""
        return call_key(self.id, stage, self.attempt)

    @property
    def tries(self) -> int:
        """Return the calls of the current step that are limited (R1.32)."""
        return self.attempt


WorkT = TypeVar("WorkT", bound=Work)


def call_key(work_id: str, stage: str, attempt: int) -> str:
    """Return the id of a call of one attempt, also its idempotency key at the service."""
    return f"{work_id}/{stage}/{attempt}"


def claimed_by(moved: WorkT, *, worker: int, lease_ms: int, now_ms: int, command: str | None = None) -> WorkT:
    """Return work that has made its move, claimed by a worker; `command` is the position of the event that requested it."""
    return replace(
        moved,
        epoch=moved.epoch + 1,
        worker=worker,
        lease_until_ms=now_ms + lease_ms,
        caused_by=command or moved.caused_by,
    )


def resumed(work: WorkT, *, worker: int, lease_ms: int, now_ms: int) -> WorkT:
    """Return postponed work claimed by a worker again, now that its next attempt is due."""
    return replace(work, epoch=work.epoch + 1, worker=worker, lease_until_ms=now_ms + lease_ms, due_ms=None)


def begun(work: WorkT) -> WorkT:
    """Return the work with its next attempt begun."""
    return replace(work, attempt=work.attempt + 1)


def waiting_until(work: WorkT, due_ms: int) -> WorkT:
    """Return the work postponed until its next attempt is due; its status stays the same (R1.37)."""
    return replace(begun(work), due_ms=due_ms, worker=None, lease_until_ms=None)


def released_work(moved: WorkT, *, is_counted: bool) -> WorkT:
    """Return work that has made its move, released to wait again. Not counted if its worker releases it in order."""
    return replace(unclaimed(moved), epoch=moved.epoch + 1, returns=moved.returns + is_counted)


def unclaimed(work: WorkT) -> WorkT:
    """Return the work without a worker and without an attempt that is due."""
    return replace(work, worker=None, lease_until_ms=None, due_ms=None)
