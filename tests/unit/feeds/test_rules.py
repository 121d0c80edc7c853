"""The rules of R0.5 to R0.10, at and beside each of their borders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.feeds.policy import PlanPolicy, make_policy
from highwater.streams.feeds.rules import (
    WRONG_AHEAD_MS,
    Idle,
    IdleReason,
    Rebuild,
    Trigger,
    UserFacts,
    Wait,
    reason_to_skip,
    should_rebuild,
    without_wrong_times,
)

POLICY = make_policy({"free": PlanPolicy(10, 1_000, 5_000, 100)})
NOW = 10_000_000
# Active, clustered a moment ago, nothing new: due when T has passed.
CALM = UserFacts("free", 0, is_subscribed=True, last_active_at=NOW, last_clustered_at=NOW - 1)


@pytest.mark.requirement("R0.1", "R0.5", "R0.6", "R0.7", "R0.8", "R0.9")
@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        (CALM, Wait(NOW - 1 + 1_000_000)),
        (replace(CALM, pending=9), Wait(NOW - 1 + 1_000_000)),
        (replace(CALM, pending=10), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, last_clustered_at=NOW - 999_999), Wait(NOW + 1)),
        (replace(CALM, last_clustered_at=NOW - 1_000_000), Rebuild(Trigger.TIME)),
        (replace(CALM, last_clustered_at=NOW - 1_000_000, pending=10), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, last_clustered_at=None), Rebuild(Trigger.TIME)),
        (replace(CALM, last_clustered_at=None, last_checked_at=NOW - 5), Wait(NOW - 5 + 1_000_000)),
        (replace(CALM, last_clustered_at=NOW - 2_000_000, last_checked_at=NOW - 5), Wait(NOW - 5 + 1_000_000)),
        (replace(CALM, pending=10, last_active_at=NOW - 5_000_000), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, pending=10, last_active_at=NOW - 5_000_001), Idle(IdleReason.INACTIVE)),
        (replace(CALM, pending=10, last_active_at=None), Idle(IdleReason.INACTIVE)),
        (replace(CALM, pending=10, last_enqueued_at=NOW - 99_999), Wait(NOW + 1)),
        (replace(CALM, pending=10, last_enqueued_at=NOW - 100_000), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, pending=10, in_flight_until=NOW + 1), Wait(NOW + 1)),
        (replace(CALM, pending=10, in_flight_until=NOW), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, is_subscribed=False, last_clustered_at=None), Idle(IdleReason.NOTHING_SUBSCRIBED)),
        (replace(CALM, is_changed=True), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, is_changed=True, is_subscribed=False), Rebuild(Trigger.NOVELTY)),
        (replace(CALM, is_changed=True, last_enqueued_at=NOW - 1), Wait(NOW - 1 + 100_000)),
        (replace(CALM, is_changed=True, last_active_at=None), Idle(IdleReason.INACTIVE)),
        # Noted by a clock that was wrong: counts as never, and up to the bound as what it says.
        (replace(CALM, last_clustered_at=NOW + WRONG_AHEAD_MS + 1, last_checked_at=NOW - 5), Wait(NOW - 5 + 1_000_000)),
        (replace(CALM, last_clustered_at=NOW + WRONG_AHEAD_MS), Wait(NOW + WRONG_AHEAD_MS + 1_000_000)),
        (replace(CALM, pending=10, last_enqueued_at=NOW + WRONG_AHEAD_MS + 1), Rebuild(Trigger.NOVELTY)),
        (
            replace(CALM, pending=10, last_enqueued_at=NOW + 3_600_000, in_flight_until=NOW + 4_000_000),
            Rebuild(Trigger.NOVELTY),
        ),
        (replace(CALM, is_demanded=True), Rebuild(Trigger.MANUAL)),
        (replace(CALM, is_demanded=True, last_active_at=None, last_enqueued_at=NOW), Rebuild(Trigger.MANUAL)),
        (replace(CALM, is_demanded=True, in_flight_until=NOW + 7), Wait(NOW + 7)),
    ],
)
def test_decisions_at_their_borders(facts: UserFacts, decision: object) -> None:
    """Novelty is inclusive, time and cooldown end at their millisecond, activity ends after its last one."""
    assert should_rebuild(facts, POLICY, NOW) == decision


times = st.none() | st.integers(NOW - 10_000_000, NOW + 10_000_000)
all_facts = st.builds(
    UserFacts,
    plan=st.sampled_from(["free", "other"]),
    pending=st.integers(0, 30),
    is_subscribed=st.booleans(),
    last_active_at=times,
    last_clustered_at=times,
    last_checked_at=times,
    last_enqueued_at=times,
    in_flight_until=times,
    is_demanded=st.booleans(),
    is_changed=st.booleans(),
)


@given(all_facts)
def test_waiting_ends_in_something_else(facts: UserFacts) -> None:
    """A wait lies ahead, nothing is due a millisecond before its end, and at its end the answer is not the same wait."""
    decision = should_rebuild(facts, POLICY, NOW)
    if isinstance(decision, Wait):
        assert decision.until_ms > NOW
        assert not isinstance(should_rebuild(facts, POLICY, decision.until_ms - 1), Rebuild)
        assert should_rebuild(facts, POLICY, decision.until_ms) != decision


@given(all_facts)
def test_a_rebuild_keeps_every_law(facts: UserFacts) -> None:
    """No user is requested while in flight; except by demand, no user is requested while inactive, cooling down or without a
    reason.
    """
    decision = should_rebuild(facts, POLICY, NOW)
    if not isinstance(decision, Rebuild):
        return
    facts = without_wrong_times(facts, NOW)
    assert facts.in_flight_until is None or facts.in_flight_until <= NOW
    if decision.trigger is Trigger.MANUAL:
        assert facts.is_demanded
        return
    assert facts.last_active_at is not None
    assert NOW - facts.last_active_at <= 5_000_000
    assert facts.last_enqueued_at is None or NOW - facts.last_enqueued_at >= 100_000
    assert (facts.pending >= 10 or facts.is_changed) == (decision.trigger is Trigger.NOVELTY)


@pytest.mark.parametrize(
    ("trigger", "facts", "reason"),
    [
        (Trigger.NOVELTY, replace(CALM, pending=10), None),
        (Trigger.NOVELTY, replace(CALM, pending=9), "below_threshold"),
        (Trigger.NOVELTY, replace(CALM, pending=9, last_clustered_at=None), "below_threshold"),
        (Trigger.NOVELTY, CALM, "nothing_new"),
        (Trigger.NOVELTY, replace(CALM, pending=10, last_active_at=None), "inactive"),
        (Trigger.NOVELTY, replace(CALM, pending=10, last_enqueued_at=NOW, in_flight_until=NOW + 9), None),
        (Trigger.TIME, replace(CALM, last_clustered_at=None), "nothing_new"),
        (Trigger.TIME, replace(CALM, pending=1, last_clustered_at=None), None),
        (Trigger.TIME, replace(CALM, pending=1), "not_due"),
        (Trigger.TIME, replace(CALM, pending=10), None),
        (Trigger.NOVELTY, replace(CALM, held_back=50), "vectors_missing"),
        (Trigger.TIME, replace(CALM, held_back=1, last_clustered_at=None), "vectors_missing"),
        (Trigger.NOVELTY, replace(CALM, is_changed=True), None),
        (Trigger.NOVELTY, replace(CALM, is_changed=True, held_back=50), None),
        (Trigger.TIME, replace(CALM, is_changed=True), None),
        (Trigger.TIME, replace(CALM, is_changed=True, last_active_at=None), "inactive"),
        (Trigger.MANUAL, replace(CALM, last_active_at=None), None),
    ],
)
def test_the_worker_skips_by_its_own_numbers(trigger: Trigger, facts: UserFacts, reason: str | None) -> None:
    """It skips rebuilds without new insights, below N, inactive or overtaken; a change and a demand are never skipped; the
    request does not block.
    """
    assert reason_to_skip(trigger, facts, POLICY, NOW) == reason


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (CALM, "nothing_new"),
        (replace(CALM, held_back=1), "vectors_missing"),
        (replace(CALM, pending=1), None),
        (replace(CALM, is_changed=True, last_active_at=None), None),
    ],
)
def test_a_demand_if_new_is_met_where_it_changes_something(facts: UserFacts, reason: str | None) -> None:
    """However little that is, and whether or not the user is there."""
    assert reason_to_skip(Trigger.MANUAL, facts, POLICY, NOW, is_forced=False) == reason
