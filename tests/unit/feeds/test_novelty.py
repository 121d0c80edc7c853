"""Pending: the sum over current subscriptions, never below zero, and the handling of rows without a user."""

from __future__ import annotations

import pytest

from highwater.streams.feeds.novelty import Forget, Pending, Remember, judge, pending_of
from highwater.streams.feeds.policy import load_policy
from highwater.streams.feeds.rules import Rebuild, Trigger, Wait
from highwater.streams.feeds.state import FORGET_AFTER_MS, ChannelView, User

POLICY = load_policy()


@pytest.mark.requirement("R0.12")
def test_pending_sums_current_subscriptions() -> None:
    """A channel counts from its mark, one without a mark in full, one that was left not at all (R0.12)."""
    user = User(
        channels={
            "marked": ChannelView(head=9, hwm=4, revision=1, is_subscribed=True),
            "unmarked": ChannelView(head=3, revision=1, is_subscribed=True),
            "left": ChannelView(head=100, revision=2, is_subscribed=False),
            "unknown": ChannelView(head=100),
        }
    )
    assert pending_of(user) == Pending(total=8, clamped=0, subscriptions=2)


def test_a_mark_above_the_head_counts_as_nothing() -> None:
    """A negative number counts as zero and is reported; a head that has not arrived yet is not a fault."""
    user = User(
        channels={
            "behind": ChannelView(head=3, hwm=5, revision=1, is_subscribed=True),
            "untold": ChannelView(head=0, hwm=5, revision=1, is_subscribed=True),
            "new": ChannelView(head=2, revision=1, is_subscribed=True),
        }
    )
    assert pending_of(user) == Pending(total=2, clamped=1, subscriptions=3)


def test_a_row_without_a_user_is_forgotten_after_a_day() -> None:
    """Unknown or erased, a row notes its end when first judged, waits for it, and goes."""
    for row in (User(), User(erased_revision=4)):
        assert judge(row, pending_of(row), POLICY, 1_000) == Remember(1_000 + FORGET_AFTER_MS)
        row.forget_at = 2_000
        assert judge(row, pending_of(row), POLICY, 1_999) == Wait(2_000)
        assert judge(row, pending_of(row), POLICY, 2_000) == Forget()


def test_a_known_user_is_judged_by_the_rules() -> None:
    """Activity and subscriptions of the row reach the rules."""
    user = User(revision=1, last_active_at=1, channels={"a": ChannelView(head=50, revision=1, is_subscribed=True)})
    assert judge(user, pending_of(user), POLICY, 2) == Rebuild(Trigger.NOVELTY)
