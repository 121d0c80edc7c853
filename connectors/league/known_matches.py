"""The rule for events about an unknown match: `unknown_match`, once all schedules are accounted for (`known.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.known import KnownIds, Origin
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.league import (
    MATCH_SCHEDULED,
    CommentPosted,
    MatchFinalized,
    MatchUpdated,
    PredictionMade,
    VoteCast,
)

# An event that names a match published on another topic.
OfMatch = TypeVar("OfMatch", MatchUpdated | MatchFinalized, VoteCast | PredictionMade, CommentPosted)


async def _found(tx: Connection, match_ids: list[str]) -> set[str]:
    return {row["match_id"] for row in await tx.fetch(QUERIES["seasons_of_matches"], match_ids)}


SCHEDULES = Origin(MATCH_SCHEDULED, "fixtures", "a match", "schedules", _found)


class KnownMatches:
    """Splits events by whether their matches were scheduled."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], admin: Admin) -> None:
        self._known = KnownIds(pool, admin, SCHEDULES)

    async def split(self, events: Sequence[Event[OfMatch]]) -> tuple[list[Event[OfMatch]], list[DeadLetter]]:
        """Return events of known matches, and the others as dead letters.

        Raises:
            UnavailableError: a match is unknown, and the sink of schedules is behind; try again.
        """
        unknown = await self._known.unknown({event.value["match_id"] for event in events})
        known = [event for event in events if event.value["match_id"] not in unknown]
        dead = [
            DeadLetter(event.record, "unknown_match", f"no match {event.value['match_id']!r} was scheduled before")
            for event in events
            if event.value["match_id"] in unknown
        ]
        return known, dead
