"""Repeats of a known id with other content."""

from __future__ import annotations

from highwater.streams.repeats import RecordedContent, conflicting


def test_what_says_something_else_than_the_first_of_its_id_is_found():
    """It is compared with the stored event, else with the first event of the batch; an event that is stored does not repeat
    itself.
    """
    stored = {"known": RecordedContent("first", "t/0/1"), "own": RecordedContent("stored otherwise", "t/0/9")}
    events = [
        ("known", RecordedContent("other", "t/0/5")),
        ("known", RecordedContent("first", "t/0/6")),
        ("new", RecordedContent("one", "t/0/7")),
        ("new", RecordedContent("two", "t/0/8")),
        ("own", RecordedContent("x", "t/0/9")),
        ("new", RecordedContent("one", "t/0/10")),
    ]
    assert conflicting(events, stored) == [0, 3]
    assert conflicting(events[2:3], {}) == []
