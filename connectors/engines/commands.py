"""The consumer of commands: work that is asked for waits in the table until a slot is its own.

Invariant: a command is followed at most once, since work is asked for by its status: redelivered, late or void, it finds none and
nothing happens. The consumer never waits for a slot, so the first in the log is not the first at the slots: those are shared out
between organizations (`streams/identity/sharing.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from highwater.connectors.engines.engine import Engine
from highwater.connectors.engines.store import Asked
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.topic_names import EventT


class Prepared(NamedTuple):
    """What is asked for, and what is refused."""

    asked: list[Asked]
    dead: list[DeadLetter]


class WorkCommands(Handler[EventT, Prepared]):
    """Follows the commands of one kind of work."""

    # As many rows as are marked in one statement of some 10 ms.
    batch_max = 256

    def __init__(self, engine: Engine[Any, Any]) -> None:
        self._engine = engine

    @abstractmethod
    def _asked(self, event: Event[EventT]) -> Asked | DeadLetter:
        """What a command asks for, or why it is none."""

    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared:
        """Tell commands from what is none."""
        found = [self._asked(event) for event in events]
        return Prepared(
            [one for one in found if isinstance(one, Asked)], [one for one in found if isinstance(one, DeadLetter)]
        )

    async def apply(self, tx: Connection, events: Sequence[Event[EventT]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Have the work wait for a slot."""
        await self._engine.store.ask(tx, prepared.asked)
        return prepared.dead

    async def settle(self, prepared: Prepared) -> None:
        """It is in the table: whoever shares out slots looks now."""
        self._engine.wake.set()
