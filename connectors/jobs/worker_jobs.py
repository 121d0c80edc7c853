"""The consumers of commands, one a kind: capture the jobs that are asked for and hand them to the engine.

Law: a command is followed at most once, since a job is captured by its status: redelivered, late or void, it finds none and
nothing happens; neither does one for a job that was revoked or has expired (R2.40). The consumer waits for free slots and for
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.engines.watch import Watch
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.store import Asked
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.streams.clock import Clock
from highwater.streams.jobs.jobs import Job
from highwater.streams.jobs.states import REQUESTED, JobRequested
from highwater.streams.telemetry import get_log

_log = get_log("jobs")


class JobCommands(Handler[JobRequested, None]):
    """Follows the topic of its engine's kind; its group has the kind's name."""

    # As many as are captured in one transaction of some 10 ms.
    batch_max = 256

    def __init__(self, engine: JobEngine, watch: Watch[Job], clock: Clock) -> None:
        self.group = str(engine.jobs.kind)
        self.topics = (REQUESTED[engine.jobs.kind],)
        self._engine = engine
        self._watch = watch
        self._clock = clock

    async def prepare(self, events: Sequence[Event[JobRequested]]) -> None:
        """Capture what is asked for, as slots allow.

        Raises:
            UnavailableError: PostgreSQL is away, or this process ends.
        """
        await self._watch.is_held.wait()  # else our jobs would look like those of a worker that is gone
        asked = [Asked(event.value["job_id"], event.record.position) for event in events]
        engine = self._engine
        while asked:
            await engine.wait_for_slot()
            with engine.reserved(len(asked)) as count:
                part, asked = asked[:count], asked[count:]
                jobs = await engine.jobs.capture(
                    part, worker=engine.worker, lease_ms=engine.lease_ms, now_ms=self._clock()
                )
                engine.take(jobs)
            if len(jobs) < len(part):
                _log.info("not_captured", commands=len(part), captured=len(jobs))

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobRequested]], prepared: None
    ) -> Sequence[DeadLetter]:
        """The positions alone: what was captured is stored."""
        return []
