"""What the API reads about feeds from PostgreSQL: values, not rows, and every time in milliseconds.

Invariant: one function is one snapshot; data that must agree (a version and what it names) is read by one statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import asyncpg
import orjson

from highwater.connectors.feeds.contents import stored_contents
from highwater.connectors.feeds.items import FeedInsight
from highwater.connectors.feeds.redactions import redacted
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row, one_row, reading, snapshot
from highwater.connectors.redis.resource_cache import Head
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.schemas.positions import Position
from highwater.streams.clock import to_ms, to_ms_or_none
from highwater.streams.feeds.repeats import Stored
from highwater.streams.feeds.rules import UserFacts, facts_of_row
from highwater.streams.feeds.tracking import ChangeKind, StoredCluster, new_since

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# The expiry of what does not expire; a stored document always has an earlier one.
NEVER_MS = 2**52
# The form of a feed document's items. A document of another form is rebuilt as soon as it is read; 1: items have
# `since`; 2: `arrived`.
FEED_FORM = 2
# The place of an event in a cluster's history: its version, and the index of its kind within one version (from 1).
EventPlace: TypeAlias = tuple[int, int]
LIFE_START: EventPlace = (0, 0)
_KINDS = [kind.value for kind in ChangeKind]


@dataclass(frozen=True, slots=True)
class FeedHead:
    """The stored feed's head, or that of the empty feed, and whether a build is due (R0.40, R0.41).

    `is_good`: the document is of the current cluster version and form; `head.expires_ms` decides on its age.
    """

    head: Head
    clusters_head: Head
    cluster_version_now: int
    is_stored: bool
    is_good: bool


@dataclass(frozen=True, slots=True)
class Clusters:
    """One version of a user's clusters; `clusters` None: the version is not kept.

    `outside` is JSON as it is served; None: a version from before clusters had an identity. `redactions` counts the
    retractions that removed insights from the version since it was stored.
    """

    head: Head
    cluster_version: int
    cluster_version_now: int
    clusters: list[dict[str, Any]] | None
    noise: int
    updated_at_ms: int | None
    caused_by: str
    basis_id: str | None
    left_out: int
    outside: str | None
    redactions: int = 0
    is_preliminary: bool = False
    is_regrouped: bool = False

    @property
    def is_lost(self) -> bool:
        """Return whether the newest version was lost with the database, and is being rebuilt."""
        return self.clusters is None and 0 < self.cluster_version == self.cluster_version_now


@dataclass(frozen=True, slots=True)
class DeadCluster:
    """A cluster that ended with a version; `related`: the clusters that hold most of its remaining members."""

    cluster_id: str
    label: str
    cluster_version: int
    related: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClustersSince:
    """A version and the clusters that ended before it; every change after `told_since` is still known, None: the user
    has no version.
    """

    found: Clusters
    died: tuple[DeadCluster, ...]
    told_since: int | None


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event in a cluster's history, with its place; numbers as in `ClusterChange`."""

    place: EventPlace
    numbers: dict[str, Any]
    evolved_at_ms: int


@dataclass(frozen=True, slots=True)
class ClusterLife:
    """A cluster and part of its history; `size` is 0 and `is_alive` false once it has ended. `told_since` as in
    `ClustersSince`.
    """

    head: Head
    cluster_version_now: int
    label: str
    is_alive: bool
    born_version: int | None
    size: int
    told_since: int | None
    events: tuple[ClusterEvent, ...]


@dataclass(frozen=True, slots=True)
class Delay:
    """Why the machine failed a user's last request, how often in a row, and when last; another request follows."""

    reason: str
    times: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user's row; the defaults are those of an unknown user. `is_changed` as in `UserFacts`."""

    plan: str = "free"
    cluster_version: int = 0
    last_clustered_at: int | None = None
    last_active_at: int | None = None
    last_enqueued_at: int | None = None
    last_checked_at: int | None = None
    in_flight_until: int | None = None
    is_changed: bool = False
    delay: Delay | None = None
    vectors_awaited_since: int | None = None

    def facts(self, pending_by_channel: Mapping[str, int]) -> UserFacts:
        """Return the facts that decide whether the user's clusters are rebuilt; waiting insights are counted by
        subscribed channel.
        """
        pending = sum(max(0, number) for number in pending_by_channel.values())
        return facts_of_row(self, pending, is_subscribed=bool(pending_by_channel))


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel; `caused_by` is the insight that last moved its head."""

    channel_id: str
    current_seq: int
    last_insight_at_ms: int | None
    caused_by: str


@dataclass(frozen=True, slots=True)
class Insight:
    """An insight as it is served."""

    insight_id: str
    channel_id: str
    seq: int
    ts_ms: int
    arrived_at_ms: int
    text: str | None
    url: str | None
    is_retracted: bool
    caused_by: str


@dataclass(frozen=True, slots=True)
class ClusterInsights:
    """The representative insights of a cluster; `is_whole`: none of the cluster's insights was retracted."""

    insights: tuple[FeedInsight, ...]
    is_whole: bool


def _head(row: Row, kind: str, checked_ms: int) -> Head:
    """Return the head in a row; a key without a version is at the floor, which no version of it ever exceeded."""
    if row["version"] is None:
        cause = row["erased_by"] or ""
        return Head(version=row["floor"], etag=f"{kind}-none-{row['floor']}", caused_by=cause, checked_ms=checked_ms)
    return Head(version=row["version"], etag=row["etag"], caused_by=row["position"], checked_ms=checked_ms)


async def clusters_head(pool: Pool, user_id: str, now_ms: int) -> Head:
    """Return the version of a user's clusters."""
    async with reading(pool) as connection:
        return await clusters_head_in(connection, user_id, now_ms)


async def clusters_head_in(connection: Connection, user_id: str, now_ms: int) -> Head:
    """Return it within the caller's snapshot."""
    return _head(await one_row(connection, QUERIES["read_clusters_head"], user_id), "clusters", now_ms)


async def feed_head(pool: Pool, user_id: str, now_ms: int) -> FeedHead:
    """Return the version of a user's feed and of its clusters; the empty feed of a user without clusters is always fresh."""
    async with reading(pool) as connection:
        row = await one_row(connection, QUERIES["read_feed_head"], user_id)
    held = {name: row["clusters_" + name] for name in ("version", "etag", "position")}
    clusters_head = _head({**held, "floor": row["floor"], "erased_by": row["erased_by"]}, "clusters", now_ms)
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
    is_good = row["cluster_version"] == now and row["form"] == FEED_FORM
    return FeedHead(head, clusters_head, now, is_stored=True, is_good=is_good)


async def feed_payload(pool: Pool, user_id: str) -> tuple[int, bytes] | None:
    """Return the stored feed with its version, read together; None if there is none."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_feed_payload"], user_id)
    return None if row is None else (row["version"], row["payload"])


async def clusters(pool: Pool, user_id: str, version: int | None, now_ms: int) -> Clusters:
    """Return a version of a user's clusters, by default the current one."""
    async with reading(pool) as connection:
        found = await _stored_clusters(connection, user_id, version, now_ms)
        if found.redactions == 0:
            return found
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await clusters_in(connection, user_id, version, now_ms)


async def clusters_in(connection: Connection, user_id: str, version: int | None, now_ms: int) -> Clusters:
    """Return it within the caller's snapshot, without insights retracted since it was stored."""
    found = await _stored_clusters(connection, user_id, version, now_ms)
    if found.redactions == 0 or found.clusters is None:
        return found
    shown = await redacted(connection, found.clusters, found.outside)
    if shown.outside is None:
        return replace(found, clusters=shown.clusters)
    noise, outside = len(shown.outside["insight_ids"]), orjson.dumps(shown.outside).decode()
    return replace(found, clusters=shown.clusters, noise=noise, outside=outside)


async def _stored_clusters(connection: Connection, user_id: str, version: int | None, now_ms: int) -> Clusters:
    row = await one_row(connection, QUERIES["read_clusters"], user_id, version)
    found = row["clusters"]
    return Clusters(
        head=_head(row, "clusters", now_ms),
        cluster_version=row["cluster_version"],
        cluster_version_now=row["cluster_version_now"],
        clusters=None if found is None else orjson.loads(found),
        noise=row["noise"] or 0,
        updated_at_ms=to_ms_or_none(row["updated_at"]),
        caused_by=row["caused_by"] or "",
        basis_id=row["basis_id"],
        left_out=row["left_out"] or 0,
        outside=row["outside"],
        redactions=row["redactions"] or 0,
        is_preliminary=bool(row["preliminary"]),
        is_regrouped=bool(row["regrouped"]),
    )


async def clusters_since(pool: Pool, user_id: str, version: int | None, since: int, now_ms: int) -> ClustersSince:
    """Return a version, by default the current one, and the clusters that ended after version `since` up to it."""
    async with snapshot(pool) as connection:
        found = await clusters_in(connection, user_id, version, now_ms)
        rows = await connection.fetch(QUERIES["read_died_clusters"], user_id, since, found.cluster_version)
        told_since = await connection.fetchval(QUERIES["read_told_since"], user_id)
    died = (DeadCluster(r["cluster_id"], r["label"], r["cluster_version"], tuple(r["related"])) for r in rows)
    return ClustersSince(found, tuple(died), told_since)


def has_all_changes(changes: ClustersSince, since: int) -> bool:
    """Return whether every change after version `since`, up to the version found, is still stored."""
    return since >= min(changes.found.cluster_version, changes.told_since or 0)


def tracked_cluster(stored: Mapping[str, Any], version: int) -> StoredCluster:
    """Return a stored cluster with its history; one from before clusters had an identity began with its version."""
    name, ids = stored["cluster_id"], tuple(stored["insight_ids"])
    if "since" not in stored:
        return StoredCluster(name, ids, (version,) * len(ids), version, version, (version,) * len(ids))
    since, arrived = tuple(stored["since"]), tuple(stored.get("arrived") or stored["since"])
    return StoredCluster(name, ids, since, stored["born_version"], stored["changed_version"], arrived)


def unread_clusters(found: Clusters, since: int) -> list[dict[str, Any]]:
    """Return the clusters of a version that changed after version `since`, each with its insights that are new."""
    stored = found.clusters or []
    unread = {
        one.cluster_id: one for one in new_since((tracked_cluster(c, found.cluster_version) for c in stored), since)
    }
    return [
        {**one, "is_new": news.is_new, "new_insight_ids": news.insight_ids}
        for one in stored
        if (news := unread.get(one["cluster_id"])) is not None
    ]


async def read_cluster_history(
    pool: Pool, user_id: str, cluster_id: str, after: EventPlace, limit: int, now_ms: int
) -> ClusterLife | None:
    """Return the history of a cluster, with up to `limit` events after a place; None if the cluster is unknown."""
    async with snapshot(pool) as connection:
        head = await one_row(connection, QUERIES["read_clusters_head"], user_id)
        now = await connection.fetchval(QUERIES["read_cluster_version"], user_id)
        living = await connection.fetchrow(QUERIES["read_living_cluster"], user_id, cluster_id)
        cluster = None if living is None else await _living(connection, living)
        known = cluster or await connection.fetchrow(QUERIES["read_cluster_end"], user_id, cluster_id)
        told_since = await connection.fetchval(QUERIES["read_told_since"], user_id)
        rows = await connection.fetch(QUERIES["read_cluster_events"], user_id, cluster_id, _KINDS, *after, limit)
    if known is None:
        return None
    return ClusterLife(
        head=_head(head, "clusters", now_ms),
        cluster_version_now=now or 0,
        label=known["label"],
        is_alive=cluster is not None,
        born_version=known.get("born_version"),
        size=0 if cluster is None else cluster["size"],
        told_since=told_since,
        events=tuple(_cluster_event(row) for row in rows),
    )


async def _living(connection: Connection, row: Row) -> Mapping[str, Any] | None:
    """Return a cluster of the newest version as it is served; None if all its insights were retracted."""
    stored: dict[str, Any] = orjson.loads(row["cluster"])
    if row["redactions"] == 0:
        return stored
    shown = await redacted(connection, [stored], None)
    return next(iter(shown.clusters), None)


def _cluster_event(row: Row) -> ClusterEvent:
    numbers = dict(row)
    place = (numbers["cluster_version"], numbers.pop("place"))
    return ClusterEvent(place, numbers, to_ms(numbers.pop("evolved_at")))


async def pending_by_channel(pool: Pool, user_id: str) -> tuple[UserRow, dict[str, int]]:
    """Return a user's row and, per current subscription, head minus high-water mark, as stored (maybe negative)."""
    async with snapshot(pool) as connection:
        user = await connection.fetchrow(QUERIES["read_user"], user_id)
        rows = await connection.fetch(QUERIES["read_pending"], user_id)
    return _user(user), {row["channel_id"]: row["pending"] for row in rows}


def _user(row: Row | None) -> UserRow:
    if row is None:
        return UserRow()
    return UserRow(
        plan=row["plan"],
        cluster_version=row["cluster_version"],
        last_clustered_at=to_ms_or_none(row["last_clustered_at"]),
        last_active_at=to_ms_or_none(row["last_active_at"]),
        last_enqueued_at=to_ms_or_none(row["last_enqueued_at"]),
        last_checked_at=to_ms_or_none(row["last_checked_at"]),
        in_flight_until=None if row["in_flight"] is None else to_ms_or_none(row["in_flight_until"]),
        is_changed=row["is_changed"],
        vectors_awaited_since=to_ms_or_none(row["vectors_awaited_since"]),
        delay=None if not row["delays"] else Delay(row["delay_reason"], row["delays"], to_ms(row["delayed_at"])),
    )


async def pending_sum(pool: Pool, user_id: str) -> int:
    """Return the number of insights that never took part in a clustering of this user (R0.12)."""
    async with reading(pool) as connection:
        return int(await connection.fetchval(QUERIES["read_pending_sum"], user_id))


async def subscriptions(pool: Pool, user_id: str, after: str, limit: int) -> list[str]:
    """Return channels that a user subscribes to, in order, after one of them."""
    async with reading(pool) as connection:
        return [
            row["channel_id"] for row in await connection.fetch(QUERIES["read_subscriptions"], user_id, after, limit)
        ]


async def channel(pool: Pool, channel_id: str) -> Channel | None:
    """Return a channel; None if it never had an insight."""
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["read_channel"], channel_id)
    if row is None:
        return None
    caused_by = ""
    if row["source_offset"] is not None:
        caused_by = str(Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"]))
    return Channel(row["channel_id"], row["current_seq"], to_ms_or_none(row["last_insight_ts"]), caused_by)


async def channels(pool: Pool, after: str, limit: int) -> list[Channel]:
    """Return channels in order of their ids, after one of them."""
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_channels"], after, limit)
    return [Channel(row["channel_id"], row["current_seq"], to_ms_or_none(row["last_insight_ts"]), "") for row in rows]


async def insight(pool: Pool, channel_id: str, insight_id: str) -> Insight | None:
    """Return an insight; None if it is unknown."""
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
        caused_by=str(Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"])),
    )


async def insights_of_clusters(
    pool: Pool, clusters_shown: Sequence[dict[str, Any]], newest: int
) -> list[ClusterInsights]:
    """Return for each cluster its newest insights and its representative, without retracted ones."""
    places = [place for place, cluster in enumerate(clusters_shown) for _ in cluster["insight_ids"]]
    ids = [insight_id for cluster in clusters_shown for insight_id in cluster["insight_ids"]]
    representatives = [cluster.get("representative_id") for cluster in clusters_shown]
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_insights_of_feed"], places, ids, representatives, newest)
    found: list[list[FeedInsight]] = [[] for _ in clusters_shown]
    retracted: dict[int, int] = {}
    for row in rows:
        retracted[row["cluster"]] = row["retracted"]
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
    return [
        ClusterInsights(tuple(insights), is_whole=retracted.get(place) == 0) for place, insights in enumerate(found)
    ]


async def next_offsets(pool: Pool, positions: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], int]:
    """Return for each (group, topic, partition) the offset below which everything is accounted for."""
    groups, topics, partitions = zip(*positions, strict=True)
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["read_positions"], groups, topics, partitions)
    return {(row["group"], row["topic"], row["partition"]): row["next"] for row in rows}


async def stored_insights(pool: Pool, insight_ids: Sequence[str]) -> dict[str, Stored]:
    """Return what is stored under the known ids.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        return await stored_contents(connection, insight_ids)


async def is_user_known(pool: Pool, user_id: str) -> bool:
    """Return whether any event has named this user.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        return bool(await connection.fetchval(QUERIES["is_user_known"], user_id))
