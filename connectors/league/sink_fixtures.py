"""The sink of schedules: which matches there are, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.league.matches import MatchStore, checked
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.streams.clock import Clock


class Prepared(NamedTuple):
    """Valid events of a batch, and what is refused."""

    events: list[Event]
    dead: list[DeadLetter]


class FixturesSink:
    """One row a match. The first schedule names the season for good."""

    group = "fixtures"
    topics: tuple[str, ...] = ("league.match-scheduled",)
    # A season has a few hundred matches; their rows are locked until the batch ends, well under a second.
    batch_max = 1_000

    def __init__(self, codec: Codec, clock: Clock) -> None:
        self._store = MatchStore(codec, clock, source="/connectors/sinks/fixtures")

    async def prepare(self, events: Sequence[Event]) -> Prepared:
        """Check the events."""
        return Prepared(*checked(events))

    async def apply(self, tx: Connection, events: Sequence[Event], prepared: Prepared) -> Sequence[DeadLetter]:
        """Fold them into the matches."""
        return [*prepared.dead, *await self._store.store(tx, prepared.events)]

    async def settle(self, prepared: Prepared) -> None:
        """Nothing is held."""
