"""The consumers of commands, one a kind: jobs that are asked for wait in the table until a slot is theirs.

Law: a command is followed at most once, since a job is asked for by its status: redelivered, late or void, it finds none and
nothing happens; neither does one for a job that was revoked or has expired (R2.40). The consumer never waits for a slot, so
that who is first in the log is not first at the slots: those are shared out between organizations
(`streams/identity/sharing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.store import Asked
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.streams.jobs.states import REQUESTED, JobRequested


class JobCommands(Handler[JobRequested, None]):
    """Follows the topic of its engine's kind; its group has the kind's name."""

    # As many rows as are marked in one statement of some 10 ms.
    batch_max = 256

    def __init__(self, engine: JobEngine) -> None:
        self.group = str(engine.jobs.kind)
        self.topics = (REQUESTED[engine.jobs.kind],)
        self._engine = engine

    async def prepare(self, events: Sequence[Event[JobRequested]]) -> None:
        """There is nothing to gather."""

    async def apply(
        self, tx: Connection, events: Sequence[Event[JobRequested]], prepared: None
    ) -> Sequence[DeadLetter]:
        """Have the jobs wait for a slot."""
        asked = [Asked(event.value["job_id"], event.record.position) for event in events]
        await self._engine.jobs.ask(tx, asked)
        return []

    async def settle(self, prepared: None) -> None:
        """They are in the table: whoever shares out slots looks now."""
        self._engine.wake.set()
