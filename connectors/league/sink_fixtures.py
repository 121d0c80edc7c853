"""The sink of schedules: stores matches and their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.league.matches import MatchStore, checked
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.league import MATCH_SCHEDULED, MatchScheduled
from highwater.schemas.topic_names import EventT
from highwater.streams.clock import Clock


class Prepared(NamedTuple, Generic[EventT]):
    """Valid events of a batch, and refused events."""

    events: list[Event[EventT]]
    dead: list[DeadLetter]


class FixturesSink(Handler[MatchScheduled, Prepared[MatchScheduled]]):
    """Stores one row per match. The first schedule fixes the season."""

    group = "fixtures"
    topics = (MATCH_SCHEDULED,)
    # A season has a few hundred matches; their rows are locked until the batch ends, well under a second.
    batch_max = 1_000

    def __init__(self, codec: Codec, clock: Clock) -> None:
        self._store = MatchStore(codec, clock, source="/connectors/sinks/fixtures")

    async def prepare(self, events: Sequence[Event[MatchScheduled]]) -> Prepared[MatchScheduled]:
        """Check the events."""
        return Prepared(*checked(events))

    async def apply(
        self, tx: Connection, events: Sequence[Event[MatchScheduled]], prepared: Prepared[MatchScheduled]
    ) -> Sequence[DeadLetter]:
        """Fold them into the matches."""
        return [*prepared.dead, *await self._store.store(tx, prepared.events)]
