"""From which vectors a version is made while a model still reads."""

from __future__ import annotations

from highwater.streams.feeds.readiness import Ready, Unread, readiness, waits_for_vectors

NOW = 1_000_000
HWM, UPTO = {"a": 10, "b": 0}, {"a": 20, "b": 5}


def test_a_minute_is_waited_for_what_can_be_read_in_it():
    """By the number of texts, from the first time; a time ahead is a wrong clock's, and nothing waits for it."""
    assert waits_for_vectors(1, None, NOW)
    assert waits_for_vectors(50_000, None, NOW)
    assert not waits_for_vectors(50_001, None, NOW)
    assert not waits_for_vectors(0, None, NOW)
    assert waits_for_vectors(100, NOW - 59_880, NOW)
    assert not waits_for_vectors(101, NOW - 59_880, NOW)
    assert not waits_for_vectors(1, NOW + 1, NOW)


def test_what_is_read_is_taken():
    """All insights, after a version of any kind of vectors."""
    for last in (None, ("old", Unread(3, {"a": 1}))):
        assert readiness("new", Unread(), last, HWM, UPTO, None, NOW) == Ready("new", UPTO)


def test_a_first_version_waits_then_is_preliminary():
    """Of all insights, in what most of them have."""
    unread = Unread(3, {"a": 18})
    assert readiness("new", unread, None, HWM, UPTO, None, NOW) is None
    assert readiness("new", unread, None, HWM, UPTO, NOW - 60_000, NOW) == Ready(None, UPTO, is_preliminary=True)


def test_a_later_version_keeps_its_vectors():
    """With the insights that have them; it waits while one that it shows has none."""
    unread = Unread(9, {"a": 12})
    assert readiness("new", unread, ("new", unread), HWM, UPTO, None, NOW) == Ready("new", {"a": 11, "b": 5})
    assert readiness("new", unread, ("old", Unread()), HWM, UPTO, None, NOW) == Ready("old", UPTO)
    assert readiness("new", unread, ("old", Unread(1, {"a": 10})), HWM, UPTO, NOW - 10**6, NOW) is None
