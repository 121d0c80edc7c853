"""Rows of users: merges in any order and any repetition give one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.streams.feeds.rules import Trigger
from highwater.streams.feeds.state import (
    ChannelView,
    User,
    apply_changed,
    apply_finished,
    apply_head,
    apply_requested,
    decode_user,
    encode_user,
)

CHANNELS = ("a", "b", "c")
Event = tuple[Callable[..., None], tuple[Any, ...]]


def changed(revision: int, **given_changes: Any) -> Any:
    """A user-changed event."""
    nothing: dict[str, Any] = {
        "user_id": "u",
        "plan": None,
        "last_active_at": None,
        "subscribed": [],
        "unsubscribed": [],
        "rebuild_demanded": False,
        "rebuild_forced": False,
        "erased": False,
    }
    return nothing | given_changes | {"revision": revision}


def finished(
    offset: int, hwm: dict[str, int] | None = None, retractions: dict[str, int] | None = None, **more: Any
) -> Any:
    """A rebuild-finished event; with `retractions` it accounts for these channels."""
    event = {"user_id": "u", "request_position": f"feeds.rebuild-requested/0/{offset}", "hwm": hwm or {}}
    event |= {"outcome": "rebuilt", "last_enqueued_at": None, "demanded_revision": 0, "forced": False}
    return event | {"retractions": retractions, "last_clustered_at": None, "last_checked_at": None} | more


def merged(events: list[Event]) -> User:
    """The row after these events, written and read between any two of them."""
    user = User()
    for apply, arguments in events:
        user = decode_user(encode_user(user))
        apply(user, *arguments)
    return user


subsets = st.lists(st.sampled_from(CHANNELS), unique=True)


@st.composite
def changes(draw: Any, *, can_erase: bool = False) -> list[Event]:
    """User-changed events as one sink makes them: a revision has one content."""
    events: list[Event] = []
    for revision in draw(st.lists(st.integers(1, 8), unique=True, max_size=6)):
        if can_erase and draw(st.booleans()):
            events.append((apply_changed, (changed(revision, erased=True),)))
            continue
        on = draw(subsets)
        event = changed(
            revision,
            plan=draw(st.none() | st.sampled_from(["free", "pro"])),
            last_active_at=draw(st.none() | st.integers(0, 100)),
            subscribed=on,
            unsubscribed=[name for name in draw(subsets) if name not in on],
            rebuild_demanded=draw(st.booleans()),
            rebuild_forced=draw(st.booleans()),
        )
        events.append((apply_changed, (event,)))
    return events


heads = st.lists(
    st.tuples(st.just(apply_head), st.tuples(st.sampled_from(CHANNELS), st.integers(0, 20), st.integers(0, 3))),
    max_size=6,
)
answers = st.lists(
    st.builds(
        lambda offset, hwm, retractions, clustered, checked: (
            apply_finished,
            (finished(offset, hwm, retractions, last_clustered_at=clustered, last_checked_at=checked),),
        ),
        st.integers(0, 9),
        st.dictionaries(st.sampled_from(CHANNELS), st.integers(0, 20)),
        st.none() | st.dictionaries(st.sampled_from(CHANNELS), st.integers(0, 3)),
        st.none() | st.integers(0, 100),
        st.none() | st.integers(0, 100),
    ),
    max_size=6,
)


@given(changes(), heads, answers, st.data())
def test_any_order_and_any_repetition_give_one_state(
    of_user: list[Event], of_channels: list[Event], of_worker: list[Event], data: st.DataObject
) -> None:
    """Merges are commutative and idempotent: redelivery and the race of three topics are harmless."""
    events = of_user + of_channels + of_worker
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=6) if events else st.just([]))
    assert merged(data.draw(st.permutations(repeated))) == merged(events)


@given(changes(can_erase=True), st.data())
def test_an_erasure_in_any_order_voids_what_is_older(events: list[Event], data: st.DataObject) -> None:
    """Only events newer than the newest erasure survive, in any order of arrival."""
    erasures = [event["revision"] for _, (event,) in events if event["erased"]]
    newest = max(erasures, default=0)
    expected = merged([pair for pair in events if pair[1][0]["revision"] > newest])
    expected.erased_revision = newest
    assert merged(data.draw(st.permutations(events))) == expected


@pytest.mark.requirement("R0.12")
def test_the_highest_revision_wins_a_subscription() -> None:
    """An old unsubscribe that comes late does not undo a newer subscribe; the mark stays through both (R0.12)."""
    user = User()
    apply_changed(user, changed(3, subscribed=["a"]))
    apply_finished(user, finished(1, {"a": 7}))
    apply_changed(user, changed(2, unsubscribed=["a"]))
    assert user.channels["a"] == ChannelView(head=0, hwm=7, revision=3, is_subscribed=True)
    apply_changed(user, changed(4, unsubscribed=["a"]))
    assert user.channels["a"] == ChannelView(head=0, hwm=7, revision=4, is_subscribed=False)


@pytest.mark.requirement("R0.27")
def test_a_request_is_in_flight_until_it_or_a_later_one_is_answered() -> None:
    """An answer to an earlier request clears nothing."""
    user = User()
    apply_requested(user, Trigger.NOVELTY, offset=5, now=1_000, deadline_ms=50)
    assert (user.in_flight_until, user.last_enqueued_at) == (1_050, 1_000)
    apply_finished(user, finished(4))
    assert user.in_flight_until == 1_050
    apply_finished(user, finished(5))
    assert user.in_flight_until is None


def test_a_demand_is_served_by_a_manual_request_alone() -> None:
    """A novelty request leaves the demand standing; a manual one serves it until a newer demand."""
    user = User()
    apply_changed(user, changed(1, rebuild_demanded=True))
    apply_requested(user, Trigger.NOVELTY, offset=1, now=1, deadline_ms=1)
    assert user.is_demanded
    apply_requested(user, Trigger.MANUAL, offset=2, now=1, deadline_ms=1)
    apply_changed(user, changed(1, rebuild_demanded=True))
    assert not user.is_demanded
    apply_changed(user, changed(2, rebuild_demanded=True))
    assert user.is_demanded


@pytest.mark.parametrize(("forced", "revisions"), [(False, (2, 0)), (True, (2, 1))])
def test_a_request_that_the_machine_failed_does_not_count(forced: bool, revisions: tuple[int, int]) -> None:
    """The cooldown counts from the request before it, and its demands wait again, once; a later request is untouched."""
    user = User(last_enqueued_at=100, requested_offset=4, served_revision=0)
    apply_changed(user, changed(1, rebuild_demanded=True, rebuild_forced=forced))
    apply_changed(user, changed(2, rebuild_demanded=True))
    apply_requested(user, Trigger.MANUAL, offset=5, now=1_000, deadline_ms=50)
    assert not user.is_demanded
    answer = finished(5, outcome="delayed", last_enqueued_at=100, demanded_revision=2, forced=forced)
    for _ in range(2):
        apply_finished(user, answer)
        assert (user.in_flight_until, user.last_enqueued_at) == (None, 100)
        assert (user.is_demanded, user.is_forced) == (True, forced)
        assert (user.demanded_revision, user.forced_revision) == revisions
    apply_requested(user, Trigger.MANUAL, offset=6, now=2_000, deadline_ms=50)
    apply_finished(user, answer)
    assert (user.in_flight_until, user.last_enqueued_at, user.is_demanded) == (2_050, 2_000, False)


def test_nothing_late_brings_an_erased_user_back() -> None:
    """Heads, answers and older changes leave an erased row as empty as it is."""
    user = User()
    apply_changed(user, changed(2, subscribed=["a"], plan="pro", last_active_at=5))
    apply_changed(user, changed(3, erased=True))
    apply_head(user, "a", 9)
    apply_finished(user, finished(1, {"a": 3}, last_clustered_at=4))
    apply_changed(user, changed(1, subscribed=["a"]))
    assert user == User(erased_revision=3)
    assert user.is_erased


def test_an_unreadable_request_position_changes_nothing() -> None:
    """An answer to nothing is refused before anything of it is merged."""
    user = User()
    event = finished(1, {"a": 3}, last_clustered_at=4) | {"request_position": "nonsense"}
    with pytest.raises(InvalidEventError, match="nonsense"):
        apply_finished(user, event)
    assert user == User()


def test_another_set_of_channels_is_a_change_until_it_is_answered_for() -> None:
    """Joining and leaving, to none as well; not before the first answer; a skip that accounts for nothing leaves it."""
    user = User()
    apply_changed(user, changed(1, subscribed=["a"]))
    assert not user.is_changed
    apply_finished(user, finished(1, {"a": 5}, {"a": 0}))
    assert not user.is_changed
    apply_changed(user, changed(2, subscribed=["b"]))
    assert user.is_changed
    apply_finished(user, finished(2, {"a": 5, "b": 0}))
    assert user.is_changed
    apply_finished(user, finished(3, {"a": 5, "b": 0}, {"a": 0, "b": 0}))
    assert not user.is_changed
    apply_changed(user, changed(3, unsubscribed=["a", "b"]))
    assert user.is_changed
    apply_finished(user, finished(4, {}, {}))
    assert not user.is_changed


def test_a_retraction_is_a_change_until_it_is_answered_for() -> None:
    """It counts by the channel's count; for a channel that the user has left it is ignored."""
    user = User()
    apply_changed(user, changed(1, subscribed=["a"]))
    apply_finished(user, finished(1, {"a": 5}, {"a": 2}))
    apply_head(user, "a", 5, 2)
    assert not user.is_changed
    apply_head(user, "a", 5, 3)
    assert user.is_changed
    apply_finished(user, finished(2, {"a": 5}, {"a": 3}))
    apply_head(user, "left", 9, 4)
    assert not user.is_changed


def test_a_row_of_the_version_before_is_read() -> None:
    """In the first minutes of an upgrade it has no state of its channels, so none of them has changed."""
    before = User(channels={"a": ChannelView(3, 2, 1, is_subscribed=True)}, revision=1, finished_offset=4)
    version, channels, *plain = orjson.loads(encode_user(before))
    row = orjson.dumps([version - 1, {key: view[:4] for key, view in channels.items()}, *plain[:-1]])
    assert decode_user(row) == before
    assert not before.is_changed


def test_a_row_of_another_version_is_refused() -> None:
    """A row that cannot be understood stops the worker rather than being guessed at."""
    with pytest.raises(ValueError, match="version 99"):
        decode_user(b"[99,{}]")
