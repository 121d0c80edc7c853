"""Splits a sink's batch into events that its subsystem's rules accept, and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.topic_names import EventT


def checked_in_order(
    events: Sequence[Event[EventT]], check: Callable[[str, EventT], None]
) -> tuple[list[Event[EventT]], list[DeadLetter]]:
    """Split events as `divided`, the valid ones in the order of the log: a batch mixes partitions as they were fetched."""
    good, dead = divided(events, check)
    return sorted(good, key=lambda event: (event.record.partition, event.record.offset)), dead


def divided(
    events: Sequence[Event[EventT]], check: Callable[[str, EventT], None]
) -> tuple[list[Event[EventT]], list[DeadLetter]]:
    """Return valid events, and the others as dead letters."""
    good, dead = [], []
    for event in events:
        try:
            check(event.record.topic, event.value)
        except InvalidEventError as error:
            dead.append(DeadLetter(event.record, error.reason, str(error)))
        else:
            good.append(event)
    return good, dead
