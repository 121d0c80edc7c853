"""The materializer of timelines: the history of each run, with the log position of every step.

Invariants. A row is identified by its run and its position, so reading an event again adds none. Nothing is written
about an erased run: its events stay in the log, but a row must not outlive the run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, PipelineStage, RunArchived
from highwater.streams.clock import to_datetime
from highwater.streams.queries.states import Status

Moved: TypeAlias = PipelineStage | RunArchived
# The operation of the end of archiving, beside INSERT and UPDATE, which are moves of the run itself.
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


def step_of(event: Event[Moved]) -> Step:
    """Return the row of an event."""
    record, value = event
    position, at, error = str(record.position), to_datetime(value["at"]), value["error"]
    if archived := event.of(RUN_ARCHIVED):
        run_id, archive_status = archived["request_id"], archived["archive_status"]
        status = Status.COMPLETED.value
        return Step(run_id, position, status, archive_status, ARCHIVE_OPERATION, 0, None, error, at)
    moved = event.of(PIPELINE_STAGE)
    assert moved is not None
    operation, attempt, revision = moved["operation"], moved["attempt"], moved["revision"]
    return Step(moved["id"], position, moved["status"], None, operation, attempt, revision, error, at)


class Timeline(Handler[Moved, list[Step]]):
    """One row per event; a batch is one statement."""

    group = "timeline"
    topics = (PIPELINE_STAGE, RUN_ARCHIVED)
    # Rows of 200 bytes: eight per run, so a batch contains 250 complete runs and is stored in some tens of
    # milliseconds.
    batch_max = 2_000

    async def prepare(self, events: Sequence[Event[Moved]]) -> list[Step]:
        """Return the rows."""
        return [step_of(event) for event in events]

    async def apply(self, tx: Connection, events: Sequence[Event[Moved]], prepared: list[Step]) -> Sequence[DeadLetter]:
        """Store them."""
        if prepared:
            await tx.execute(QUERIES["timeline_store"], *map(list, zip(*prepared, strict=True)))
        return []
