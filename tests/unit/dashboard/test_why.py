"""Why a rebuild is due, in words: never another verdict than the rules'."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from highwater.api.dashboard.why import why
from highwater.streams.feeds.policy import PlanPolicy, make_policy
from highwater.streams.feeds.rules import Rebuild, Trigger, UserFacts, should_rebuild

POLICY = make_policy({"free": PlanPolicy(10, 1_000, 5_000, 100)})
NOW = 10_000_000
_TIMES = st.none() | st.integers(NOW - 6_000_000, NOW + 200_000)


@given(st.integers(0, 20), st.booleans(), st.booleans(), _TIMES, _TIMES, _TIMES, _TIMES, _TIMES)
def test_the_conditions_explain_the_verdict(
    pending, subscribed, changed, active, clustered, checked, enqueued, in_flight
):
    """It is due exactly when novelty, a change or time suffices and everything else holds; the verdict is the rules' own."""
    facts = UserFacts("free", pending, subscribed, active, clustered, checked, enqueued, in_flight, is_changed=changed)
    told = why(facts, 3, POLICY, NOW)
    decision = should_rebuild(facts, POLICY, NOW)
    holds = {one.name: one.holds for one in told.conditions}
    suffices = (
        holds["enough new insights"] or holds["the shown insights have changed"] or holds["enough time has passed"]
    )
    needed = ("subscribed", "active", "cooldown is over", "no rebuild in progress")
    assert isinstance(decision, Rebuild) == told.is_due == bool(suffices and all(holds[name] for name in needed))


def test_the_verdict_names_the_trigger():
    """Novelty, here."""
    facts = UserFacts("free", 10, is_subscribed=True, last_active_at=NOW)
    assert Trigger.NOVELTY.value in why(facts, 1, POLICY, NOW).verdict


def test_what_never_happened_is_said_in_order():
    """For an unknown user no number is shown, and the text is "never seen" rather than "seen never"."""
    told = {one.name: one.told for one in why(UserFacts("free", 0, is_subscribed=False), 0, POLICY, NOW).conditions}
    assert told["subscribed"] == "to no channel"
    assert told["active"].startswith("never seen; ")
    assert told["enough time has passed"].startswith("never checked; ")
    assert told["cooldown is over"].startswith("never requested; ")
    assert why(UserFacts("free", 0, is_subscribed=True), 1, POLICY, NOW).conditions[0].told == "to 1 channel"
