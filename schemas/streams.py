"""Typed records of the streams events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class DeadLetterHandled(TypedDict):
    """A dead letter was sent again, as it was or edited, or dead letters were deleted."""

    topic: str
    letter: str
    action: str
    count: int
    position: str | None
    reason: str | None
    changed: list[str]
    by: str
    note: str | None
    handled_at: int


class Tick(TypedDict):
    """The clock of the log: one record per partition and tick."""

    number: int
    now: int
    clock_offset_ms: int


TICK: Final = TopicName[Tick]("streams.tick")
DEAD_LETTER_HANDLED: Final = TopicName[DeadLetterHandled]("streams.dead-letter-handled")
