"""The sink of controls: requests to cancel or restart submitted work.

Invariant: controls are decided in the order of the log, under the lock of the rows of the work. A control of unknown
work waits until all submissions in the log are stored; therefore it has its own consumer group: in the group of the
submissions, a waiting batch would block them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple

from highwater.connectors.kafka.checking import checked_in_order
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.known import KnownIds, Origin
from highwater.connectors.kafka.outbox import OutboxFactory
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.topic_names import EventT


class Prepared(NamedTuple, Generic[EventT]):
    """Valid events of a batch in the order of the log, and refused ones."""

    events: list[Event[EventT]]
    dead: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Controls(Generic[EventT]):
    """The properties of the controls of one kind of work.

    `check` refuses an invalid event; `submissions` checks which work exists; `source` names the sink in the events that
    it publishes.
    """

    check: Callable[[str, EventT], None]
    submissions: Origin
    source: str


class ControlsSink(Handler[EventT, Prepared[EventT]]):
    """Checks controls, and waits for the submissions of the work that they name; each kind of work decides and stores."""

    controls: ClassVar[Controls]  # type: ignore[type-arg] # a class variable cannot be generic
    # Each is a row of work that is locked until the batch ends; its worker waits as long.
    batch_max = 500

    def __init__(self, context: ProcessContext) -> None:
        self._clock = context.clock
        self._codec = context.codec
        self._known = KnownIds(context.pool, context.admin, self.controls.submissions)
        self._tell = OutboxFactory(context.codec, self.controls.source)

    @abstractmethod
    def _named(self, events: Sequence[Event[EventT]]) -> set[str]:
        """Return the ids of the work that controls name, except for work that they create themselves."""

    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared[EventT]:
        """Check the events, and that all submissions are stored if one of their works is unknown."""
        good, dead = checked_in_order(events, self.controls.check)
        await self._known.unknown(self._named(good))
        return Prepared(good, dead)
