"""The sink of users: plans, activity, subscriptions, demands, curations and erasures, folded per user in the order of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.identity import erasures
from highwater.connectors.identity.curations import store_curations
from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.pages.versions import end_versions
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import (
    CLUSTERS_CURATED,
    PLAN_CHANGED,
    REBUILD_DEMANDED,
    SUBSCRIPTION_CHANGED,
    SUBSCRIPTIONS_REPLACED,
    USER_ACTIVE,
    USER_CHANGED,
    USER_ERASED,
    UserChanged,
)
from highwater.schemas.positions import Cause, Position
from highwater.schemas.topic_names import event_of
from highwater.streams.clock import Clock, to_datetime, to_ms_or_none
from highwater.streams.identity.users import Folded, Subscription, User, UserEvent, UserStep, creates_user, fold_user
from highwater.streams.telemetry import DEMANDS_SKIPPED, get_log
from highwater.streams.validation import check_event

# Users that one log line names.
_NAMED_MAX = 20
_log = get_log("users")


class Demanded(NamedTuple):
    """A demand for a rebuild, and whether it accepts a newer embedding model version as the only change."""

    record: Record
    is_forced: bool


class Prepared(NamedTuple):
    """Valid events of a batch by user, the last event, the last erasure and the demands of each, and refused events."""

    steps: Mapping[str, list[UserStep]]
    causes: Mapping[str, Position]
    erasures: Mapping[str, Cause]
    demands: Mapping[str, list[Demanded]]
    dead: list[DeadLetter]


class UsersSink(Handler[UserEvent, Prepared]):
    """Stores one row per user and one per subscription; publishes one `user-changed` per user and batch."""

    group = "users"
    topics = (
        SUBSCRIPTION_CHANGED,
        SUBSCRIPTIONS_REPLACED,
        USER_ACTIVE,
        PLAN_CHANGED,
        REBUILD_DEMANDED,
        CLUSTERS_CURATED,
        USER_ERASED,
    )
    # Each user of a batch is a row lock held until its end; 2,000 keeps that under a second.
    batch_max = 2_000

    def __init__(self, codec: Codec, clock: Clock, erasure: Sequence[ErasureStep], *, dimensions: int) -> None:
        """`erasure` are the steps of the slices, in this order; `dimensions` of a vector."""
        self._codec = codec
        self._erasure = erasure
        self._clock = clock
        self._dimensions = dimensions

    async def prepare(self, events: Sequence[Event[UserEvent]]) -> Prepared:
        """Check the events and group them by user."""
        steps: dict[str, list[UserStep]] = defaultdict(list)
        causes: dict[str, Position] = {}
        erasures: dict[str, Cause] = {}
        demands: dict[str, list[Demanded]] = defaultdict(list)
        dead = []
        for record, value in events:
            try:
                check_event(record.topic, value, embedding_dimensions=self._dimensions)
            except InvalidEventError as error:
                dead.append(DeadLetter(record, error.reason, str(error)))
                continue
            steps[value["user_id"]].append(UserStep(record.topic, value, record.arrived_ms, record.position[1:]))
            causes[value["user_id"]] = record.position
            if (demand := event_of(REBUILD_DEMANDED, record.topic, value)) is not None:
                demands[value["user_id"]].append(Demanded(record, demand.get("force", False)))
            if record.topic == USER_ERASED:
                cause = Cause(record.arrived_ms, str(record.position))
                erasures[value["user_id"]] = max(cause, erasures.get(value["user_id"], cause), key=lambda c: c.order)
        return Prepared(steps, causes, erasures, demands, dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[UserEvent]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Read what is stored under the users' locks, fold, store the changes."""
        if not prepared.steps:
            return prepared.dead
        created, users = await _load_users(tx, prepared.steps)
        now_ms = self._clock()
        folds = {
            user_id: fold_user(None if user_id in created else user, prepared.steps[user_id], now_ms=now_ms)
            for user_id, user in users.items()
        }
        stored = {u: folded for u, folded in folds.items() if folded.changed or folded.user != users[u]}
        changed = {u: folded for u, folded in stored.items() if folded.changed}
        erased = {user_id: prepared.erasures[user_id] for user_id, folded in changed.items() if folded.erased}
        if erased:
            await self._erase(tx, erased, now_ms)
        await _store_users(tx, stored, prepared.causes)
        await _store_subscriptions(tx, stored)
        await _store_demands(tx, changed, prepared.demands)
        await store_curations(tx, changed)
        rows = [
            self._row(user_id, users[user_id], folded, prepared.causes[user_id], now_ms)
            for user_id, folded in changed.items()
        ]
        await outbox.add(tx, rows)
        for user_id, folded in changed.items():
            if folded.erased and folded.user == User(revision=folded.user.revision):
                await tx.execute(QUERIES["erase_stats_row"], user_id)
        return prepared.dead

    async def _erase(self, tx: Connection, erased: Mapping[str, Cause], now_ms: int) -> None:
        """Delete everything stored of users; the floor keeps versions growing if a user returns."""
        for step in self._erasure:
            await step.lock(tx, erased)
        await erasures.hold(tx)
        await erasures.remember(tx, erased)
        for step in self._erasure:
            await step.erase(tx, self._codec, erased, now_ms)
        for user_id in erased:
            await end_versions(tx, [key for step in self._erasure for key in step.resources(user_id)])
            for statement in _ERASED:
                await tx.execute(statement, user_id)

    def _row(self, user_id: str, before: User, folded: Folded, cause: Position, now_ms: int) -> OutboxRow:
        user = folded.user
        # An erasure voids all that was published before, so later facts are published again.
        told = (
            dict.fromkeys(folded.touched, False)
            if folded.erased
            else {c: before.is_subscribed(c) for c in folded.touched}
        )
        channels = sorted(c for c in told if folded.erased or told[c] != user.is_subscribed(c))
        now_subscribed = [c for c in channels if user.is_subscribed(c)]
        event = UserChanged(
            user_id=user_id,
            revision=user.revision,
            plan=user.plan if folded.erased or user.plan != before.plan else None,
            last_active_at=user.last_active_ms if user.last_active_ms != before.last_active_ms else None,
            subscribed=now_subscribed,
            unsubscribed=[c for c in channels if c not in now_subscribed],
            rebuild_demanded=folded.rebuild_demanded,
            rebuild_forced=folded.rebuild_forced,
            erased=folded.erased,
        )
        return outbox.event_row(
            self._codec, USER_CHANGED, event, source="/connectors/sinks/users", now_ms=now_ms, caused_by=cause
        )


async def _load_users(tx: Connection, steps: Mapping[str, Sequence[UserStep]]) -> tuple[set[str], dict[str, User]]:
    """Return the locked users of these events, and which of them are new. A demand alone creates no user: it is skipped."""
    user_ids = sorted(steps)
    told = [user_id for user_id in user_ids if any(creates_user(step.topic) for step in steps[user_id])]
    created = {row["user_id"] for row in await tx.fetch(QUERIES["ensure_users"], told)}
    rows = await tx.fetch(QUERIES["lock_users"], user_ids)
    skipped = set(user_ids) - {row["user_id"] for row in rows}
    if skipped:
        DEMANDS_SKIPPED.inc(len(skipped))
        _log.warning("a rebuild was requested for unknown users", users=sorted(skipped)[:_NAMED_MAX])
    subscriptions: dict[str, dict[str, Subscription]] = defaultdict(dict)
    for row in await tx.fetch(QUERIES["subscriptions_of_users"], user_ids):
        subscriptions[row["user_id"]][row["channel_id"]] = Subscription(row["subscribed"], row["changed_ms"])
    return created, {
        row["user_id"]: User(
            revision=row["revision"],
            plan=row["plan"],
            plan_changed_ms=row["plan_changed_ms"],
            last_active_ms=to_ms_or_none(row["last_active_at"]),
            replaced_ms=row["subscriptions_replaced_ms"],
            subscriptions=subscriptions[row["user_id"]],
        )
        for row in rows
    }


async def _store_users(tx: Connection, folds: Mapping[str, Folded], causes: Mapping[str, Position]) -> None:
    users = [folded.user for folded in folds.values()]
    await tx.execute(
        QUERIES["update_users"],
        list(folds),
        [user.revision for user in users],
        [user.plan for user in users],
        [user.plan_changed_ms for user in users],
        [None if user.last_active_ms is None else to_datetime(user.last_active_ms) for user in users],
        [user.replaced_ms for user in users],
        [str(causes[user_id]) for user_id in folds],
    )


async def _store_demands(tx: Connection, folds: Mapping[str, Folded], demands: Mapping[str, list[Demanded]]) -> None:
    """Store demands, so that their outcome can be queried; a later erasure voids them."""
    rows: list[tuple[Any, ...]] = [
        (str(record.position), user_id, folded.user.revision, to_datetime(record.arrived_ms), is_forced)
        for user_id, folded in folds.items()
        if folded.rebuild_demanded
        for record, is_forced in demands.get(user_id, ())
    ]
    if rows:
        await tx.execute(QUERIES["store_demands"], *map(list, zip(*rows, strict=True)))
        await tx.execute(QUERIES["drop_old_demands"], sorted({row[1] for row in rows}))


async def _store_subscriptions(tx: Connection, folds: Mapping[str, Folded]) -> None:
    rows: list[tuple[Any, ...]] = [
        (user_id, channel_id, subscription.subscribed, subscription.changed_ms)
        for user_id, folded in folds.items()
        for channel_id, subscription in folded.user.subscriptions.items()
        if channel_id in folded.touched
    ]
    if rows:
        await tx.execute(QUERIES["upsert_subscriptions"], *map(list, zip(*rows, strict=True)))


_ERASED = (QUERIES["erase_subscriptions"], QUERIES["erase_role"], QUERIES["erase_stats"])
