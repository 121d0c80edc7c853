"""The consumer of commands: requested work waits in the table until it gets a slot.

Invariant: a command takes effect at most once, since it names the status of the work: a repeated, late or obsolete one
matches no work and changes nothing. The consumer never waits for a slot, so the order of the log is not the order of
the slots: those are shared between organizations (`streams/identity/sharing.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from highwater.connectors.engines.engine import Engine
from highwater.connectors.engines.store import RequestedWork
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.topic_names import EventT


class Prepared(NamedTuple):
    """Requested work, and refused commands."""

    asked: list[RequestedWork]
    dead: list[DeadLetter]


class WorkCommands(Handler[EventT, Prepared]):
    """Applies the commands of one kind of work."""

    # As many rows as one statement marks in some 10 ms.
    batch_max = 256

    def __init__(self, engine: Engine[Any, Any]) -> None:
        self._engine = engine

    @abstractmethod
    def _asked(self, event: Event[EventT]) -> RequestedWork | DeadLetter:
        """Return what a command requests, or why it is invalid."""

    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared:
        """Separate valid commands from invalid ones."""
        found = [self._asked(event) for event in events]
        return Prepared(
            [one for one in found if isinstance(one, RequestedWork)],
            [one for one in found if isinstance(one, DeadLetter)],
        )

    async def apply(self, tx: Connection, events: Sequence[Event[EventT]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Let the work wait for a slot."""
        await self._engine.store.ask(tx, prepared.asked)
        return prepared.dead

    async def settle(self, prepared: Prepared) -> None:
        """Notify the process that assigns slots, now that the work is in the table."""
        self._engine.wake.set()
