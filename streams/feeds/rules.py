"""When a user's clusters are rebuilt (R0.5 to R0.10): pure rules over facts, a policy and a `now`.

The law: a user is queued only while active, with enough novelty or enough time, after the cooldown, and never while an
earlier request is still in flight. Every answer says until when it holds, so nobody is polled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from highwater.streams.feeds.policy import PlanPolicy, Policy


class Trigger(StrEnum):
    """Why a rebuild is asked for; it travels with the request, since skipping depends on it (R0.29, R0.34)."""

    NOVELTY = "novelty"
    TIME = "time"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class UserFacts:
    """All that the rules look at. Times are milliseconds since 1970; None means never.

    `pending` is the sum over the current subscriptions (R0.12); `is_subscribed` says whether there are any;
    `in_flight_until` is the deadline of a request that has not been answered, None when there is none.
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


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Ask for a rebuild now."""

    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this time, unless an event of the user comes first."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until an event of the user comes."""

    reason: str


Decision = Rebuild | Wait | Idle


def should_rebuild(facts: UserFacts, policy: Policy, now: int) -> Decision:
    """What to do about a user at `now` (R0.8).

    Whoever subscribes to nothing has pending 0 by definition and could only be skipped (R0.34): idle, not due.
    A demand by an operator ignores activity, cooldown and pending, but waits for a request in flight.
    Novelty wins over time when both hold, since a time request may be skipped and a novelty one has work.
    """
    plan = policy.plan(facts.plan)
    if facts.in_flight_until is not None and now < facts.in_flight_until:
        return Wait(facts.in_flight_until)
    if facts.is_demanded:
        return Rebuild(Trigger.MANUAL)
    if not facts.is_subscribed:
        return Idle("nothing subscribed")
    if not is_active(facts, plan, now):
        return Idle("inactive")
    is_novel = facts.pending >= plan.novelty_count_min
    due_at = now if is_novel else _time_due_at(facts, plan, now)
    if facts.last_enqueued_at is not None:
        due_at = max(due_at, facts.last_enqueued_at + plan.cooldown_ms)
    if due_at > now:
        return Wait(due_at)
    return Rebuild(Trigger.NOVELTY if is_novel else Trigger.TIME)


def reason_to_skip(trigger: Trigger, facts: UserFacts, policy: Policy, now: int) -> str | None:
    """Why a request is skipped, judged by whoever does the work with its own numbers (R0.33 to R0.35); None = do it.

    Cooldown and being in flight are not asked again: they were set by this very request.
    """
    if trigger is Trigger.MANUAL:
        return None
    plan = policy.plan(facts.plan)
    if not is_active(facts, plan, now):
        return "inactive"
    if facts.pending <= 0:
        return "nothing_new"
    if facts.pending >= plan.novelty_count_min:
        return None
    if trigger is Trigger.NOVELTY:
        return "below_threshold"
    return None if _time_due_at(facts, plan, now) <= now else "not_due"


def is_active(facts: UserFacts, plan: PlanPolicy, now: int) -> bool:
    """Whether the user was seen within A (R0.7); never seen counts as inactive."""
    return facts.last_active_at is not None and now - facts.last_active_at <= plan.active_within_ms


def _time_due_at(facts: UserFacts, plan: PlanPolicy, now: int) -> int:
    """When time alone makes the user due (R0.6); a skip counts as a look (R0.34), never clustered is due at once."""
    looked_at = [at for at in (facts.last_clustered_at, facts.last_checked_at) if at is not None]
    return max(looked_at) + plan.rebuild_interval_ms if looked_at else now
