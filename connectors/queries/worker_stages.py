"""The consumer of commands: runs that are asked for wait in the table until a slot is theirs.

Invariant. A command is followed at most once, since a run is asked for by its status (R1.6): redelivered, late or void, it finds
0 rows and nothing happens. The consumer never waits for a slot, so that the first in the log is not the first at the slots: those
are shared out between organizations (`streams/identity/sharing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.engine import Engine
from highwater.connectors.queries.store import Asked
from highwater.schemas.queries import STAGE_REQUESTED, StageRequested
from highwater.streams.queries.states import RESTARTABLE, Stage


class Prepared(NamedTuple):
    """What is asked for, and what is refused."""

    asked: list[Asked]
    dead: list[DeadLetter]


class StageCommands(Handler[StageRequested, Prepared]):
    """Follows `queries.stage-requested`."""

    group = "stages"
    topics = (STAGE_REQUESTED,)
    # As many rows as are marked in one statement of some 10 ms.
    batch_max = 256

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def prepare(self, events: Sequence[Event[StageRequested]]) -> Prepared:
        """Tell commands from what is none."""
        prepared = Prepared([], [])
        for event in events:
            stage = event.value["stage"]
            if stage in RESTARTABLE:
                prepared.asked.append(Asked(event.value["request_id"], Stage(stage), event.record.position))
            else:
                dead = DeadLetter(event.record, "bad_stage", f"there is no stage {stage!r} to request")
                prepared.dead.append(dead)
        return prepared

    async def apply(
        self, tx: Connection, events: Sequence[Event[StageRequested]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Have the runs wait for a slot."""
        await self._engine.runs.ask(tx, prepared.asked)
        return prepared.dead

    async def settle(self, prepared: Prepared) -> None:
        """They are in the table: whoever shares out slots looks now."""
        self._engine.wake.set()
