"""The first submission under an id: a repeat changes nothing, and a different one under the same id is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.topic_names import EventT

SaidT = TypeVar("SaidT")


class FirstSubmission(NamedTuple, Generic[SaidT]):
    """The first submission under an id, and its position in the log."""

    said: SaidT
    position: str


# Reads the submissions under ids, of those that are stored.
ReadKnown: TypeAlias = Callable[[Connection, Sequence[str]], Awaitable[Mapping[str, FirstSubmission[SaidT]]]]


async def new_ones(
    tx: Connection,
    submitted: Sequence[tuple[Event[EventT], SaidT]],
    read_known: ReadKnown[SaidT],
    id_of: Callable[[Event[EventT]], str],
    other: str,
) -> tuple[list[tuple[Event[EventT], SaidT]], list[DeadLetter]]:
    """Return submissions whose id is new, in their order, and the refusals of those that differ from the one under a
    known id.

    `other` is the phrase of the refusal for what the id names: "another job".
    """
    ids = sorted({id_of(event) for event, _ in submitted})
    known = {name: one.said for name, one in (await read_known(tx, ids)).items()}
    new, refused = [], []
    for event, said in submitted:
        before: Any = known.setdefault(id_of(event), said)
        if before is said:
            new.append((event, said))
        elif before != said:
            refused.append(DeadLetter(event.record, "conflicting_repeat", f"{id_of(event)} is {other}"))
    return new, refused
