"""The fold of a user's own events: later wins, a repeat changes nothing, an erasure leaves nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.identity.users import Subscription, User, UserStep, fold_user

NOW = 1_000_000
CHANNELS = ["a", "b", "c", "d"]


def subscribe(channel: str, subscribed: bool, at: int) -> UserStep:
    """A subscription-changed."""
    return UserStep("feeds.subscription-changed", {"channel_id": channel, "subscribed": subscribed, "ts": -at}, at)


def replace_all(channels: list[str], at: int) -> UserStep:
    """A subscriptions-replaced."""
    return UserStep("feeds.subscriptions-replaced", {"channels": channels, "ts": 0}, at)


def plan(name: str, at: int) -> UserStep:
    """A plan-changed."""
    return UserStep("feeds.plan-changed", {"plan": name, "ts": 0}, at)


def active(ts: int, at: int) -> UserStep:
    """A user-active."""
    return UserStep("feeds.user-active", {"ts": ts}, at)


def erase(at: int) -> UserStep:
    """A user-erased."""
    return UserStep("feeds.user-erased", {"ts": 0}, at)


def subscribed(user: User) -> set[str]:
    """Channels that a user has."""
    return {channel for channel, s in user.subscriptions.items() if s.subscribed}


KINDS: list[st.SearchStrategy[Any]] = [
    st.tuples(st.just(subscribe), st.sampled_from(CHANNELS), st.booleans()),
    st.tuples(st.just(replace_all), st.lists(st.sampled_from(CHANNELS), unique=True)),
    st.tuples(st.just(plan), st.sampled_from(["free", "pro", "team"])),
    st.tuples(st.just(active), st.integers(0, 2 * NOW)),
    st.tuples(st.just(erase)),
]
# The log of one user: steps whose broker time grows, two of one millisecond included.
LOG = st.lists(st.tuples(st.one_of(KINDS), st.integers(0, 3)), max_size=25).map(
    lambda made: [kind[0](*kind[1:], 1 + sum(gap for _, gap in made[: i + 1])) for i, (kind, _) in enumerate(made)]
)


def naive(log: list[UserStep]) -> tuple[set[str], str, int | None]:
    """Subscriptions, plan and last activity by the obvious rule: one step after the other."""
    channels: set[str] = set()
    name, seen = "free", None
    for step in log:
        value = step.value
        if step.topic == "feeds.subscription-changed":
            (channels.add if value["subscribed"] else channels.discard)(value["channel_id"])
        elif step.topic == "feeds.subscriptions-replaced":
            channels = set(value["channels"])
        elif step.topic == "feeds.plan-changed":
            name = value["plan"]
        elif step.topic == "feeds.user-active":
            seen = max(min(value["ts"], NOW), seen or 0)
        else:
            channels, name, seen = set(), "free", None
    return channels, name, seen


@given(LOG)
def test_the_fold_is_the_log_in_order(log: list[UserStep]):
    """Folded at once, a user's log gives what one step after the other gives."""
    user = fold_user(User(), log, now_ms=NOW).user
    assert naive(log) == (subscribed(user), user.plan, user.last_active_ms)


@given(LOG, st.lists(st.integers(0, 25), max_size=4))
def test_batches_do_not_matter(log: list[UserStep], cuts: list[int]):
    """However the log is cut into batches, the user is the same, the revision included."""
    user, edges = User(), [0, *sorted(cuts), len(log)]
    for first, last in itertools.pairwise(edges):
        user = fold_user(user, log[first:last], now_ms=NOW).user
    assert fold_user(User(), log, now_ms=NOW).user == user


@given(LOG.filter(lambda log: all(step.topic != "feeds.user-erased" for step in log)))
def test_a_repeat_of_the_last_step_changes_nothing(log: list[UserStep]):
    """The last event, delivered again, leaves the user unchanged and publishes nothing."""
    user = fold_user(User(), log, now_ms=NOW).user
    again = fold_user(user, log[-1:], now_ms=NOW)
    assert user == again.user
    assert not again.changed


@given(LOG)
def test_the_revision_grows_with_every_change(log: list[UserStep]):
    """A change raises the revision, also over an erasure; an event without a change does not."""
    user = User()
    for step in log:
        folded = fold_user(user, [step], now_ms=NOW)
        assert folded.changed == (folded.user.revision > user.revision)
        user = folded.user


@given(LOG)
def test_the_told_channels_are_those_that_moved(log: list[UserStep]):
    """Every channel whose subscription differs after a batch is among the touched ones."""
    half = len(log) // 2
    before = fold_user(User(), log[:half], now_ms=NOW).user
    after = fold_user(before, log[half:], now_ms=NOW)
    assert subscribed(before) ^ subscribed(after.user) <= after.touched


def test_a_clients_clock_does_not_decide():
    """Order is by broker time: an event with an older `ts` that arrives later wins."""
    log = [subscribe("a", True, 10), subscribe("a", False, 20)]
    assert log[1].value["ts"] < log[0].value["ts"]
    assert set() == subscribed(fold_user(User(), log, now_ms=NOW).user)


def test_steps_of_one_batch_are_put_in_order():
    """A batch holds several topics in any order; broker time orders them, and offsets break a tie."""
    log = [subscribe("a", False, 20), replace_all(["a", "b"], 10), subscribe("c", True, 20), subscribe("c", False, 20)]
    assert {"b"} == subscribed(fold_user(User(), log, now_ms=NOW).user)


def test_a_late_step_of_another_partition_loses():
    """A change that the broker took before the stored one, and that comes after it, does not win."""
    user = fold_user(User(), [subscribe("a", True, 5), subscribe("a", False, 20)], now_ms=NOW).user
    assert set() == subscribed(fold_user(user, [subscribe("a", True, 10)], now_ms=NOW).user)
    user = fold_user(User(), [replace_all(["a"], 20)], now_ms=NOW).user
    assert {"a"} == subscribed(fold_user(user, [replace_all(["b"], 10), subscribe("c", True, 15)], now_ms=NOW).user)


def test_nobody_was_active_later_than_now():
    """A client's clock that runs ahead counts as now; an older activity does not retract a newer one."""
    user = fold_user(User(), [active(NOW + 5_000, 1)], now_ms=NOW).user
    assert user.last_active_ms == NOW
    assert not fold_user(user, [active(NOW - 1, 2)], now_ms=NOW).changed


def test_leaving_what_one_never_had_tells_nobody():
    """Unsubscribing from a channel without a subscription changes no subscription and publishes nothing."""
    folded = fold_user(User(), [subscribe("a", False, 5)], now_ms=NOW)
    assert (set(), False) == (subscribed(folded.user), folded.changed)


def test_an_erasure_forgets_and_a_return_starts_anew():
    """Only the revision survives the erasure; later events count."""
    log = [subscribe("a", True, 5), plan("pro", 6), erase(7), subscribe("b", True, 8)]
    folded = fold_user(User(), log, now_ms=NOW)
    assert (True, frozenset("ab"), "free", 0) == (
        folded.erased, folded.touched, folded.user.plan, folded.user.plan_changed_ms,
    )  # fmt: skip
    assert {"b": Subscription(True, 8)} == folded.user.subscriptions


def test_a_demand_is_told_and_stores_nothing():
    """A demanded rebuild is passed on with a new revision and nothing else."""
    folded = fold_user(User(revision=3), [UserStep("feeds.rebuild-demanded", {"ts": 0}, 9)], now_ms=NOW)
    assert (True, User(revision=9)) == (folded.rebuild_demanded, folded.user)


def test_a_demand_makes_no_user():
    """The demand of a user without any event is skipped; once there is an event, in the same batch too, it counts."""
    demand = UserStep("feeds.rebuild-demanded", {"ts": 0}, 9)
    folded = fold_user(None, [demand, demand], now_ms=NOW)
    assert (folded.changed, folded.rebuild_demanded, folded.user) == (False, False, User())
    assert not fold_user(None, [demand, plan("pro", 10)], now_ms=NOW).rebuild_demanded
    assert fold_user(None, [plan("pro", 8), demand], now_ms=NOW).rebuild_demanded


def test_a_topic_that_is_not_of_users_is_an_error():
    """A wiring mistake is an error, not a silent skip."""
    with pytest.raises(ValueError, match=r"streams\.tick"):
        fold_user(User(), [UserStep("streams.tick", {}, 1)], now_ms=NOW)


@st.composite
def said(draw: st.DrawFn) -> list[UserStep]:
    """Changes of subscriptions and plans at distinct broker times, in the order they happen to arrive."""
    times = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12, unique=True))
    channels = st.sampled_from("abc")
    steps = []
    for at in times:
        kind = draw(st.integers(0, 2))
        if kind == 0:
            steps.append(subscribe(draw(channels), draw(st.booleans()), at))
        elif kind == 1:
            value = {"user_id": "u", "channels": draw(st.lists(channels, unique=True)), "ts": 0}
            steps.append(UserStep("feeds.subscriptions-replaced", value, at))
        else:
            steps.append(UserStep("feeds.plan-changed", {"user_id": "u", "plan": draw(channels), "ts": 0}, at))
    return steps


@given(said())
def test_what_was_said_last_wins_in_whatever_order_it_arrives(steps: list[UserStep]) -> None:
    """Events that come one by one in any order leave the user as they do in the order of broker time."""
    user = User()
    for step in steps:
        user = fold_user(user, [step], now_ms=NOW).user
    ordered = fold_user(User(), steps, now_ms=NOW).user
    assert (subscribed(ordered), ordered.plan) == (subscribed(user), user.plan)
