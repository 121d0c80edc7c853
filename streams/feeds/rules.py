"""When a user's clusters are rebuilt (R0.5 to R0.10): pure rules over facts, a policy and a `now`.

Invariant: a user is queued only while active, with enough novelty or enough time, after the cooldown, and never while
an earlier request is in flight. Every answer says until when it is valid, so nobody is polled.

What a rebuild would change is defined once for all callers (agent, `/pending`, worker): insights that were never
clustered (`pending`), and outdated contents (`is_changed`). The agent and `/pending` detect the second by the set of
channels and by counts of retractions; the worker, which reads the data set, also by insights that left the window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from highwater.streams.feeds.policy import PlanPolicy, Policy

# Reasons of skips.
NOTHING_NEW, VECTORS_MISSING, BELOW_THRESHOLD, NOT_DUE = "nothing_new", "vectors_missing", "below_threshold", "not_due"
# After these nothing is left that the answer did not account for: pending insights wait for more, or for their time.
ACCOUNTED_FOR = frozenset({NOTHING_NEW, BELOW_THRESHOLD, NOT_DUE})
# More insights that can be clustered would make these rebuild.
WAIT_FOR_MORE = frozenset({VECTORS_MISSING, BELOW_THRESHOLD})
# The outcome of a request that the machine failed, not the user, or that waits for vectors: it counts for no cooldown, and
# another one follows.
DELAYED, VECTORS_AWAITED = "delayed", "vectors_awaited"
# How long a user whose request is not answered is not queued again (R0.27), so how long a lost request blocks its user. If the
# queue is longer than that, the next request finds nothing left to do.
REQUEST_DEADLINE_MS = 300_000
# A rebuild that was taken is waited for as long as four may take on an idle machine; its user is locked meanwhile.
_DEADLINE_REBUILDS = 4
# A time this much later than now was recorded by a wrong clock, and counts as never: nobody waits for it. Not less,
# since a worker that is behind applies a tick minutes late, when later answers have been recorded already.
WRONG_AHEAD_MS = 600_000


class Trigger(StrEnum):
    """Why a rebuild is requested; it travels with the request, since skipping depends on it (R0.29, R0.34)."""

    NOVELTY = "novelty"
    TIME = "time"
    MANUAL = "manual"


class IdleReason(StrEnum):
    """Why only an event of the user can make a rebuild due."""

    NOTHING_SUBSCRIBED = "nothing subscribed"
    INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class UserFacts:
    """All inputs of the rules. Times are milliseconds since 1970; None means never.

    `pending` is the sum over the current subscriptions (R0.12); for the worker, of those that can be clustered now, and
    `held_back` counts those that still wait for their vectors. `is_changed`: anything else that the last answer
    accounted for has changed: another set of channels, or a retraction among the shown insights (for the worker: also
    one that left the window). `is_subscribed`: whether there are subscriptions; `in_flight_until`: the deadline of an
    unanswered request, None without one.
    """

    plan: str
    pending: int
    is_subscribed: bool
    last_active_at: int | None = None
    last_clustered_at: int | None = None
    last_checked_at: int | None = None
    last_enqueued_at: int | None = None
    in_flight_until: int | None = None
    is_demanded: bool = False
    is_changed: bool = False
    held_back: int = 0


class UserTimes(Protocol):
    """What a user's row holds for the rules, in the worker's table and in PostgreSQL. Times as in `UserFacts`."""

    @property
    def plan(self) -> str:
        """Return the name of the plan."""

    @property
    def last_active_at(self) -> int | None:
        """Return the last activity."""

    @property
    def last_clustered_at(self) -> int | None:
        """Return the last rebuild."""

    @property
    def last_checked_at(self) -> int | None:
        """Return the last check without a rebuild."""

    @property
    def last_enqueued_at(self) -> int | None:
        """Return the last request of a rebuild."""

    @property
    def in_flight_until(self) -> int | None:
        """Return the deadline of an unanswered request."""

    @property
    def is_changed(self) -> bool:
        """Return whether the contents are outdated for another reason than new insights."""


def facts_of_row(row: UserTimes, pending: int, *, is_subscribed: bool, is_demanded: bool = False) -> UserFacts:
    """Return the facts of a row; `pending` is the sum over its subscriptions."""
    return UserFacts(
        row.plan,
        pending,
        is_subscribed,
        row.last_active_at,
        row.last_clustered_at,
        row.last_checked_at,
        row.last_enqueued_at,
        row.in_flight_until,
        is_demanded,
        row.is_changed,
    )


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Request a rebuild now."""

    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before this time, unless an event of the user arrives earlier."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Do nothing until an event of the user comes."""

    reason: IdleReason


Decision = Rebuild | Wait | Idle


def rebuild_deadline_ms(rebuild_seconds_max: float) -> int:
    """Return for how long a rebuild that was taken is in flight."""
    return int(_DEADLINE_REBUILDS * rebuild_seconds_max * 1000)


def should_rebuild(facts: UserFacts, policy: Policy, now: int) -> Decision:
    """Decide what to do about a user at `now` (R0.8).

    A user without subscriptions, and answered since, could only be skipped (R0.34): idle, not due. A demand by an
    operator ignores activity, cooldown and pending, but waits for a request in flight. A change counts as novelty
    however little is pending: what a reader has unsubscribed, or its author has retracted, should disappear soon.
    Novelty wins over time if both apply, since a time request may be skipped and a novelty one has work.
    """
    plan, facts = policy.plan(facts.plan), without_wrong_times(facts, now)
    if facts.in_flight_until is not None and now < facts.in_flight_until:
        return Wait(facts.in_flight_until)
    if facts.is_demanded:
        return Rebuild(Trigger.MANUAL)
    if not facts.is_subscribed and not facts.is_changed:
        return Idle(IdleReason.NOTHING_SUBSCRIBED)
    if not is_active(facts, plan, now):
        return Idle(IdleReason.INACTIVE)
    is_novel = facts.is_changed or facts.pending >= plan.novelty_count_min
    due_at = now if is_novel else _time_due_at(facts, plan, now)
    if facts.last_enqueued_at is not None:
        due_at = max(due_at, facts.last_enqueued_at + plan.cooldown_ms)
    if due_at > now:
        return Wait(due_at)
    return Rebuild(Trigger.NOVELTY if is_novel else Trigger.TIME)


def reason_to_skip(
    trigger: Trigger, facts: UserFacts, policy: Policy, now: int, *, is_forced: bool = True
) -> str | None:
    """Return why the worker skips a request, decided with its own numbers (R0.33 to R0.35); None = do it.

    Cooldown and in-flight state are not checked again: this very request set them. A manual request is always served if
    `is_forced`, else if it would change anything.
    """
    is_manual = trigger is Trigger.MANUAL
    if is_manual and is_forced:
        return None
    plan, facts = policy.plan(facts.plan), without_wrong_times(facts, now)
    if not is_manual and not is_active(facts, plan, now):
        return "inactive"
    if facts.pending <= 0 and not facts.is_changed:
        return VECTORS_MISSING if facts.held_back else NOTHING_NEW
    if is_manual or facts.is_changed or facts.pending >= plan.novelty_count_min:
        return None
    if trigger is Trigger.NOVELTY:
        return BELOW_THRESHOLD
    return None if _time_due_at(facts, plan, now) <= now else NOT_DUE


def without_wrong_times(facts: UserFacts, now: int) -> UserFacts:
    """Return the facts without times so far ahead that only a wrong clock can have recorded them."""

    def right(at: int | None) -> int | None:
        return None if at is not None and at > now + WRONG_AHEAD_MS else at

    times = facts.last_clustered_at, facts.last_checked_at, facts.last_enqueued_at
    clustered, checked, enqueued = map(right, times)
    if (clustered, checked, enqueued) == times:
        return facts
    # The deadline of a request follows from its time.
    in_flight_until = facts.in_flight_until if enqueued == facts.last_enqueued_at else None
    return replace(
        facts,
        last_clustered_at=clustered,
        last_checked_at=checked,
        last_enqueued_at=enqueued,
        in_flight_until=in_flight_until,
    )


def is_active(facts: UserFacts, plan: PlanPolicy, now: int) -> bool:
    """Return whether the user was seen within A (R0.7); never seen counts as inactive."""
    return facts.last_active_at is not None and now - facts.last_active_at <= plan.active_within_ms


def _time_due_at(facts: UserFacts, plan: PlanPolicy, now: int) -> int:
    """Return when time alone makes the user due (R0.6); a skip counts as a check (R0.34), never clustered is due at once."""
    looked_at = [at for at in (facts.last_clustered_at, facts.last_checked_at) if at is not None]
    return max(looked_at) + plan.rebuild_interval_ms if looked_at else now
