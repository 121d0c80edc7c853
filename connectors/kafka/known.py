"""The rule for events about something unknown: wait for the topic that creates it, then refuse.

Invariant: an event is refused only if its subject was in no event that the other topic held at the time of the check.
Another group reads that topic, so a missing row alone proves nothing. It must be another group, never the caller's own:
a waiting batch keeps its own group from reading on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.kafka.stopped import stopped_of
from highwater.connectors.kafka.truncation import open_of
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS


@dataclass(frozen=True, slots=True)
class Origin:
    """Where things are created: a topic and the consumer group that stores it; `thing` and `events` name them for the
    operator.
    """

    topic: str
    group: str
    thing: str
    events: str
    # Returns the stored ones among these ids.
    find: Callable[[Connection, list[str]], Awaitable[set[str]]]


class KnownIds:
    """Checks which things exist; the broker is queried only if one is missing."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], admin: Admin, origin: Origin) -> None:
        self._pool = pool
        self._admin = admin
        self._origin = origin

    async def unknown(self, ids: Collection[str]) -> set[str]:
        """Return the ids that no event has named.

        Raises:
            UnavailableError: an id is unknown, and the group that stores them is behind; try again.
        """
        missing = await self._missing(ids)
        if missing:
            await self.require_all()
            missing = await self._missing(missing)  # one may have been stored since the first check
        return missing

    async def _missing(self, ids: Collection[str]) -> set[str]:
        if not ids:
            return set()
        async with transaction(self._pool) as tx:
            return set(ids) - await self._origin.find(tx, sorted(ids))

    async def require_all(self) -> None:
        """Check that everything in the log of the topic is stored, found unchanged or dead-lettered.

        Partitions that are stopped for bad records do not count.

        Raises:
            UnavailableError: it is not.
        """
        topic, group = self._origin.topic, self._origin.group
        ends = await self._admin.log_ranges([(topic, number) for number in range(TOPICS[topic].partitions)])
        topic_ids = await self._admin.topic_ids([topic])
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["positions_of"], group)
            stopped = {place for place, one in (await stopped_of(tx, group)).items() if one.park_until is None}
            stopped |= (await open_of(tx, ends)).keys()
        # A position in an earlier topic of the same name does not apply to this one.
        reached = {(r["topic"], r["partition"]): r["next"] for r in rows if r["topic_id"] == topic_ids[topic]}
        # A stopped partition waits for an operator: waiting for it would stop every reader that checks.
        behind = sum(
            max(0, end.high - reached.get(place, end.low)) for place, end in ends.items() if place not in stopped
        )
        if behind:
            raise UnavailableError(
                f"{self._origin.thing} is unknown, and {group} is {behind} {self._origin.events} behind"
            )
