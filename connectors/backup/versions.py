"""Versions of resources after a restore: no version that anybody may have seen is assigned to other content.

Invariant: a resource whose row is what the log or Redis has as its last version keeps version and ETag; every other one
gets a version above both, a new ETag and a bump, and its page is deleted, to be built again from the restored facts. One
without a row starts above its published version, and every later version is above all that were lost.
"""

from __future__ import annotations

from collections.abc import Collection

from highwater.connectors.backup.recorded import RecordedResults
from highwater.connectors.backup.results import SOURCE
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.pages import rows as documents
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position
from highwater.streams.clock import to_datetime
from highwater.streams.lost_writes import UNPUBLISHED_VERSIONS_MAX

_REASON = "restore"
_KEYS_MAX = 10_000


async def renew_versions(
    tx: Connection, codec: Codec, results: RecordedResults, bumped: Collection[str], now_ms: int
) -> int:
    """Raise versions above the published ones; return how many. `bumped` are keys that the replay changed."""
    highest = max((found.version for found in results.versions.values()), default=0)
    await tx.execute(QUERIES["raise_lost_floor"], UNPUBLISHED_VERSIONS_MAX, highest)
    keys = sorted(results.versions.keys() | set(bumped))
    announced = {key: (results.versions[key].version, results.versions[key].etag) for key in results.versions}
    await tx.execute(QUERIES["raise_floor_above"], list(announced), [version for version, _ in announced.values()])
    renewed = 0
    for first in range(0, len(keys), _KEYS_MAX):
        part = keys[first : first + _KEYS_MAX]
        last = [announced.get(key, (0, "")) for key in part]
        at = to_datetime(now_ms)
        columns = [version for version, _ in last], [etag for _, etag in last]
        rows = await tx.fetch(QUERIES["renew_versions"], part, *columns, at)
        await documents.drop(tx, [row["key"] for row in rows])
        events = [
            VersionBumped(
                key=row["key"], version=row["version"], etag=row["etag"], caused_by=row["position"], bumped_at=now_ms,
                reason=_REASON,
            )
            for row in rows
        ]  # fmt: skip
        told_rows = [
            outbox.event_row(
                codec, VERSION_BUMPED, event, source=SOURCE, now_ms=now_ms, caused_by=_position(event["caused_by"])
            )
            for event in events
        ]
        await outbox.add(tx, told_rows)
        renewed += len(rows)
    return renewed


def _position(text: str) -> Position | None:
    try:
        return parse_position(text)
    except InvalidEventError:  # of several changes at once
        return None
