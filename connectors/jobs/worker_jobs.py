"""The consumers of commands, one per kind of job; a command for a revoked or expired job matches none (R2.40)."""

from __future__ import annotations

from highwater.connectors.engines.commands import WorkCommands
from highwater.connectors.engines.store import RequestedWork
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.kafka.records import Event
from highwater.streams.jobs.states import REQUESTED, JobRequested, Kind


class JobCommands(WorkCommands[JobRequested]):
    """Applies the commands of a kind; its group has the kind's name."""

    def __init__(self, engine: JobEngine, kind: Kind) -> None:
        super().__init__(engine)
        self.group = str(kind)
        self.topics = (REQUESTED[kind],)

    def _asked(self, event: Event[JobRequested]) -> RequestedWork:
        return RequestedWork(event.value["job_id"], event.record.position)
