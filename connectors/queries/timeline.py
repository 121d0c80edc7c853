"""The materializer of timelines: the way of each run, with the place in the log of every step.

Laws. A row is named by its run and its position, so reading an event again adds none. Of a run that was erased nothing is
written: the event outlives it in the log, the row must not outlive it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.clock import to_datetime
from highwater.streams.queries.runs import ARCHIVED, STAGE
from highwater.streams.queries.states import Status

# How the end of the archiving is told beside INSERT and UPDATE, which are moves of the run itself.
ARCHIVE_OPERATION = "ARCHIVE"


class Step(NamedTuple):
    """A row of `run_events`, in the order of `timeline_store`."""

    run_id: str
    position: str
    status: str
    archive_status: str | None
    operation: str
    attempt: int
    revision: int | None
    error: str | None
    at: datetime


def step_of(event: Event) -> Step:
    """The row of an event."""
    record, value = event
    position, at = str(record.position), to_datetime(value["at"])
    if record.topic == ARCHIVED:
        run_id, archive_status = value["request_id"], value["archive_status"]
        status = Status.COMPLETED.value
        return Step(run_id, position, status, archive_status, ARCHIVE_OPERATION, 0, None, value["error"], at)
    operation, attempt, revision = value["operation"], value["attempt"], value["revision"]
    return Step(value["id"], position, value["status"], None, operation, attempt, revision, value["error"], at)


class Timeline:
    """One row an event; a batch is one statement."""

    group = "timeline"
    topics: tuple[str, ...] = (STAGE, ARCHIVED)
    # Rows of 200 bytes: eight a run, so a batch holds 250 runs from end to end and is stored in some tens of milliseconds.
    batch_max = 2_000

    async def prepare(self, events: Sequence[Event]) -> list[Step]:
        """The rows."""
        return [step_of(event) for event in events]

    async def apply(self, tx: Connection, events: Sequence[Event], prepared: list[Step]) -> Sequence[DeadLetter]:
        """Store them."""
        if prepared:
            await tx.execute(QUERIES["timeline_store"], *map(list, zip(*prepared, strict=True)))
        return []

    async def settle(self, prepared: list[Step]) -> None:
        """Nothing is held."""
