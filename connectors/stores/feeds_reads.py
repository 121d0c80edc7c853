"""What the API reads of feeds from PostgreSQL: values, never rows, and every time in milliseconds.

Law: one function is one snapshot; what must agree (a version and what it names) is read by one statement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg
import orjson

from connectors.llm.feed_items import FeedInsight
from connectors.stores.postgres import AWAY, QUERIES, Connection
from connectors.stores.redis import Head
from schemas.errors import UnavailableError
from schemas.positions import Position
from streams.clock import to_ms

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# How long a request waits for a free connection before it is told to come again.
ACQUIRE_SECONDS = 5.0
# The end of what does not expire; a stored document always has a nearer one.
NEVER_MS = 2**52
INSIGHTS_TOPIC = "feeds.insight-ingested"


@dataclass(frozen=True, slots=True)
class FeedHead:
    """The stored feed's head, or that of the empty feed, and whether a build is due (R0.40, R0.41).

    `is_good`: the document is of the current cluster version; its age is `head.expires_ms`' business.
    """

    head: Head
    clusters_head: Head
    cluster_version_now: int
    is_stored: bool
    is_good: bool


@dataclass(frozen=True, slots=True)
class Clusters:
    """One version of a user's clusters; `clusters` None: no such version is kept."""

    head: Head
    cluster_version: int
    clusters: list[dict[str, Any]] | None
    noise: int
    updated_at_ms: int | None
    caused_by: str


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user's row; the defaults are those of a user nobody has heard of."""

    plan: str = "free"
    cluster_version: int = 0
    last_clustered_at: int | None = None
    last_active_at: int | None = None
    last_enqueued_at: int | None = None
    last_checked_at: int | None = None
    in_flight_until: int | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel; `caused_by` is the insight that moved its head last."""

    channel_id: str
    current_seq: int
    last_insight_at_ms: int | None
    caused_by: str


@dataclass(frozen=True, slots=True)
class Insight:
    """An insight as it is shown."""

    insight_id: str
    channel_id: str
    seq: int
    ts_ms: int
    arrived_at_ms: int
    text: str | None
    url: str | None
    is_retracted: bool
    caused_by: str


@asynccontextmanager
async def reading(pool: Pool) -> AsyncIterator[Connection]:
    """A connection for one read; a server that is away is an `UnavailableError`."""
    try:
        async with pool.acquire(timeout=ACQUIRE_SECONDS) as connection:
            yield connection
    except AWAY as error:
        raise UnavailableError(f"PostgreSQL is away: {error or type(error).__name__}") from error


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else to_ms(moment)


def _head(row: Any, kind: str, checked_ms: int) -> Head:
    """The head in a row; a key without a version stands at the floor, which no version of it was ever above."""
    if row["version"] is None:
        return Head(version=row["floor"], etag=f"{kind}-none-{row['floor']}", caused_by="", checked_ms=checked_ms)
    return Head(version=row["version"], etag=row["etag"], caused_by=row["position"], checked_ms=checked_ms)


async def clusters_head(pool: Pool, user_id: str, now_ms: int) -> Head:
    """The version of a user's clusters."""
    async with reading(pool) as connection:
        return _head(await connection.fetchrow(QUERIES["read_clusters_head"], user_id), "clusters", now_ms)


async def feed_head(pool: Pool, user_id: str, now_ms: int) -> FeedHead:
    """The version of a user's feed and what it was made from; the empty feed of a user without clusters is always good."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_feed_head"], user_id)
    held = {name: row["clusters_" + name] for name in ("version", "etag", "position")}
    clusters_head = _head({**held, "floor": row["floor"]}, "clusters", now_ms)
    plain = _head(row, "feed", now_ms)
    now = row["cluster_version_now"]
    if now == 0:
        # No version of the clusters yet (or erased): nothing can be stored for it and nothing expires.
        empty = replace(plain, basis=clusters_head.version, expires_ms=NEVER_MS)
        return FeedHead(empty, clusters_head, now, is_stored=False, is_good=True)
    if row["cluster_version"] is None or row["version"] is None:
        return FeedHead(plain, clusters_head, now, is_stored=False, is_good=False)
    expires_ms = to_ms(row["built_at"]) + int(row["ttl_seconds"] * 1000)
    head = replace(plain, basis=clusters_head.version, expires_ms=expires_ms)
    return FeedHead(head, clusters_head, now, is_stored=True, is_good=row["cluster_version"] == now)


async def feed_payload(pool: Pool, user_id: str) -> tuple[int, bytes] | None:
    """The stored feed with its version, read together; None when there is none."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_feed_payload"], user_id)
    return None if row is None else (row["version"], row["payload"])


async def clusters(pool: Pool, user_id: str, version: int | None, now_ms: int) -> Clusters:
    """A version of a user's clusters, by default the current one."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_clusters"], user_id, version)
    found = row["clusters"]
    return Clusters(
        head=_head(row, "clusters", now_ms),
        cluster_version=row["cluster_version"],
        clusters=None if found is None else orjson.loads(found),
        noise=row["noise"] or 0,
        updated_at_ms=_ms(row["updated_at"]),
        caused_by=row["caused_by"] or "",
    )


async def pending_by_channel(pool: Pool, user_id: str) -> tuple[UserRow, dict[str, int]]:
    """A user's row and, per current subscription, head minus high-water mark, as stored (maybe negative)."""
    async with reading(pool) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        user = await connection.fetchrow(QUERIES["read_user"], user_id)
        rows = await connection.fetch(QUERIES["read_pending"], user_id)
    return _user(user), {row["channel_id"]: row["pending"] for row in rows}


def _user(row: Any) -> UserRow:
    if row is None:
        return UserRow()
    return UserRow(
        plan=row["plan"],
        cluster_version=row["cluster_version"],
        last_clustered_at=_ms(row["last_clustered_at"]),
        last_active_at=_ms(row["last_active_at"]),
        last_enqueued_at=_ms(row["last_enqueued_at"]),
        last_checked_at=_ms(row["last_checked_at"]),
        in_flight_until=None if row["in_flight"] is None else _ms(row["in_flight_until"]),
    )


async def pending_sum(pool: Pool, user_id: str) -> int:
    """Insights that never took part in a clustering of this user (R0.12)."""
    async with reading(pool) as connection:
        return int(await connection.fetchval(QUERIES["read_pending_sum"], user_id))


async def subscriptions(pool: Pool, user_id: str, after: str, limit: int) -> list[str]:
    """Channels that a user is subscribed to, in order, after one of them."""
    async with reading(pool) as connection:
        return [
            row["channel_id"] for row in await connection.fetch(QUERIES["read_subscriptions"], user_id, after, limit)
        ]


async def channel(pool: Pool, channel_id: str) -> Channel | None:
    """A channel, None when no insight ever came for it."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_channel"], channel_id)
    if row is None:
        return None
    caused_by = ""
    if row["source_offset"] is not None:
        caused_by = str(Position(INSIGHTS_TOPIC, row["source_partition"], row["source_offset"]))
    return Channel(row["channel_id"], row["current_seq"], _ms(row["last_insight_ts"]), caused_by)


async def channels(pool: Pool, after: str, limit: int) -> list[Channel]:
    """Channels in order of their ids, after one of them."""
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_channels"], after, limit)
    return [Channel(row["channel_id"], row["current_seq"], _ms(row["last_insight_ts"]), "") for row in rows]


async def insight(pool: Pool, channel_id: str, insight_id: str) -> Insight | None:
    """An insight, None when it never came."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_insight"], insight_id, channel_id)
    if row is None:
        return None
    return Insight(
        insight_id=row["insight_id"],
        channel_id=row["channel_id"],
        seq=row["seq"],
        ts_ms=to_ms(row["ts"]),
        arrived_at_ms=to_ms(row["arrived_at"]),
        text=row["text"],
        url=row["url"],
        is_retracted=row["retracted_at"] is not None,
        caused_by=str(Position(INSIGHTS_TOPIC, row["source_partition"], row["source_offset"])),
    )


async def insights_of_clusters(
    pool: Pool, clusters_shown: Sequence[dict[str, Any]], newest: int
) -> list[tuple[FeedInsight, ...]]:
    """For each cluster its newest insights and its representative, without those that were retracted."""
    places = [place for place, cluster in enumerate(clusters_shown) for _ in cluster["insight_ids"]]
    ids = [insight_id for cluster in clusters_shown for insight_id in cluster["insight_ids"]]
    representatives = [cluster.get("representative_id") for cluster in clusters_shown]
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_insights_of_feed"], places, ids, representatives, newest)
    found: list[list[FeedInsight]] = [[] for _ in clusters_shown]
    for row in rows:
        found[row["cluster"]].append(
            FeedInsight(
                row["insight_id"],
                row["channel_id"],
                to_ms(row["ts"]),
                row["text"],
                row["url"],
                is_representative=row["is_representative"],
            )
        )
    return [tuple(insights) for insights in found]


async def next_offsets(pool: Pool, asked: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], int]:
    """For each (group, topic, partition), the offset below which everything is accounted for."""
    groups, topics, partitions = zip(*asked, strict=True)
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_positions"], groups, topics, partitions)
    return {(row["group"], row["topic"], row["partition"]): row["next"] for row in rows}
