"""The consumer of `queries.stage-requested`: a run is requested by the status in which it waits for a stage (R1.6)."""

from __future__ import annotations

from highwater.connectors.engines.commands import WorkCommands
from highwater.connectors.engines.store import RequestedWork
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.queries import STAGE_REQUESTED, StageRequested
from highwater.streams.queries.states import RESTARTABLE


class StageCommands(WorkCommands[StageRequested]):
    """Applies `queries.stage-requested`."""

    group = "stages"
    topics = (STAGE_REQUESTED,)

    def _asked(self, event: Event[StageRequested]) -> RequestedWork | DeadLetter:
        stage = event.value["stage"]
        if stage not in RESTARTABLE:
            return DeadLetter(event.record, "bad_stage", f"there is no stage {stage!r} to request")
        return RequestedWork(event.value["request_id"], event.record.position, stage)
