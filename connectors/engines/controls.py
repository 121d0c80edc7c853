"""The sink of what is asked of work that was submitted before: that it ends, or that it is begun again.

Invariant: controls are decided in the order of the log, under the lock of the rows of the work. A control of work that is not
known waits until all submissions of the log are accounted for, so it is a group of its own: were it that of the submissions, a
batch that waits would keep them from being read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple

from highwater.connectors.kafka.checking import checked_in_order
from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.known import KnownIds, Origin
from highwater.connectors.kafka.outbox import OutboxFactory
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.topic_names import EventT


class Prepared(NamedTuple, Generic[EventT]):
    """Valid events of a batch in the order of the log, and what is refused."""

    events: list[Event[EventT]]
    dead: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Controls(Generic[EventT]):
    """What the controls of one kind of work are.

    `check` refuses an event that is none; `submissions` tells which work is known; `source` names the sink in the events that it
    publishes.
    """

    check: Callable[[str, EventT], None]
    submissions: Origin
    source: str


class ControlsSink(Handler[EventT, Prepared[EventT]]):
    """Checks controls, and has them wait for the submissions of what they name; a kind of work decides and stores."""

    controls: ClassVar[Controls]  # type: ignore[type-arg] # a class variable cannot be generic
    # Each is the row of work that is locked until the batch ends; a worker that has one of them waits as long.
    batch_max = 500

    def __init__(self, around: Surroundings) -> None:
        self._clock = around.clock
        self._codec = around.codec
        self._known = KnownIds(around.pool, around.admin, self.controls.submissions)
        self._tell = OutboxFactory(around.codec, self.controls.source)

    @abstractmethod
    def _named(self, events: Sequence[Event[EventT]]) -> set[str]:
        """The ids of the work that controls are about, but for work that they make themselves."""

    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared[EventT]:
        """Check the events, and that all submissions are stored if one of their works is not."""
        good, dead = checked_in_order(events, self.controls.check)
        await self._known.unknown(self._named(good))
        return Prepared(good, dead)
