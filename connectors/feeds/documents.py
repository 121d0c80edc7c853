"""The feed document of a user: built when it is read and no fresh copy exists, stored, and served by version.

Invariants (R0.40, R0.41). A document is fresh while its cluster version is the user's current one, its form the current
one, and its age below its TTL. A build is stored under the version read at its start. Every stored document has its own
resource version, also one that was rebuilt for the same cluster version, so that one ETag never names two bodies;
payload, version and outbox row are one transaction. One build per user at a time; waiting readers read its result. A
build continues when its reader disconnects. A failing model is not called for a moment; meanwhile the last document is
served, marked stale.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import asyncpg
import orjson

from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.feeds.build_locks import BuildLocks
from highwater.connectors.feeds.items import ITEMS_MAX, FeedCluster, FeedWriter
from highwater.connectors.feeds.read_model import FEED_FORM, ClusterInsights, Clusters, FeedHead
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.models.chat import ModelError
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.postgres.shared_reads import SharedReads
from highwater.connectors.redis.link import RedisAwayError
from highwater.connectors.redis.resource_cache import TRUSTED_MS, Head, ResourceCache
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import Clock, monotonic_seconds, to_datetime
from highwater.streams.telemetry import FEEDS_BUILT, get_log

SOURCE = "/feeds"
# Longer than the slowest model call, so that a waiter reads the finished document instead of giving up before it.
LOCK_SECONDS_MAX = 40.0
# After a failure of the model its user's readers are answered without calling it for this long.
FAILURE_SECONDS = 5.0
# Concurrent builds in a process, and builds in total: beyond that a reader must retry.
BUILDS_AT_ONCE = 16
BUILDS_MAX = 512
FAILURES_REMEMBERED = 10_000
# An overtaken build (a version pruned, a user erased) is repeated; after this many the user changes all the time.
ATTEMPTS_MAX = 3
# Texts read per cluster: enough for a summary, few enough that a feed of 100 clusters is 2,000 rows.
INSIGHTS_READ = 20

_log = get_log("feeds")

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True, slots=True)
class FeedDocument:
    """A feed as it is served."""

    head: Head
    payload: bytes
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class FeedNews:
    """What a reader of an earlier version has not seen: a document of the feed's form, and its version."""

    cluster_version: int
    document: dict[str, Any]


def feed_news(payload: bytes, since: int) -> FeedNews | None:
    """Return the items of a stored document whose clusters changed after version `since`; None if it does not show
    this.

    Each shows whether the cluster `is_new` and how many of its insights are, `new_count`; as `tracking.new_since` does.
    """
    document = orjson.loads(payload)
    if not all("arrived" in item for item in document["items"]):
        return None
    items = [
        {
            **item,
            "is_new": item["born_version"] > since,
            "new_count": sum(count for version, count in item["arrived"] if version > since),
        }
        for item in document["items"]
        if item["changed_version"] > since
    ]
    return FeedNews(document["cluster_version"], {**document, "since": since, "items": items})


def feed_cluster(stored: dict[str, Any], version: int, insights: ClusterInsights) -> FeedCluster:
    """Return a stored cluster of a version as the feed's writer needs it.

    The stored words may contain words of retracted insights; then they are recomputed from the remaining ones.
    """
    tracked = feeds_reads.tracked_cluster(stored, version)
    label = str(stored.get("label") or "")
    x_y = stored.get("position")
    return FeedCluster(
        cluster_id=tracked.cluster_id,
        label=label,
        keywords=tuple(stored.get("keywords") or ()),
        theme=str(stored.get("theme") or ""),
        size=int(stored.get("size") or 0),
        insights=insights.insights,
        since=dict(zip(tracked.insight_ids, tracked.since, strict=True)),
        arrived=tracked.arrived,
        born_version=tracked.born_version,
        changed_version=tracked.changed_version,
        position=None if x_y is None else (x_y[0], x_y[1]),
        title=str(stored.get("title") or label) if insights.is_whole else label,
        summary=str(stored.get("summary") or "") if insights.is_whole else "",
        written_version=int(stored.get("written_version") or 0) if insights.is_whole else 0,
    )


def good_feed(heads: Sequence[Head | None], now_ms: int) -> Head | None:
    """Return the head of a feed if the cached heads of the feed and of its clusters show that it is fresh."""
    feed, clusters = heads
    if feed is None or clusters is None or not (feed.is_trusted(now_ms) and clusters.is_trusted(now_ms)):
        return None
    is_good = feed.basis == clusters.version and feed.expires_ms is not None and now_ms < feed.expires_ms
    return feed if is_good else None


class FeedBuilder:
    """Serves and builds feed documents."""

    def __init__(
        self,
        *,
        pool: Callable[[], Pool],
        codec: Callable[[], Codec],
        cache: ResourceCache,
        writer: FeedWriter,
        clock: Clock,
        ttl_seconds: float,
        database_url: str | None,
    ) -> None:
        self._pool = pool
        self._codec = codec
        self._cache = cache
        self._writer = writer
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._locks = BuildLocks(database_url)
        self._building: dict[str, asyncio.Task[FeedDocument]] = {}
        self._failed: OrderedDict[str, tuple[float, ModelError]] = OrderedDict()
        self._heads: SharedReads[FeedHead] = SharedReads()
        self._slots = asyncio.Semaphore(BUILDS_AT_ONCE)

    async def cached_head(self, user_id: str) -> Head | None:
        """Return the head of the fresh document according to Redis, with one round trip and without a payload."""
        return good_feed(await self._cache.heads([f"feed:{user_id}", f"clusters:{user_id}"]), self._clock())

    async def shared_head(self, user_id: str) -> FeedHead:
        """Return `stored_head`, shared by all concurrent readers: when trust runs out, many come at once."""
        return await self._heads.read(user_id, lambda: self.stored_head(user_id))

    async def stored_head(self, user_id: str) -> FeedHead:
        """Return the head from PostgreSQL and store it in Redis; `is_good` also checks its age."""
        now_ms = self._clock()
        found = await feeds_reads.feed_head(self._pool(), user_id, now_ms)
        if found.is_good and self._has_expired(found.head, now_ms):
            found = replace(found, is_good=False)
        if found.is_good:
            await self._cache.put(f"feed:{user_id}", found.head)
        # Also when the feed is rebuilt for this reader: a reader of new items must not get the answer that their clusters are
        # unchanged.
        await self._cache.put(f"clusters:{user_id}", found.clusters_head)
        return found

    @staticmethod
    def _has_expired(head: Head, now_ms: int) -> bool:
        return head.expires_ms is not None and now_ms >= head.expires_ms

    async def read(self, user_id: str, head: Head | None) -> FeedDocument:
        """Return the document of a fresh head, or build one if `head` is None.

        Raises:
            ModelError: the model failed, and there is no earlier document.
            UnavailableError: a required service is unavailable.
        """
        if head is not None:
            payload = await self._payload(user_id, head)
            if payload is not None:
                return FeedDocument(head, payload)
        try:
            return await self._build_once(user_id)
        except ModelError:
            last = await self._last_document(user_id)
            if last is None:
                raise
            return last

    async def _payload(self, user_id: str, head: Head) -> bytes | None:
        if head.expires_ms == feeds_reads.NEVER_MS:  # first of all: Redis may still hold data of an erased user
            return _empty_payload(user_id)
        cached = await self._cache.payload(f"feed:{user_id}", head.version)
        if cached is not None:
            return cached
        stored = await feeds_reads.feed_payload(self._pool(), user_id)
        if stored is None or stored[0] != head.version:
            return None  # overtaken between the two reads
        await self._cache.put(f"feed:{user_id}", head, stored[1])
        return stored[1]

    async def _last_document(self, user_id: str) -> FeedDocument | None:
        found = await feeds_reads.feed_head(self._pool(), user_id, self._clock())
        stored = await feeds_reads.feed_payload(self._pool(), user_id) if found.is_stored else None
        if stored is None or stored[0] != found.head.version:
            return None
        FEEDS_BUILT.labels("stale").inc()
        return FeedDocument(found.head, stored[1], is_stale=True)

    async def _build_once(self, user_id: str) -> FeedDocument:
        """Join the build in progress in this process, or start it; it continues without its readers."""
        failed = self._failed.get(user_id)
        if failed is not None and monotonic_seconds() - failed[0] < FAILURE_SECONDS:
            raise ModelError(str(failed[1]))
        task = self._building.get(user_id)
        if task is None:
            if len(self._building) >= BUILDS_MAX:
                raise UnavailableError("too many feeds are being built")
            task = asyncio.create_task(self._build(user_id), name="feed-build")
            self._building[user_id] = task
            task.add_done_callback(lambda done: self._built(user_id, done))
        return await asyncio.shield(task)

    def _built(self, user_id: str, task: asyncio.Task[FeedDocument]) -> None:
        self._building.pop(user_id, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ModelError):
            FEEDS_BUILT.labels("failed").inc()
            self._failed[user_id] = (monotonic_seconds(), error)
            self._failed.move_to_end(user_id)
            if len(self._failed) > FAILURES_REMEMBERED:
                self._failed.popitem(last=False)
        elif error is not None:
            # Every waiting reader gets the error too; this line is for a build without readers.
            _log.warning("a feed could not be built", user_id=user_id, reason=str(error) or type(error).__name__)
        else:
            self._failed.pop(user_id, None)

    async def _build(self, user_id: str) -> FeedDocument:
        async with self._slots, self._locks.hold(user_id, LOCK_SECONDS_MAX):
            for _ in range(ATTEMPTS_MAX):
                found = await self.stored_head(user_id)
                if found.is_good:  # the previous holder of the lock has built it
                    payload = await self._payload(user_id, found.head)
                    if payload is not None:
                        return FeedDocument(found.head, payload)
                clusters = await feeds_reads.clusters(self._pool(), user_id, None, self._clock())
                document = await self._build_from(user_id, clusters)
                if document is not None:
                    return document
        raise UnavailableError("the clusters changed faster than the feed could be built")

    async def _build_from(self, user_id: str, clusters: Clusters) -> FeedDocument | None:
        """Build and store the document of one version of the clusters; return None if it was overtaken."""
        if clusters.clusters is None:
            return None
        listed = clusters.clusters[:ITEMS_MAX]
        insights = await feeds_reads.insights_of_clusters(self._pool(), listed, INSIGHTS_READ)
        items = await self._writer.items(
            [
                feed_cluster(cluster, clusters.cluster_version, told)
                for cluster, told in zip(listed, insights, strict=True)
            ]
        )
        built_ms = self._clock()
        payload = orjson.dumps(
            {
                "user_id": user_id,
                "cluster_version": clusters.cluster_version,
                "built_at": iso_from_ms(built_ms),
                "preliminary": clusters.is_preliminary,
                "regrouped": clusters.is_regrouped,
                "items": items,
            }
        )
        head = await self._store(user_id, clusters, payload, built_ms)
        if head is None:
            return None
        FEEDS_BUILT.labels("built").inc()
        await self._tell(user_id, head, payload)
        return FeedDocument(head, payload)

    async def _tell(self, user_id: str, head: Head, payload: bytes) -> None:
        """Write a new version to Redis before its first reader has it: afterwards Redis serves no older one.

        If Redis seems available and missed it, wait until its trust ends; an unavailable Redis is not read by anybody.
        """
        is_asked = self._cache.is_up
        try:
            await self._cache.carry(f"feed:{user_id}", head, payload)
        except RedisAwayError:
            if is_asked:
                await asyncio.sleep(TRUSTED_MS / 1000)

    async def _store(self, user_id: str, clusters: Clusters, payload: bytes, built_ms: int) -> Head | None:
        built_at = to_datetime(built_ms)
        resource = f"feed:{user_id}"
        async with transaction(self._pool()) as tx:
            held = (user_id, clusters.cluster_version, clusters.redactions)
            if await tx.fetchval(QUERIES["hold_clusters"], *held) is None:
                return None
            values = (user_id, clusters.cluster_version, built_at, self._ttl_seconds, payload, FEED_FORM)
            if await tx.fetchval(QUERIES["store_feed"], *values) is None:
                return None
            head = await bump(
                tx, self._codec(), resource,
                caused_by=clusters.caused_by, now_ms=built_ms, source=SOURCE, payload=payload,
            )  # fmt: skip
        expires_ms = built_ms + int(self._ttl_seconds * 1000)
        basis = clusters.head.version
        return replace(head, basis=basis, expires_ms=expires_ms)

    async def close(self) -> None:
        """Cancel the builds in progress; the next reader repeats them."""
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._locks.close()
        await self._writer.close()


def _empty_payload(user_id: str) -> bytes:
    return orjson.dumps({"user_id": user_id, "cluster_version": 0, "built_at": None, "items": []})
