"""How the events of a topic are recreated from the state, if its log lost them: each slice registers its topics.

`connectors/repair` publishes what a slice makes, and then gives the rows their new positions. Rows that keep no position are
found by their time: everything that is not older than the last record that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from highwater.connectors.kafka.producer import AcceptedRecord
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.positions import Position, parse_position


class Remade(NamedTuple):
    """An event recreated, and the position that its record had; None if the row does not say."""

    position: Position | None
    event: Mapping[str, Any]


def _fields_of(row: Row) -> Mapping[str, Any]:
    return {name: value for name, value in dict(row).items() if name != "position"}


@dataclass(frozen=True, slots=True)
class Remake:
    """The statements of one topic.

    Args:
        select: returns the fields of each event, in the order in which they are published. With `moves` it gets the lost
            positions as texts and also returns `position`, else the time in ms since 1970 of the last record that is left.
        left_out: what cannot be recreated, for the operator.
        moves: $1 former positions, $2 new ones, as texts, $3 the broker's times of these in ms since 1970; empty if the rows
            keep no positions.
        event: makes the event of a row; its columns are the fields if it is left out.
    """

    select: str
    left_out: str
    moves: Sequence[str] = ()
    event: Callable[[Row], Mapping[str, Any]] = _fields_of

    async def remade(self, tx: Connection, positions: Sequence[Position], since_ms: int) -> list[Remade]:
        """Return the events that the state still has of lost positions, or since a time (of all partitions)."""
        if not self.moves:
            return [Remade(None, self.event(row)) for row in await tx.fetch(self.select, since_ms)]
        rows = await tx.fetch(self.select, list(map(str, positions)))
        return [Remade(parse_position(row["position"]), self.event(row)) for row in rows]

    async def moved(self, tx: Connection, moved: Mapping[Position, AcceptedRecord]) -> None:
        """Give rows their new positions and the times of these."""
        times = [accepted.arrived_ms for accepted in moved.values()]
        for statement in self.moves:
            await tx.execute(statement, list(map(str, moved)), list(map(str, moved.values())), times)


# Of topics without a remake.
NOT_REMADE = "their effects are stored; a replay of the topic does not show them any more"


def left_out_of(remakes: Mapping[str, Remake], topic: str) -> str:
    """Return what cannot be recreated of a topic, in words for the operator."""
    return remakes[topic].left_out if topic in remakes else NOT_REMADE
