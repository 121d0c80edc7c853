"""Rebuilds a user's clusters: judged again with PostgreSQL's numbers, on a snapshot, stored in one transaction.

Law: the high-water mark moves to the heads read before the data set was, so what arrives during a rebuild stays
pending (R0.37); the version grows by exactly one, guarded by the version read at the start; every request ends in an
event (rebuilt, skipped or failed), written with its effects (R0.36, R0.38).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import orjson

from connectors import outbox
from connectors.kafka.handler import Surroundings
from connectors.kafka.records import DeadLetter, Event
from connectors.stores.postgres import QUERIES, Connection, transaction
from connectors.stores.redis import RedisLink
from connectors.workers.pool import ClusterJob, ClusterPool, ClusterResult, RebuildInputError
from connectors.workers.userlock import UserLock
from schemas.errors import HighwaterError
from schemas.positions import Position, parse_position
from streams.clock import monotonic_seconds, to_datetime, to_ms
from streams.feeds.policy import Policy
from streams.feeds.rules import Trigger, UserFacts, reason_to_skip
from streams.retry import REBUILD
from streams.settings import Settings
from streams.telemetry import REBUILD_INSIGHTS, REBUILD_RETRIES, REBUILD_SECONDS, REBUILDS, get_log

log = get_log("rebuild")

REQUESTED, FINISHED, REBUILT, BUMPED = (
    "feeds.rebuild-requested",
    "feeds.rebuild-finished",
    "feeds.clusters-rebuilt",
    "cache.version-bumped",
)
_SOURCE = "/connectors/workers/rebuild"
_DAY_MS = 86_400_000
# An insight whose time lies further ahead than this is not yet in any window; its novelty still counts once.
_AHEAD_MS = _DAY_MS
# What labels and summaries look at; a longer text tells no more of its subject.
_TEXT_CHARACTERS = 2_000


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
class Work:
    """A request and what became of it; applied as it is."""

    user_id: str
    request: Position
    outcome: str  # rebuilt, skipped, failed or repeated
    reason: str = ""
    snapshot: Snapshot | None = None
    result: ClusterResult | None = None
    dataset_size: int = 0
    omitted: int = 0
    seconds: float = 0.0
    lock: UserLock | None = field(default=None, compare=False)


class RebuildWorker:
    """Handles `rebuild-requested`; clustering runs in the pool's processes, so the event loop is never blocked."""

    group = "rebuild"
    topics: tuple[str, ...] = (REQUESTED,)

    def __init__(
        self, around: Surroundings, settings: Settings, policy: Policy, redis: RedisLink, pool: ClusterPool
    ) -> None:
        self._around = around
        self._settings = settings
        self._policy = policy
        self._redis = redis
        self._pool = pool
        # As many at once as there are processes: a request that waits in Kafka can be taken by another worker.
        self.batch_max = settings.rebuild_processes

    # -- gather and decide, outside the transaction ------------------------------------------------------------------

    async def prepare(self, events: Sequence[Event]) -> list[Work]:
        """Do the work of each request; what is stored of it comes in `apply`."""
        works = await asyncio.gather(*(self._work(event) for event in events), return_exceptions=True)
        failed = next((work for work in works if isinstance(work, BaseException)), None)
        done = [work for work in works if isinstance(work, Work)]
        if failed is not None:
            await self.settle(done)
            raise failed
        return done

    async def _work(self, event: Event) -> Work:
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
        """Above the longest rebuild with all its attempts and waits, so that no live worker loses its lock (R0.26)."""
        attempts = REBUILD.attempts_max or 1
        return self._settings.rebuild_seconds_max * attempts + 60

    async def _judge(self, event: Event) -> Work:
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
            rows = await self._read_insights(snapshot, now_ms)  # read again at each attempt: cheap beside clustering
            omitted = rows[0]["total"] - len(rows) if rows else 0
            try:
                result = await self._pool.run(_job(rows))
            except HighwaterError as error:
                wait_ms = REBUILD.wait_ms(attempt) if error.retriable else None
                log.warning("rebuild_attempt_failed", user_id=user_id, attempt=attempt, reason=str(error))
                if wait_ms is None:
                    return Work(user_id, request, "failed", str(error), snapshot, dataset_size=len(rows))
                attempt += 1
                REBUILD_RETRIES.inc()
                await asyncio.sleep(wait_ms / 1000)
                continue
            return Work(user_id, request, "rebuilt", "", snapshot, result, len(rows), omitted)

    async def _read_insights(self, snapshot: Snapshot, now_ms: int) -> list[Any]:
        """The window plus all novelty up to the snapshot, newest first up to the bound, in the order of the log (R0.35)."""
        channels = sorted(snapshot.upto)
        window_ms = int(self._settings.window_days * _DAY_MS)
        async with transaction(self._around.pool) as tx:
            return list(
                await tx.fetch(
                    QUERIES["rebuild_insights"],
                    channels,
                    [snapshot.hwm[channel] for channel in channels],
                    [snapshot.upto[channel] for channel in channels],
                    to_datetime(now_ms - window_ms),
                    to_datetime(now_ms + _AHEAD_MS),
                    _TEXT_CHARACTERS,
                    self._settings.rebuild_insights_max,
                )
            )

    # -- apply, in the transaction that moves the positions ----------------------------------------------------------

    async def apply(self, tx: Connection, events: Sequence[Event], prepared: Sequence[Work]) -> Sequence[DeadLetter]:
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
        snapshot, result = work.snapshot, work.result
        assert snapshot is not None and result is not None  # noqa: PT018 - what "rebuilt" means
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
        await tx.execute(
            QUERIES["insert_clusters"],
            work.user_id, version, _clusters_json(result), result.noise_count, work.dataset_size, work.omitted,
            orjson.dumps(upto, option=orjson.OPT_SORT_KEYS).decode(), to_datetime(now_ms), str(work.request),
        )  # fmt: skip
        await tx.execute(QUERIES["drop_old_clusters"], work.user_id, version - self._settings.cluster_versions_kept)
        bumped = await tx.fetchrow(
            QUERIES["bump_version"], f"clusters:{work.user_id}", str(work.request), to_datetime(now_ms)
        )
        rebuilt = {
            "user_id": work.user_id, "cluster_version": version, "request_position": str(work.request), "hwm": upto,
            "dataset_size": work.dataset_size, "omitted": work.omitted, "clusters": len(result.clusters),
            "noise": result.noise_count, "rebuilt_at": now_ms,
        }  # fmt: skip
        bump = {
            "key": f"clusters:{work.user_id}", "version": bumped["version"], "etag": bumped["etag"],
            "caused_by": str(work.request), "bumped_at": now_ms,
        }  # fmt: skip
        finished = _finished(work, now_ms, version=version, hwm=upto, clustered_ms=now_ms)
        await outbox.add(
            tx,
            [
                self._row(topic, event, work, now_ms)
                for topic, event in ((FINISHED, finished), (REBUILT, rebuilt), (BUMPED, bump))
            ],
        )
        REBUILD_SECONDS.observe(work.seconds)
        REBUILD_INSIGHTS.observe(work.dataset_size)
        log.info(
            "rebuilt", user_id=work.user_id, cluster_version=version, bumped_version=bumped["version"],
            dataset_size=work.dataset_size, omitted=work.omitted, clusters=len(result.clusters), noise=result.noise_count,
            seconds=round(work.seconds, 3), request=str(work.request),
        )  # fmt: skip

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
        await outbox.add(tx, [self._row(FINISHED, finished, work, now_ms)])
        level = log.error if work.outcome == "failed" else log.info
        level("rebuild_" + work.outcome, user_id=work.user_id, reason=work.reason, request=str(work.request))

    def _row(self, topic: str, event: Mapping[str, Any], work: Work, now_ms: int) -> outbox.OutboxRow:
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
    """Whether a rebuild could show anything else than the last one: novelty, a retraction, another set of channels.

    A version that says the same would cost every reader a 200 for nothing; `force` asks for it all the same.
    """
    if snapshot.cluster_version == 0 or snapshot.facts.pending > 0:
        return True
    last = await tx.fetchrow(QUERIES["last_clusters"], user_id, snapshot.cluster_version)
    if last is None or set(orjson.loads(last["hwm"])) != set(snapshot.heads):
        return True
    return bool(await tx.fetchval(QUERIES["has_retractions_since"], sorted(snapshot.heads), last["updated_at"]))


def _ms(moment: Any) -> int | None:
    return None if moment is None else to_ms(moment)


def _is_repeat(last: Position | None, request: Position) -> bool:
    """A request at or before the last one ended, in its partition, was answered already."""
    return last is not None and last[:2] == request[:2] and request.offset <= last.offset


def _job(rows: Sequence[Any]) -> ClusterJob:
    if len({len(row["embedding"]) for row in rows}) > 1:
        raise RebuildInputError("the user's insights have vectors of different lengths; embed the older ones again")
    vectors = np.frombuffer(b"".join(row["embedding"] for row in rows), dtype="<f4")
    return ClusterJob(
        vectors=np.ascontiguousarray(
            vectors.reshape(len(rows), -1) if rows else vectors.reshape(0, 0), dtype=np.float32
        ),
        texts=tuple(row["text"] for row in rows),
        insight_ids=tuple(row["insight_id"] for row in rows),
    )


def _clusters_json(result: ClusterResult) -> str:
    """The clusters as they are served (contract, `GET /api/users/{user}/clusters`)."""
    clusters = [{**asdict(one.description), "summary": one.summary} for one in result.clusters]
    return orjson.dumps(clusters).decode()


def _finished(
    work: Work,
    now_ms: int,
    *,
    version: int,
    hwm: Mapping[str, int],
    clustered_ms: int | None,
    checked_ms: int | None = None,
) -> dict[str, Any]:
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
