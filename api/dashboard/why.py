"""Why a user's clusters are rebuilt now, later or not at all, in words: the rules of `streams/feeds/rules.py`, one by
one.

Invariant: the verdict is that of the rules themselves; the text beside it only shows the numbers that they use.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater.api.dashboard.figures import ago, count, moment, seconds
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Idle, Rebuild, UserFacts, Wait, is_active, should_rebuild
from highwater.streams.wording import counted


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: whether it is met (None: it does not matter now), and its numbers."""

    name: str
    holds: bool | None
    told: str


@dataclass(frozen=True, slots=True)
class Why:
    """The verdict and its reasons."""

    is_due: bool
    verdict: str
    conditions: tuple[Condition, ...]


def why(facts: UserFacts, channels: int, policy: Policy, now_ms: int) -> Why:
    """Return the verdict on a user at `now_ms`, with this many subscribed channels."""
    decision = should_rebuild(facts, policy, now_ms)
    return Why(
        isinstance(decision, Rebuild),
        _verdict(decision, facts, now_ms),
        (
            _subscribed(facts, channels),
            _seen(facts, policy, now_ms),
            _novelty(facts, policy),
            _changed(facts),
            _time(facts, policy, now_ms),
            _cooldown(facts, policy, now_ms),
            _in_flight(facts, now_ms),
        ),
    )


def _when(done: str, at_ms: int | None, now_ms: int) -> str:
    return f"never {done}" if at_ms is None else f"{done} {ago(at_ms, now_ms)}"


def _verdict(decision: Rebuild | Wait | Idle, facts: UserFacts, now_ms: int) -> str:
    if isinstance(decision, Rebuild):
        return f"due now because of {decision.trigger.value}: the next tick requests a rebuild"
    if isinstance(decision, Idle):
        return f"not due: {decision.reason}; only an event of the user changes this"
    left = seconds(max(0.0, round((decision.until_ms - now_ms) / 1000)))
    if facts.in_flight_until is not None and now_ms < facts.in_flight_until:
        return f"a rebuild is in progress; it has until {moment(decision.until_ms)}"
    return f"not due before {moment(decision.until_ms)}, in {left}, unless an event of the user arrives earlier"


def _subscribed(facts: UserFacts, channels: int) -> Condition:
    """Return the condition of subscriptions: a user who has left every channel is still rebuilt once, to remove their
    contents.
    """
    number = counted(channels, "channel") if channels else "no channel"
    told = f"to {number}" if facts.is_subscribed or not facts.is_changed else "to no channel any more"
    return Condition("subscribed", facts.is_subscribed or facts.is_changed, told)


def _changed(facts: UserFacts) -> Condition:
    told = "channels joined or left, or insights retracted, since the last rebuild or check"
    return Condition("the shown insights have changed", facts.is_changed, told if facts.is_changed else f"no {told}")


def _seen(facts: UserFacts, policy: Policy, now_ms: int) -> Condition:
    plan = policy.plan(facts.plan)
    within = seconds(plan.active_within_seconds)
    return Condition(
        "active",
        is_active(facts, plan, now_ms),
        f"{_when('seen', facts.last_active_at, now_ms)}; active within {within}",
    )


def _novelty(facts: UserFacts, policy: Policy) -> Condition:
    wanted = policy.plan(facts.plan).novelty_count_min
    return Condition(
        "enough new insights",
        facts.pending >= wanted,
        f"{count(facts.pending)} pending of {count(wanted)} that are enough",
    )


def _time(facts: UserFacts, policy: Policy, now_ms: int) -> Condition:
    plan = policy.plan(facts.plan)
    looked = max((at for at in (facts.last_clustered_at, facts.last_checked_at) if at is not None), default=None)
    is_due = looked is None or looked + plan.rebuild_interval_ms <= now_ms
    return Condition(
        "enough time has passed",
        is_due,
        f"{_when('checked', looked, now_ms)}; time alone is enough after {seconds(plan.rebuild_interval_seconds)}",
    )


def _cooldown(facts: UserFacts, policy: Policy, now_ms: int) -> Condition:
    plan = policy.plan(facts.plan)
    asked = facts.last_enqueued_at
    is_over = asked is None or asked + plan.cooldown_ms <= now_ms
    return Condition(
        "cooldown is over",
        is_over,
        f"{_when('requested', asked, now_ms)}; again after {seconds(plan.cooldown_seconds)}",
    )


def _in_flight(facts: UserFacts, now_ms: int) -> Condition:
    until = facts.in_flight_until
    if until is None:
        return Condition("no rebuild in progress", True, "no rebuild of this user is running")
    is_free = now_ms >= until
    told = "one was requested and never answered" if is_free else f"one is running, until {moment(until)} at most"
    return Condition("no rebuild in progress", is_free, told)
