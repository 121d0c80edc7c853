"""The consumer of commands: captures the runs that are asked for and hands them to the engine.

Law: a command is followed at most once, since a run is captured by its status (R1.6): redelivered, late or void, it finds 0
rows and nothing happens. The consumer waits for free slots and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.engines.watch import Watch
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.engine import Engine
from highwater.connectors.queries.store import Asked
from highwater.schemas.queries import STAGE_REQUESTED, StageRequested
from highwater.streams.clock import Clock
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import RESTARTABLE, Stage
from highwater.streams.telemetry import get_log

_log = get_log("queries")


class StageCommands(Handler[StageRequested, list[DeadLetter]]):
    """Follows `queries.stage-requested`."""

    group = "stages"
    topics = (STAGE_REQUESTED,)
    # As many as are captured in one transaction of some 10 ms.
    batch_max = 256

    def __init__(self, engine: Engine, watch: Watch[Run], clock: Clock) -> None:
        self._engine = engine
        self._watch = watch
        self._clock = clock

    async def prepare(self, events: Sequence[Event[StageRequested]]) -> list[DeadLetter]:
        """Capture what is asked for, as slots allow.

        Raises:
            UnavailableError: PostgreSQL is away, or this process ends.
        """
        await self._watch.is_held.wait()  # else our runs would look like those of a worker that is gone
        dead, asked = [], []
        for event in events:
            stage = event.value["stage"]
            if stage in RESTARTABLE:
                asked.append(Asked(event.value["request_id"], Stage(stage), event.record.position))
            else:
                dead.append(DeadLetter(event.record, "bad_stage", f"there is no stage {stage!r} to request"))
        engine = self._engine
        while asked:
            await engine.wait_for_slot()
            with engine.reserved(len(asked)) as count:
                part, asked = asked[:count], asked[count:]
                runs = await engine.runs.capture(
                    part, worker=engine.worker, lease_ms=engine.lease_ms, now_ms=self._clock()
                )
                engine.take(runs)
            if len(runs) < len(part):
                _log.info("not_captured", commands=len(part), captured=len(runs))
        return dead

    async def apply(
        self, tx: Connection, events: Sequence[Event[StageRequested]], prepared: list[DeadLetter]
    ) -> Sequence[DeadLetter]:
        """The positions alone: what was captured is stored."""
        return prepared
