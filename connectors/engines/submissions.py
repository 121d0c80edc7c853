"""What was submitted first under an id: a repeat of it changes nothing, and anything else under the id is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.topic_names import EventT

SaidT = TypeVar("SaidT")


class Known(NamedTuple, Generic[SaidT]):
    """What was submitted first under an id, and where that is in the log."""

    said: SaidT
    position: str


# Reads what was submitted under ids, of those that are stored.
ReadKnown: TypeAlias = Callable[[Connection, Sequence[str]], Awaitable[Mapping[str, Known[SaidT]]]]


async def new_ones(
    tx: Connection,
    submitted: Sequence[tuple[Event[EventT], SaidT]],
    read_known: ReadKnown[SaidT],
    id_of: Callable[[Event[EventT]], str],
    other: str,
) -> tuple[list[tuple[Event[EventT], SaidT]], list[DeadLetter]]:
    """Submissions whose id is new, in their order, and the refusals of those that say something else under a known one.

    `other` says in the refusal what the id names: "another job".
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
