"""Rebuilds a user's clusters: judged again with PostgreSQL's numbers, on a snapshot, stored in one transaction.

Invariant: the high-water mark moves to the heads read before the data set, so insights that arrive during a rebuild
stay pending (R0.37); the version grows by exactly one, guarded by the version read at the start, or stays if the
rebuilt one is equal; every request ends in an event (rebuilt, skipped, failed or delayed), written with its
effects (R0.36, R0.38).

A rebuild is judged by what it would change: by new insights that can be clustered now (the snapshot), and by the
current state of the last version's data set. So neither missing vectors nor an unavailable service leads to a version
that shows less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from highwater.connectors.feeds import redactions
from highwater.connectors.feeds.curations import positions_of, read_curations
from highwater.connectors.feeds.pool import REBUILD_LIMIT, START_LIMIT, ClusterPool, RebuildMachineError
from highwater.connectors.feeds.snapshots import (
    Snapshot,
    account_for,
    is_shown_otherwise,
    read_snapshot,
    read_unread,
)
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.titles import ClusterTitles
from highwater.connectors.feeds.userlock import UserLock
from highwater.connectors.feeds.windows import (
    HISTORY_COLUMNS,
    Dataset,
    clusters_json,
    evolved_events,
    found_json,
    history_rows,
    is_same,
    labels_of,
    last_version_of,
    outside_json,
    read_dataset,
)
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler, ProcessContext
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
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.streams.clock import monotonic_seconds, to_datetime
from highwater.streams.feeds.curations import Curation, wish_of
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.readiness import Ready, readiness, waits_for_vectors
from highwater.streams.feeds.rules import (
    ACCOUNTED_FOR,
    DELAYED,
    NOTHING_NEW,
    VECTORS_AWAITED,
    WAIT_FOR_MORE,
    Trigger,
    reason_to_skip,
    rebuild_deadline_ms,
)
from highwater.streams.feeds.starts import wait_ms_after_machine
from highwater.streams.feeds.versions import NewVersion, Window
from highwater.streams.retry import REBUILD
from highwater.streams.settings import Settings
from highwater.streams.telemetry import REBUILD_INSIGHTS, REBUILD_RETRIES, REBUILD_SECONDS, REBUILDS, get_log

log = get_log("rebuild")

_SOURCE = "/connectors/workers/rebuild"
# Reasons that are counted apart: a request that waits for vectors is delayed, but nothing failed.
_COUNTED_REASONS = frozenset({"unchanged", VECTORS_AWAITED})
_DAY_MS = 86_400_000
# An insight whose time lies further ahead than this is not in any window yet; it still counts as new once.
_AHEAD_MS = _DAY_MS
# Above the longest rebuild with all its attempts and waits, so that no live worker loses its lock (R0.26); one whose
# request has ended blocks nobody. Titles are requested once, by the successful attempt; a minute is for reading and
# storing.
_ATTEMPT_SECONDS_MAX = START_LIMIT.total_seconds_max + REBUILD_LIMIT.total_seconds_max
_LOCK_SECONDS = (REBUILD.attempts_max or 1) * _ATTEMPT_SECONDS_MAX + CALL_SECONDS_MAX + 60


@dataclass(frozen=True, slots=True)
class RebuiltVersion:
    """A version, its data set, and the labels of its clusters and of those that ended with it.

    `is_same`: it equals the last one, so it is not stored. `is_regrouped`: the last one was of another embedding model
    version.
    """

    version: NewVersion
    dataset: Dataset
    curations: tuple[Curation, ...]
    labels: Mapping[str, str]
    is_same: bool
    is_regrouped: bool


@dataclass(frozen=True, slots=True)
class Work:
    """A request and its outcome, to be applied.

    `ready`: what the version is made from.
    """

    user_id: str
    request: Position
    asked: RebuildRequested
    outcome: str  # rebuilt, skipped, failed, delayed or repeated
    reason: str = ""
    snapshot: Snapshot | None = None
    made: RebuiltVersion | None = None
    ready: Ready | None = None
    seconds: float = 0.0
    lock: UserLock | None = field(default=None, compare=False)


class RebuildWorker(Handler[RebuildRequested, Sequence[Work]]):
    """Handles `rebuild-requested`; clustering runs in the pool's processes, so the event loop is never blocked."""

    group = "rebuild"
    topics = (REBUILD_REQUESTED,)

    def __init__(
        self,
        context: ProcessContext,
        settings: Settings,
        policy: Policy,
        redis: RedisLink,
        pool: ClusterPool,
        titles: ClusterTitles | None = None,
        *,
        basis_id: str | None = None,
    ) -> None:
        """Initialize the worker. `basis_id`: of the configured model; None: the built-in embedder."""
        self._context = context
        self._settings = settings
        self._policy = policy
        self._redis = redis
        self._pool = pool
        self._titles = titles or ClusterTitles(None)
        self._basis_id = basis_id
        # As many at once as there are processes: another worker can process a request that waits in Kafka.
        self.batch_max = settings.rebuild_processes or 1

    # -- gather and decide, outside the transaction ------------------------------------------------------------------

    async def prepare(self, events: Sequence[Event[RebuildRequested]]) -> list[Work]:
        """Do the work of each request; `apply` stores the results."""
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
        lock = UserLock(self._redis, self._context.pool, user_id, token=str(request))
        if not await lock.acquire(_LOCK_SECONDS):
            # Another request of this user is in progress: acknowledged, dropped and reported (R0.32).
            return Work(user_id, request, event.value, "skipped", "locked")
        try:
            work = await self._judge(event)
        except BaseException:
            await lock.release()
            raise
        seconds = monotonic_seconds() - started
        return replace(work, lock=lock, seconds=seconds)

    async def _judge(self, event: Event[RebuildRequested]) -> Work:
        user_id, request, value = event.value["user_id"], event.record.position, event.value
        now_ms = self._context.clock()
        since, until = self._window(now_ms)
        async with transaction(self._context.pool) as tx:
            snapshot = await read_snapshot(tx, user_id, since)
            if snapshot is None:
                return Work(user_id, request, value, "skipped", "unknown_user")
            if _is_repeat(snapshot.last_request, request):
                return Work(user_id, request, value, "repeated")
            ready, unread = await self._readiness(tx, snapshot, now_ms)
            if ready is not None:
                snapshot = snapshot.up_to(ready.upto)
                if snapshot.is_preliminary and not ready.is_preliminary:
                    snapshot = replace(snapshot, facts=replace(snapshot.facts, is_changed=True))
            trigger, bounds = Trigger(value["trigger"]), (since, until, self._settings.rebuild_insights_max)
            reason = reason_to_skip(trigger, snapshot.facts, self._policy, now_ms, is_forced=False)
            # Checked only where it matters: it reads as many ids as a version has.
            if reason is not None and await is_shown_otherwise(tx, user_id, snapshot, *bounds):
                facts = replace(snapshot.facts, is_changed=True)
                reason = reason_to_skip(trigger, facts, self._policy, now_ms, is_forced=False)
            is_manual = trigger is Trigger.MANUAL
            more_come = waits_for_vectors(unread, snapshot.vectors_awaited_since, now_ms) and (
                is_manual or reason in WAIT_FOR_MORE
            )
            if reason is not None and not (is_manual and value["forced"]) and not more_come:
                return Work(user_id, request, value, "skipped", reason, snapshot)
            if ready is None or more_come:
                return Work(user_id, request, value, DELAYED, VECTORS_AWAITED, snapshot)
            deadline = to_datetime(now_ms + rebuild_deadline_ms(self._settings.rebuild_seconds_max))
            await tx.execute(QUERIES["take_rebuild"], user_id, str(request), deadline, to_datetime(value["planned_at"]))
        work = Work(user_id, request, value, "failed", "", snapshot, ready=ready)
        return await self._cluster(work, snapshot, ready, now_ms)

    async def _readiness(self, tx: Connection, snapshot: Snapshot, now_ms: int) -> tuple[Ready | None, int]:
        """Return what the version can be made from, None if it waits; and how many insights lack a vector of the model."""
        if self._basis_id is None:
            return Ready(None, snapshot.upto), 0
        span = snapshot.span(snapshot.upto, *self._window(now_ms))
        unread, last = await read_unread(tx, span, self._basis_id), None
        if unread.total and snapshot.basis_id is not None and not snapshot.is_preliminary:
            last = snapshot.basis_id, await read_unread(tx, span, snapshot.basis_id)
        known = snapshot.hwm, snapshot.upto, snapshot.vectors_awaited_since
        return readiness(self._basis_id, unread, last, *known, now_ms), unread.total

    def _window(self, now_ms: int) -> tuple[datetime, datetime]:
        return to_datetime(now_ms - int(self._settings.window_days * _DAY_MS)), to_datetime(now_ms + _AHEAD_MS)

    async def _cluster(self, work: Work, snapshot: Snapshot, ready: Ready, now_ms: int) -> Work:
        """Do the work; `work` records what failed otherwise."""
        user_id, began = work.user_id, monotonic_seconds()
        attempt = 1
        while True:
            # Read again at each attempt: cheap compared with clustering.
            dataset, row, curations = await self._read(user_id, snapshot, ready.basis_id, now_ms)
            last = last_version_of(row, dataset.basis_id)
            number = snapshot.version_before + 1
            window = Window(number, dataset.vectors, dataset.texts, dataset.insight_ids, last, curations)
            try:
                version = await self._pool.run(window)
            except HighwaterError as error:
                log.warning("rebuild_attempt_failed", user_id=user_id, attempt=attempt, reason=str(error))
                if isinstance(error, RebuildMachineError):
                    wait_ms, outcome = wait_ms_after_machine(attempt, monotonic_seconds() - began), DELAYED
                else:
                    wait_ms, outcome = REBUILD.wait_ms(attempt) if error.retriable else None, "failed"
                if wait_ms is None:
                    return replace(work, outcome=outcome, reason=str(error))
                attempt += 1
                REBUILD_RETRIES.inc()
                await asyncio.sleep(wait_ms / 1000)
                continue
            if dataset.left_out:
                log.warning("insights_left_out", user_id=user_id, count=dataset.left_out, basis_id=dataset.basis_id)
            texts = dict(zip(dataset.insight_ids, dataset.texts, strict=True))
            version = await self._titles.titled(version, number, last, texts, wish_of(curations))
            is_like_last = is_same(version, dataset.basis_id, dataset.left_out, row, last)
            is_regrouped = row is not None and not row["preliminary"] and row["basis_id"] != dataset.basis_id
            labels = labels_of(version, last)
            made = RebuiltVersion(version, dataset, curations, labels, is_like_last, is_regrouped)
            return replace(work, outcome="rebuilt", reason="unchanged" if is_like_last else "", made=made)

    async def _read(
        self, user_id: str, snapshot: Snapshot, basis_id: str | None, now_ms: int
    ) -> tuple[Dataset, Mapping[str, Any] | None, tuple[Curation, ...]]:
        span = snapshot.span(snapshot.upto, *self._window(now_ms))
        async with transaction(self._context.pool) as tx:
            dataset = await read_dataset(tx, span, self._settings.rebuild_insights_max, basis_id)
            row = await tx.fetchrow(QUERIES["last_version"], user_id, snapshot.cluster_version)
            return dataset, await redactions.redacted_row(tx, row), await read_curations(tx, user_id)

    # -- apply, in the transaction that moves the positions ----------------------------------------------------------

    async def apply(
        self, tx: Connection, events: Sequence[Event[RebuildRequested]], prepared: Sequence[Work]
    ) -> Sequence[DeadLetter]:
        """Store outcomes and their events."""
        for work in sorted(prepared, key=lambda work: work.user_id):
            now_ms = self._context.clock()
            if work.outcome == "rebuilt":
                await self._store_rebuilt(tx, work, now_ms)
            elif work.outcome != "repeated":
                await self._store_unbuilt(tx, work, now_ms)
            REBUILDS.labels(work.reason if work.reason in _COUNTED_REASONS else work.outcome).inc()
        return []

    async def settle(self, prepared: Sequence[Work]) -> None:
        """Release all locks after any outcome (R0.38)."""
        for work in prepared:
            if work.lock is not None:
                await work.lock.release()

    async def _store_rebuilt(self, tx: Connection, work: Work, now_ms: int) -> None:
        snapshot, made = work.snapshot, work.made
        assert snapshot is not None and made is not None  # noqa: PT018 - what "rebuilt" means
        await redactions.share(tx)
        upto = dict(snapshot.upto)
        pending = sum(max(0, snapshot.heads[channel] - seq) for channel, seq in upto.items())
        version = await tx.fetchval(
            QUERIES["finish_rebuilt"],
            work.user_id,
            snapshot.cluster_version,
            to_datetime(now_ms),
            pending,
            str(work.request),
            snapshot.cluster_version if made.is_same else snapshot.version_before + 1,
            snapshot.curated_revision,
        )
        if version is None:
            # The user was erased, or another rebuild was stored meanwhile: this one is void.
            await self._store_unbuilt(tx, replace(work, outcome="skipped", reason="overtaken", made=None), now_ms)
            return
        await account_for(tx, work.user_id, snapshot, upto)
        await self._mark(tx, work.user_id, snapshot, now_ms)
        finished = _finished(work, now_ms, version=version, hwm=upto, clustered_ms=now_ms)
        await _answer_demands(tx, work, version, now_ms)
        if made.is_same:
            await outbox.add(tx, [self._row(REBUILD_FINISHED, finished, work, now_ms)])
            log.info("rebuilt_unchanged", user_id=work.user_id, cluster_version=version, request=str(work.request))
            return
        await self._store_version(tx, work, made, version, upto, to_datetime(now_ms))
        bump = await next_version(tx, f"clusters:{work.user_id}", str(work.request), now_ms)
        found, dataset = made.version, made.dataset
        rebuilt = ClustersRebuilt(
            user_id=work.user_id, cluster_version=version, request_position=str(work.request), hwm=upto,
            dataset_size=len(dataset), omitted=dataset.omitted, clusters=len(found.clusters), noise=found.noise_count,
            rebuilt_at=now_ms, basis_id=dataset.basis_id, left_out=dataset.left_out,
            curations=positions_of(made.curations),
        )  # fmt: skip
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

    async def _mark(self, tx: Connection, user_id: str, snapshot: Snapshot, now_ms: int) -> None:
        """Date the marks that moved: from now on their insights stay for at least the window's length."""
        moved = [channel for channel, seq in snapshot.upto.items() if seq > snapshot.hwm[channel]]
        at = to_datetime(now_ms)
        await tx.execute(QUERIES["mark_hwm"], user_id, moved, [snapshot.upto[channel] for channel in moved], at)
        await tx.execute(QUERIES["drop_old_marks"], user_id, self._window(now_ms)[0])

    async def _store_version(
        self, tx: Connection, work: Work, made: RebuiltVersion, version: int, upto: Mapping[str, int], at: datetime
    ) -> None:
        found, dataset, caused_by = made.version, made.dataset, str(work.request)
        told_since = version - self._settings.cluster_history_versions
        if work.snapshot is not None and work.snapshot.cluster_version == 0:
            told_since = max(told_since, work.snapshot.version_before)  # what an erasure removed is not reported
        if work.snapshot is not None and work.snapshot.is_preliminary:
            told_since = version  # nor what a preliminary version became
        await tx.execute(
            QUERIES["insert_clusters"],
            work.user_id, version, clusters_json(found), found.noise_count, len(dataset), dataset.omitted,
            orjson.dumps(upto, option=orjson.OPT_SORT_KEYS).decode(), at, caused_by, dataset.basis_id,
            outside_json(found), found.neighbours, dataset.left_out, told_since, found_json(found), positions_of(made.curations),
            work.ready is not None and work.ready.is_preliminary, made.is_regrouped,
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
        kept = self._settings.cluster_versions_kept
        await redactions.tag_version(tx, work.user_id, version, found, caused_by, versions_kept=kept)

    async def _store_unbuilt(self, tx: Connection, work: Work, now_ms: int) -> None:
        """Store a skip: one for want of new insights counts as a check (R0.34); nothing else of the user changes."""
        snapshot = work.snapshot
        checked_ms = now_ms if work.reason == NOTHING_NEW else None
        # The cooldown counts from every request by anyone (R0.9), except for one that the machine failed.
        asked_at = to_datetime(work.asked["planned_at"])
        if work.outcome == DELAYED:
            before_ms, at = work.asked["last_enqueued_at"], to_datetime(now_ms)
            before = None if before_ms is None else to_datetime(before_ms)
            given_back = work.user_id, str(work.request), before, at
            if work.reason == VECTORS_AWAITED:
                await tx.execute(QUERIES["await_vectors"], *given_back)
            else:
                await tx.execute(QUERIES["delay_rebuild"], *given_back, work.reason)
        elif work.reason == "locked":  # the row belongs to the request that holds the lock
            await tx.execute(QUERIES["note_enqueued"], work.user_id, asked_at)
        else:
            checked_at = None if checked_ms is None else to_datetime(checked_ms)
            await tx.execute(QUERIES["finish_unbuilt"], work.user_id, checked_at, str(work.request), asked_at)
        if snapshot is not None and work.reason in ACCOUNTED_FOR:
            await account_for(tx, work.user_id, snapshot, snapshot.hwm)
        if work.outcome != DELAYED:
            await _answer_demands(tx, work, snapshot.cluster_version if snapshot else 0, now_ms)
        finished = _finished(
            work, now_ms,
            version=snapshot.cluster_version if snapshot else 0,
            hwm=snapshot.hwm if snapshot else {},
            clustered_ms=snapshot.facts.last_clustered_at if snapshot else None,
            checked_ms=checked_ms,
        )  # fmt: skip
        await outbox.add(tx, [self._row(REBUILD_FINISHED, finished, work, now_ms)])
        level = {"failed": log.error, DELAYED: log.warning}.get(work.outcome, log.info)
        if work.reason == VECTORS_AWAITED:
            level = log.info
        level("rebuild_" + work.outcome, user_id=work.user_id, reason=work.reason, request=str(work.request))

    def _row(self, topic: TopicName[EventT], event: EventT, work: Work, now_ms: int) -> outbox.OutboxRow:
        return outbox.event_row(
            self._context.codec, topic, event, source=_SOURCE, now_ms=now_ms, caused_by=work.request
        )


async def _answer_demands(tx: Connection, work: Work, version: int, now_ms: int) -> None:
    """Store the outcome for those who demanded the rebuild."""
    upto = work.asked["demanded_revision"]
    if upto:
        outcome, reason = ("unchanged", "") if work.reason == "unchanged" else (work.outcome, work.reason)
        at = to_datetime(now_ms)
        await tx.execute(QUERIES["answer_demands"], work.user_id, upto, outcome, reason, version, str(work.request), at)


def _is_repeat(last: Position | None, request: Position) -> bool:
    """Return whether the request was answered: it is at or before the last one that ended, in its partition."""
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
    is_delayed = work.outcome == DELAYED
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
        "retractions": dict(work.snapshot.retractions) if work.snapshot and _accounts(work) else None,
        "last_enqueued_at": work.asked["last_enqueued_at"] if is_delayed else None,
        "demanded_revision": work.asked["demanded_revision"] if is_delayed else 0,
        "forced": work.asked["forced"] if is_delayed else False,
    }


def _accounts(work: Work) -> bool:
    return work.outcome == "rebuilt" or work.reason in ACCOUNTED_FOR
