"""Versions of resources in Redis: one that was read from there may be newer than the last that the log has.

Invariant: nothing is written, and an unavailable Redis only means that nothing is added.
"""

from __future__ import annotations

from highwater.connectors.backup.recorded import RecordedResults, Version
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.redis.keys import RESOURCE_VERSION, resource_key
from highwater.connectors.redis.link import RedisAwayError, RedisLink, open_redis
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

# One round trip each; Redis answers this many within some milliseconds.
_KEYS_AT_ONCE = 1_000

log = get_log("restore")


async def note_cached_versions(tx: Connection, settings: Settings, results: RecordedResults) -> None:
    """Add the versions in Redis that are newer than those of the log."""
    known = {row["key"] for row in await tx.fetch(QUERIES["known_resources"])}
    keys = sorted(known | results.versions.keys())
    link = await open_redis(settings.redis_cache or settings.redis)
    try:
        for first in range(0, len(keys) if link.is_up else 0, _KEYS_AT_ONCE):
            for key, version in (await _versions(link, keys[first : first + _KEYS_AT_ONCE])).items():
                if key not in results.versions or version.version > results.versions[key].version:
                    results.versions[key] = version
    except RedisAwayError as error:
        log.warning("versions_in_redis_not_read", reason=str(error))
    finally:
        await link.close()


async def _versions(link: RedisLink, keys: list[str]) -> dict[str, Version]:
    names = [resource_key(RESOURCE_VERSION, key, is_cluster=link.is_cluster) for key in keys]
    replies = await link.replies([("HMGET", name, "version", "etag", "caused_by") for name in names])
    found: dict[str, Version] = {}
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, Exception) or reply[0] is None:  # a key of another type has no version
            continue
        version, etag, cause = reply
        # Announced and not committed: a version without a tag equals no row, so the row gets one above it.
        found[key] = Version(int(version), (etag or b"").decode(), (cause or b"").decode(), 0)
    return found
