"""Rebuilds a user's clusters: judged again with PostgreSQL's numbers, on a snapshot, stored in one transaction.

Law: the high-water mark moves to the heads read before the data set was, so what arrives during a rebuild stays
pending (R0.37); the version grows by exactly one, guarded by the version read at the start; every request ends in an
event (rebuilt, skipped or failed), written with its effects (R0.36, R0.38).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import orjson

from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.titles import ClusterTitles
from highwater.connectors.feeds.userlock import UserLock
from highwater.connectors.feeds.windows import (
    HISTORY_COLUMNS,
    Dataset,
    clusters_json,
    evolved_events,
    history_rows,
    labels_of,
    last_version_of,
    outside_json,
    read_dataset,
)
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.models.chat import CALL_SECONDS_MAX
from highwater.connectors.pages.versions import next_version
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.cache import VERSION_BUMPED
from highwater.schemas.errors import HighwaterError
from highwater.schemas.feeds import (
    CLUSTER_EVOLVED,
    CLUSTERS_REBUILT,
    REBUILD_FINISHED,
    REBUILD_REQUESTED,
    ClustersRebuilt,
    RebuildFinished,
    RebuildRequested,
)
from highwater.schemas.positions import Position, parse_position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import monotonic_seconds, to_datetime, to_ms
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Trigger, UserFacts, reason_to_skip
from highwater.streams.feeds.versions import LastVersion, NewVersion, Window
from highwater.streams.retry import REBUILD
from highwater.streams.settings import Settings
from highwater.streams.telemetry import REBUILD_INSIGHTS, REBUILD_RETRIES, REBUILD_SECONDS, REBUILDS, get_log

log = get_log("rebuild")

_SOURCE = "/connectors/workers/rebuild"
_DAY_MS = 86_400_000
# An insight whose time lies further ahead than this is not yet in any window; its novelty still counts once.
_AHEAD_MS = _DAY_MS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What of a user is read before a rebuild. `upto` is the seq per channel that the rebuild accounts for (R0.37)."""

    cluster_version: int
    facts: UserFacts
    heads: Mapping[str, int]
    hwm: Mapping[str, int]
    upto: Mapping[str, int]
    last_request: Position | None


@dataclass(frozen=True, slots=True)
class Made:
    """A version that was made, of what, and the labels of its clusters and of those that died with it."""

    version: NewVersion
    dataset: Dataset
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Work:
    """A request and what became of it; applied as it is."""

    user_id: str
    request: Position
    outcome: str  # rebuilt, skipped, failed or repeated
    reason: str = ""
    snapshot: Snapshot | None = None
    made: Made | None = None
    seconds: float = 0.0
    lock: UserLock | None = field(default=None, compare=False)


class RebuildWorker(Handler[RebuildRequested, Sequence[Work]]):
    """Handles `rebuild-requested`; clustering runs in the pool's processes, so the event loop is never blocked."""

    group = "rebuild"
    topics = (REBUILD_REQUESTED,)

    def __init__(
        self,
        around: Surroundings,
        settings: Settings,
        policy: Policy,
        redis: RedisLink,
        pool: ClusterPool,
        titles: ClusterTitles | None = None,
    ) -> None:
        self._around = around
        self._settings = settings
        self._policy = policy
        self._redis = redis
        self._pool = pool
        self._titles = titles or ClusterTitles(None)
        # As many at once as there are processes: a request that waits in Kafka can be taken by another worker.
        self.batch_max = settings.rebuild_processes

    # -- gather and decide, outside the transaction ------------------------------------------------------------------

    async def prepare(self, events: Sequence[Event[RebuildRequested]]) -> list[Work]:
        """Do the work of each request; what is stored of it comes in `apply`."""
        works = await asyncio.gather(*(self._work(event) for event in events), return_exceptions=True)
        failed = next((work for work in works if isinstance(work, BaseException)), None)
        done = [work for work in works if isinstance(work, Work)]
        if failed is not None:
            await self.settle(done)
            raise failed
        return done

    async def _work(self, event: Event[RebuildRequested]) -> Work:
        started = monotonic_seconds()
        user_id, request = event.value["user_id"], event.record.position
        lock = UserLock(self._redis, self._around.pool, user_id, token=str(request))
        if not await lock.acquire(self._lock_seconds()):
            # Another request of this user is being worked on: acknowledged and dropped, and said so (R0.32).
            return Work(user_id, request, "skipped", "locked")
        try:
            work = await self._judge(event)
        except BaseException:
            await lock.release()
            raise
        seconds = monotonic_seconds() - started
        return replace(work, lock=lock, seconds=seconds)

    def _lock_seconds(self) -> float:
        """Above the longest rebuild with all its attempts and waits, so that no live worker loses its lock (R0.26).

        The titles are asked for once, by whichever attempt succeeds; a minute is for reading and storing.
        """
        attempts = REBUILD.attempts_max or 1
        return self._settings.rebuild_seconds_max * attempts + CALL_SECONDS_MAX + 60

    async def _judge(self, event: Event[RebuildRequested]) -> Work:
        user_id, request, value = event.value["user_id"], event.record.position, event.value
        now_ms = self._around.clock()
        async with transaction(self._around.pool) as tx:
            snapshot = await _read_snapshot(tx, user_id)
            if snapshot is None:
                return Work(user_id, request, "skipped", "unknown_user")
            if _is_repeat(snapshot.last_request, request):
                return Work(user_id, request, "repeated")
            trigger = Trigger(value["trigger"])
            reason = reason_to_skip(trigger, snapshot.facts, self._policy, now_ms)
            if trigger is Trigger.MANUAL and not value["forced"] and not await _has_changed(tx, user_id, snapshot):
                reason = "nothing_new"
            if reason is not None:
                return Work(user_id, request, "skipped", reason, snapshot)
            until = to_datetime(now_ms + int(self._lock_seconds() * 1000))
            await tx.execute(QUERIES["take_rebuild"], user_id, str(request), until, to_datetime(value["planned_at"]))
        return await self._cluster(user_id, request, snapshot, now_ms)

    async def _cluster(self, user_id: str, request: Position, snapshot: Snapshot, now_ms: int) -> Work:
        attempt = 1
        while True:
            # Read again at each attempt: cheap beside clustering.
            dataset, last = await self._read(user_id, snapshot, now_ms)
            window = Window(snapshot.cluster_version + 1, dataset.vectors, dataset.texts, dataset.insight_ids, last)
            try:
                version = await self._pool.run(window)
            except HighwaterError as error:
                wait_ms = REBUILD.wait_ms(attempt) if error.retriable else None
                log.warning("rebuild_attempt_failed", user_id=user_id, attempt=attempt, reason=str(error))
                if wait_ms is None:
                    return Work(user_id, request, "failed", str(error), snapshot)
                attempt += 1
                REBUILD_RETRIES.inc()
                await asyncio.sleep(wait_ms / 1000)
                continue
            if dataset.left_out:
                log.warning("insights_left_out", user_id=user_id, count=dataset.left_out, basis_id=dataset.basis_id)
            texts = dict(zip(dataset.insight_ids, dataset.texts, strict=True))
            version = await self._titles.titled(version, window.version, last, texts)
            return Work(user_id, request, "rebuilt", "", snapshot, Made(version, dataset, labels_of(version, last)))

    async def _read(self, user_id: str, snapshot: Snapshot, now_ms: int) -> tuple[Dataset, LastVersion | None]:
        channels = sorted(snapshot.upto)
        async with transaction(self._around.pool) as tx:
            dataset = await read_dataset(
                tx,
                channels,
                [snapshot.hwm[channel] for channel in channels],
                [snapshot.upto[channel] for channel in channels],
                to_datetime(now_ms - int(self._settings.window_days * _DAY_MS)),
                to_datetime(now_ms + _AHEAD_MS),
                self._settings.rebuild_insights_max,
            )
            row = await tx.fetchrow(QUERIES["last_version"], user_id, snapshot.cluster_version)
        return dataset, last_version_of(row, dataset.basis_id)

    # -- apply, in the transaction that moves the positions ----------------------------------------------------------

    async def apply(
        self, tx: Connection, events: Sequence[Event[RebuildRequested]], prepared: Sequence[Work]
    ) -> Sequence[DeadLetter]:
        """Store outcomes and their events."""
        for work in sorted(prepared, key=lambda work: work.user_id):
            now_ms = self._around.clock()
            if work.outcome == "rebuilt":
                await self._store_rebuilt(tx, work, now_ms)
            elif work.outcome != "repeated":
                await self._store_unbuilt(tx, work, now_ms)
            REBUILDS.labels(work.outcome).inc()
        return []

    async def settle(self, prepared: Sequence[Work]) -> None:
        """Release what was taken, whichever way it ended (R0.38)."""
        for work in prepared:
            if work.lock is not None:
                await work.lock.release()

    async def _store_rebuilt(self, tx: Connection, work: Work, now_ms: int) -> None:
        snapshot, made = work.snapshot, work.made
        assert snapshot is not None and made is not None  # noqa: PT018 - what "rebuilt" means
        upto = {channel: max(seq, snapshot.hwm[channel]) for channel, seq in snapshot.upto.items()}
        pending = sum(max(0, snapshot.heads[channel] - seq) for channel, seq in upto.items())
        version = await tx.fetchval(
            QUERIES["finish_rebuilt"],
            work.user_id,
            snapshot.cluster_version,
            to_datetime(now_ms),
            pending,
            str(work.request),
        )
        if version is None:
            # The user was erased, or another rebuild was stored meanwhile: this one is void.
            await self._store_unbuilt(tx, Work(work.user_id, work.request, "skipped", "overtaken", snapshot), now_ms)
            return
        channels = sorted(upto)
        await tx.execute(QUERIES["raise_hwm"], work.user_id, channels, [upto[channel] for channel in channels])
        await self._store_version(tx, work, made, version, upto, to_datetime(now_ms))
        bump = await next_version(tx, f"clusters:{work.user_id}", str(work.request), now_ms)
        found, dataset = made.version, made.dataset
        rebuilt = ClustersRebuilt(
            user_id=work.user_id, cluster_version=version, request_position=str(work.request), hwm=upto,
            dataset_size=len(dataset), omitted=dataset.omitted, clusters=len(found.clusters), noise=found.noise_count,
            rebuilt_at=now_ms, basis_id=dataset.basis_id, left_out=dataset.left_out,
        )  # fmt: skip
        finished = _finished(work, now_ms, version=version, hwm=upto, clustered_ms=now_ms)
        evolved = evolved_events(found, made.labels, work.user_id, version, now_ms, str(work.request))
        told = [
            self._row(REBUILD_FINISHED, finished, work, now_ms),
            self._row(CLUSTERS_REBUILT, rebuilt, work, now_ms),
            *(self._row(CLUSTER_EVOLVED, one, work, now_ms) for one in evolved),
            self._row(VERSION_BUMPED, bump, work, now_ms),
        ]
        await outbox.add(tx, told)
        REBUILD_SECONDS.observe(work.seconds)
        REBUILD_INSIGHTS.observe(len(dataset))
        log.info(
            "rebuilt", user_id=work.user_id, cluster_version=version, bumped_version=bump["version"],
            dataset_size=len(dataset), omitted=dataset.omitted, left_out=dataset.left_out, basis_id=dataset.basis_id,
            clusters=len(found.clusters), noise=found.noise_count, changes=len(found.changes),
            seconds=round(work.seconds, 3), request=str(work.request),
        )  # fmt: skip

    async def _store_version(
        self, tx: Connection, work: Work, made: Made, version: int, upto: Mapping[str, int], at: datetime
    ) -> None:
        found, dataset, caused_by = made.version, made.dataset, str(work.request)
        await tx.execute(
            QUERIES["insert_clusters"],
            work.user_id, version, clusters_json(found), found.noise_count, len(dataset), dataset.omitted,
            orjson.dumps(upto, option=orjson.OPT_SORT_KEYS).decode(), at, caused_by, dataset.basis_id,
            outside_json(found), found.neighbours, dataset.left_out,
        )  # fmt: skip
        await tx.execute(QUERIES["drop_old_clusters"], work.user_id, version - self._settings.cluster_versions_kept)
        await tx.execute(QUERIES["drop_old_neighbours"], work.user_id, version)
        await tx.copy_records_to_table(
            "cluster_history",
            records=history_rows(found, made.labels, work.user_id, version, at, caused_by),
            columns=HISTORY_COLUMNS,
        )
        await tx.execute(
            QUERIES["drop_old_history"],
            work.user_id,
            version - self._settings.cluster_history_versions,
            [one.cluster_id for one in found.clusters],
        )

    async def _store_unbuilt(self, tx: Connection, work: Work, now_ms: int) -> None:
        """A skip for want of novelty counts as a look (R0.34); nothing else of the user changes."""
        snapshot = work.snapshot
        checked_ms = now_ms if work.reason == "nothing_new" else None
        if work.reason != "locked":  # the row belongs to the request that holds the lock
            checked_at = None if checked_ms is None else to_datetime(checked_ms)
            await tx.execute(QUERIES["finish_unbuilt"], work.user_id, checked_at, str(work.request))
        finished = _finished(
            work, now_ms,
            version=snapshot.cluster_version if snapshot else 0,
            hwm=snapshot.hwm if snapshot else {},
            clustered_ms=snapshot.facts.last_clustered_at if snapshot else None,
            checked_ms=checked_ms,
        )  # fmt: skip
        await outbox.add(tx, [self._row(REBUILD_FINISHED, finished, work, now_ms)])
        level = log.error if work.outcome == "failed" else log.info
        level("rebuild_" + work.outcome, user_id=work.user_id, reason=work.reason, request=str(work.request))

    def _row(self, topic: TopicName[EventT], event: EventT, work: Work, now_ms: int) -> outbox.OutboxRow:
        return outbox.event_row(self._around.codec, topic, event, source=_SOURCE, now_ms=now_ms, caused_by=work.request)


async def _read_snapshot(tx: Connection, user_id: str) -> Snapshot | None:
    user = await tx.fetchrow(QUERIES["rebuild_user"], user_id)
    if user is None:
        return None
    rows = await tx.fetch(QUERIES["rebuild_channels"], user_id)
    heads = {row["channel_id"]: row["head"] for row in rows}
    hwm = {row["channel_id"]: row["hwm"] for row in rows}
    # A row whose embedding is still being made holds back its channel, not its number (R0.14).
    upto = {
        row["channel_id"]: row["head"]
        if row["first_unembedded"] is None
        else min(row["head"], row["first_unembedded"] - 1)
        for row in rows
    }
    facts = UserFacts(
        plan=user["plan"],
        pending=sum(max(0, heads[channel] - hwm[channel]) for channel in heads),
        is_subscribed=bool(heads),
        last_active_at=_ms(user["last_active_at"]),
        last_clustered_at=_ms(user["last_clustered_at"]),
        last_checked_at=_ms(user["last_checked_at"]),
        last_enqueued_at=_ms(user["last_enqueued_at"]),
    )
    last = user["last_request"]
    return Snapshot(user["cluster_version"], facts, heads, hwm, upto, parse_position(last) if last else None)


async def _has_changed(tx: Connection, user_id: str, snapshot: Snapshot) -> bool:
    """Whether something happened since the last rebuild: novelty, a retraction, another set of channels.

    A version that says the same would cost every reader a 200 for nothing; `force` asks for it all the same. Another basis
    would show other clusters of the same insights: it waits for the next rebuild that has a reason of the user's own.
    """
    if snapshot.cluster_version == 0 or snapshot.facts.pending > 0:
        return True
    last = await tx.fetchrow(QUERIES["last_clusters"], user_id, snapshot.cluster_version)
    if last is None or set(orjson.loads(last["hwm"])) != set(snapshot.heads):
        return True
    return bool(await tx.fetchval(QUERIES["has_retractions_since"], sorted(snapshot.heads), last["updated_at"]))


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else to_ms(moment)


def _is_repeat(last: Position | None, request: Position) -> bool:
    """A request at or before the last one ended, in its partition, was answered already."""
    return last is not None and last[:2] == request[:2] and request.offset <= last.offset


def _finished(
    work: Work,
    now_ms: int,
    *,
    version: int,
    hwm: Mapping[str, int],
    clustered_ms: int | None,
    checked_ms: int | None = None,
) -> RebuildFinished:
    return {
        "user_id": work.user_id,
        "request_position": str(work.request),
        "outcome": work.outcome,
        "reason": work.reason,
        "cluster_version": version,
        "hwm": dict(hwm),
        "last_clustered_at": clustered_ms,
        "last_checked_at": checked_ms,
        "finished_at": now_ms,
    }
