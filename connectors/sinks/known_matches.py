"""The rule for events about a match that is not known: wait for the schedule, then refuse.

Law: an event is refused as `unknown_match` only if its match was in no schedule that the log held when the event was looked at.
Schedules are another topic, read by another group, so that a match is not yet stored says nothing by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import asyncpg

from connectors.kafka.admin import Admin
from connectors.kafka.records import DeadLetter, Event
from connectors.stores.postgres import QUERIES, transaction
from schemas.errors import UnavailableError
from schemas.topics import TOPICS
from streams.league.folding import SCHEDULED

# The consumer group that stores schedules.
FIXTURES = "fixtures"


class KnownMatches:
    """Asks which matches there are; the broker is only asked when one is missing."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], admin: Admin) -> None:
        self._pool = pool
        self._admin = admin

    async def split(self, events: Sequence[Event]) -> tuple[list[Event], list[DeadLetter]]:
        """Events of matches that are known, and the others as dead letters.

        Raises:
            UnavailableError: a match is not known, and the sink of schedules is behind; try again.
        """
        unknown = await self._unknown({event.value["match_id"] for event in events})
        known = [event for event in events if event.value["match_id"] not in unknown]
        dead = [
            DeadLetter(event.record, "unknown_match", f"no match {event.value['match_id']!r} was scheduled before")
            for event in events
            if event.value["match_id"] in unknown
        ]
        return known, dead

    async def _unknown(self, match_ids: Collection[str]) -> set[str]:
        missing = await self._missing(match_ids)
        if missing:
            await self._require_schedules()
            missing = await self._missing(missing)  # one may have been stored since it was looked for
        return missing

    async def _missing(self, match_ids: Collection[str]) -> set[str]:
        if not match_ids:
            return set()
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["seasons_of_matches"], sorted(match_ids))
        return set(match_ids) - {row["match_id"] for row in rows}

    async def _require_schedules(self) -> None:
        """Raise unless everything that the log holds of schedules by now is stored, found unchanged or dead-lettered."""
        ends = await self._admin.log_ranges(_places())
        topic_ids = await self._admin.topic_ids([SCHEDULED])
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["positions_of"], FIXTURES)
        # A position in an earlier topic of the same name says nothing of this one.
        reached = {(r["topic"], r["partition"]): r["next"] for r in rows if r["topic_id"] == topic_ids[SCHEDULED]}
        behind = sum(max(0, end.high - reached.get(place, end.low)) for place, end in ends.items())
        if behind:
            raise UnavailableError(f"a match is not known, and {FIXTURES} is {behind} schedules behind")


def _places() -> Iterable[tuple[str, int]]:
    return [(SCHEDULED, partition) for partition in range(TOPICS[SCHEDULED].partitions)]
