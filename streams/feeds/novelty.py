"""How much is new to a user (R0.11, R0.12), and what to do about it.

Invariant: pending is the sum over current subscriptions of head minus high-water mark, never below 0 for a channel.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Decision, UserFacts, Wait, facts_of_row, should_rebuild
from highwater.streams.feeds.state import FORGET_AFTER_MS, User


@dataclass(frozen=True, slots=True)
class Pending:
    """The sum for a user, and how many channels had a mark above their head and counted as 0."""

    total: int
    clamped: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The row has no live user and its time is up: delete it."""


@dataclass(frozen=True, slots=True)
class Remember:
    """The row has no live user: note when it may be deleted."""

    until_ms: int


Verdict = Decision | Forget | Remember


def pending_in_channel(head: int, hwm: int) -> int:
    """Return the insights of a channel that never took part in a clustering of this user (R0.12), at least 0."""
    return max(0, head - hwm)


def pending_of(user: User) -> Pending:
    """Return the pending insights over the current subscriptions."""
    total = clamped = subscriptions = 0
    for view in user.channels.values():
        if view.is_subscribed:
            subscriptions += 1
            total += pending_in_channel(view.head, view.hwm)
            # A mark above an unknown head (head 0) is not an error: the answer arrived before the novelty.
            clamped += view.hwm > view.head > 0
    return Pending(total, clamped, subscriptions)


def facts_of(user: User, pending: Pending) -> UserFacts:
    """Return the facts for the rules."""
    is_subscribed, is_demanded = pending.subscriptions > 0, user.is_demanded
    return facts_of_row(user, pending.total, is_subscribed=is_subscribed, is_demanded=is_demanded)


def may_ask_at(user: User, now: int, deadline_ms: int) -> bool:
    """Return whether the tick of `now` has not requested a rebuild of this user yet: it would otherwise request twice.

    When the last request was made follows from its deadline, also for a request that does not count for the cooldown.
    """
    return user.requested_until < now + deadline_ms


def judge(user: User, pending: Pending, policy: Policy, now: int) -> Verdict:
    """Decide what to do about a row at `now`."""
    if user.is_known:
        return should_rebuild(facts_of(user, pending), policy, now)
    if user.forget_at is None:
        return Remember(now + FORGET_AFTER_MS)
    return Forget() if user.forget_at <= now else Wait(user.forget_at)
