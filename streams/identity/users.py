"""Folds a user's own events (plan, activity, subscriptions, erasure) into the stored state of the user.

Order is by broker time within one user, never by a client's `ts`: two clients may write to two partitions, and within a
partition broker time follows the offset. The later event wins; a repeat changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from highwater.schemas.feeds import (
    CLUSTERS_CURATED,
    PLAN_CHANGED,
    REBUILD_DEMANDED,
    SUBSCRIPTION_CHANGED,
    SUBSCRIPTIONS_REPLACED,
    USER_ACTIVE,
    USER_ERASED,
    ClustersCurated,
    PlanChanged,
    RebuildDemanded,
    SubscriptionChanged,
    SubscriptionsReplaced,
    UserActive,
    UserErased,
)
from highwater.schemas.topic_names import EventT, TopicName, event_of


@dataclass(frozen=True, slots=True)
class Subscription:
    """Whether a channel is subscribed, and the broker time (ms) of the event that set this."""

    subscribed: bool
    changed_ms: int


@dataclass(frozen=True, slots=True)
class User:
    """The stored state of a user; times in ms since 1970, None = never."""

    revision: int = 0
    plan: str = "free"
    plan_changed_ms: int = 0
    last_active_ms: int | None = None
    replaced_ms: int = 0
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)

    def is_subscribed(self, channel_id: str) -> bool:
        """Return whether the user subscribes to a channel."""
        known = self.subscriptions.get(channel_id)
        return known is not None and known.subscribed


UserEvent: TypeAlias = (
    SubscriptionChanged
    | SubscriptionsReplaced
    | UserActive
    | PlanChanged
    | RebuildDemanded
    | ClustersCurated
    | UserErased
)


@dataclass(frozen=True, slots=True)
class UserStep:
    """One of a user's events: its topic, its value, its broker time in ms, and its partition and offset."""

    topic: str
    value: UserEvent
    arrived_ms: int
    place: tuple[int, int] = (0, 0)

    def of(self, topic: TopicName[EventT]) -> EventT | None:
        """Return the value as an event of a topic; None if it belongs to another one."""
        return event_of(topic, self.topic, self.value)


@dataclass(frozen=True, slots=True)
class Folded:
    """A user after a batch, and what is to be published; `curated`: curations that no erasure has voided."""

    user: User
    touched: frozenset[str] = frozenset()  # channels whose subscription row is to be stored
    rebuild_demanded: bool = False
    rebuild_forced: bool = False
    erased: bool = False
    changed: bool = False  # whether anything is to be published
    curated: tuple[UserStep, ...] = ()


# A demand does not change the user, and an erasure may find nothing left to erase: both are published anyway.
_ALWAYS_TOLD = frozenset({REBUILD_DEMANDED, CLUSTERS_CURATED, USER_ERASED})
# Events about a user that is known from other events.
_ABOUT_KNOWN = frozenset({REBUILD_DEMANDED, CLUSTERS_CURATED})


def creates_user(topic: str) -> bool:
    """Return whether an event of this topic creates a user; a demand or a curation concerns a user known from other events."""
    return topic not in _ABOUT_KNOWN


def fold_user(user: User | None, steps: Iterable[UserStep], *, now_ms: int) -> Folded:
    """Apply a user's events in the order of broker time (stable, so offsets keep their order).

    `user` None: the user is unknown so far; a demand as the first event changes nothing.

    An event that repeats known facts moves their time, so that a later older event cannot undo them; it is stored and
    not published.
    """
    folded = Folded(user or User())
    is_known = user is not None
    for step in sorted(steps, key=lambda step: step.arrived_ms):
        is_known = is_known or creates_user(step.topic)
        if not is_known:
            continue
        before = folded
        folded = _apply(folded, step, now_ms)
        if step.topic in _ALWAYS_TOLD or _visible(folded) != _visible(before):
            revision = max(folded.user.revision + 1, step.arrived_ms)
            folded = replace(folded, user=replace(folded.user, revision=revision), changed=True)
    return folded


def _visible(folded: Folded) -> tuple[object, ...]:
    user = folded.user
    channels = {channel for channel, subscription in user.subscriptions.items() if subscription.subscribed}
    return user.plan, user.last_active_ms, channels, folded.erased


def _apply(folded: Folded, step: UserStep, now_ms: int) -> Folded:
    at = step.arrived_ms
    if active := step.of(USER_ACTIVE):
        # A client's clock may be ahead; nobody was active later than now.
        return _activate(folded, min(active["ts"], now_ms))
    if plan := step.of(PLAN_CHANGED):
        return _change_plan(folded, plan["plan"], at)
    if one := step.of(SUBSCRIPTION_CHANGED):
        return _subscribe(folded, {one["channel_id"]: one["subscribed"]}, at)
    if many := step.of(SUBSCRIPTIONS_REPLACED):
        return _replace_all(folded, frozenset(many["channels"]), at)
    if step.topic in _ABOUT_KNOWN:
        return _demand(folded, step)
    if step.of(USER_ERASED):
        gone = frozenset(folded.user.subscriptions) | folded.touched
        return Folded(User(revision=folded.user.revision), touched=gone, erased=True)
    raise ValueError(f"{step.topic} is not a topic of users")


def _demand(folded: Folded, step: UserStep) -> Folded:
    demand = step.of(REBUILD_DEMANDED)
    if demand is None:
        # The worker decides whether the clusters change; a curation without effect is skipped.
        return replace(folded, rebuild_demanded=True, curated=(*folded.curated, step))
    # Without an explicit choice a demand is always served (R0.35).
    forced = folded.rebuild_forced or demand.get("force", False) or not demand.get("if_new", False)
    return replace(folded, rebuild_demanded=True, rebuild_forced=forced)


def _activate(folded: Folded, active_ms: int) -> Folded:
    if folded.user.last_active_ms is not None and active_ms <= folded.user.last_active_ms:
        return folded
    return replace(folded, user=replace(folded.user, last_active_ms=active_ms))


def _change_plan(folded: Folded, plan: str, at: int) -> Folded:
    if at < folded.user.plan_changed_ms:
        return folded
    return replace(folded, user=replace(folded.user, plan=plan, plan_changed_ms=at))


def _subscribe(folded: Folded, wanted_channels: Mapping[str, bool], at: int) -> Folded:
    """Unsubscribing from an unknown channel is stored too: an older subscription may still come."""
    user = folded.user
    if at < user.replaced_ms:
        return folded
    changes = {
        channel: Subscription(subscribed, at)
        for channel, subscribed in wanted_channels.items()
        if (known := user.subscriptions.get(channel)) is None or at >= known.changed_ms
    }
    return replace(
        folded,
        user=replace(user, subscriptions={**user.subscriptions, **changes}),
        touched=folded.touched | frozenset(changes),
    )


def _replace_all(folded: Folded, channels: frozenset[str], at: int) -> Folded:
    if at < folded.user.replaced_ms:
        return folded
    wanted = dict.fromkeys(folded.user.subscriptions, False) | dict.fromkeys(channels, True)
    after = _subscribe(folded, wanted, at)
    return replace(after, user=replace(after.user, replaced_ms=at))
