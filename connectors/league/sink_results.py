"""The sink of results: scores of matches in play, and final results. It waits for the sink of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.league.known_matches import KnownMatches
from highwater.connectors.league.matches import MatchStore, checked
from highwater.connectors.league.sink_fixtures import Prepared
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.league import MATCH_FINALIZED, MATCH_UPDATED, MatchFinalized, MatchUpdated

# The events after a match was scheduled.
Played: TypeAlias = MatchUpdated | MatchFinalized


class ResultsSink(Handler[Played, Prepared[Played]]):
    """Folds scores and results into the rows of matches that were scheduled."""

    group = "results"
    topics = (MATCH_UPDATED, MATCH_FINALIZED)
    # As in the sink of schedules.
    batch_max = 1_000

    def __init__(self, context: ProcessContext) -> None:
        self._store = MatchStore(context.codec, context.clock, source="/connectors/sinks/results")
        self._matches = KnownMatches(context.pool, context.admin)

    async def prepare(self, events: Sequence[Event[Played]]) -> Prepared[Played]:
        """Check the events, and that their matches are known."""
        good, dead = checked(events)
        known, unknown = await self._matches.split(good)
        return Prepared(known, [*dead, *unknown])

    async def apply(
        self, tx: Connection, events: Sequence[Event[Played]], prepared: Prepared[Played]
    ) -> Sequence[DeadLetter]:
        """Fold them into the matches."""
        return [*prepared.dead, *await self._store.store(tx, prepared.events)]
