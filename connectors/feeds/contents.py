"""The stored contents of insights by id, to be compared with repeated events."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.schemas.positions import Position
from highwater.streams.clock import to_ms
from highwater.streams.feeds.repeats import Content, Stored


async def stored_contents(connection: Connection, insight_ids: Sequence[str]) -> dict[str, Stored]:
    """Return what is stored under the known ids, each with the event that wrote it."""
    rows = await connection.fetch(QUERIES["known_contents"], insight_ids)
    return {
        row["insight_id"]: Stored(
            Content(row["channel_id"], to_ms(row["ts"]), row["url"], row["text_sha256"]),
            Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"]),
        )
        for row in rows
    }
