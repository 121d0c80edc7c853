"""Copies version bumps to Redis, so that a conditional read finds the new version without querying PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped


class CacheVersions(Handler[VersionBumped, None]):
    """Writes `__v:`; one script stores only newer versions, so order and repeats do not matter."""

    group = "cache"
    topics = (VERSION_BUMPED,)
    batch_max = 1_000

    def __init__(self, cache: ResourceCache) -> None:
        self._cache = cache

    async def prepare(self, events: Sequence[Event[VersionBumped]]) -> None:
        """Store the newest version of each resource; an unavailable Redis is not an error, since PostgreSQL is read then."""
        newest: dict[str, VersionBumped] = {}
        for _, value in events:
            before = newest.get(value["key"])
            if before is None or value["version"] > before["version"]:
                newest[value["key"]] = value
        for value in newest.values():
            # The bump's own time: a late event must not make an old version look freshly checked.
            at = value["bumped_at"]
            head = Head(value["version"], value["etag"], value["caused_by"], checked_ms=at, changed_ms=at)
            await self._cache.put(value["key"], head)

    async def apply(
        self, tx: Connection, events: Sequence[Event[VersionBumped]], prepared: None
    ) -> Sequence[DeadLetter]:
        """Only store the positions: Redis is not a source of truth."""
        return []
