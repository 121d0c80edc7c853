"""Counting by an expression, without a broker."""

from __future__ import annotations

import pytest

from highwater.connectors.replay import counting as module
from highwater.connectors.replay.counting import Counting, TooManyValuesError, expression_of
from highwater.connectors.replay.foreign import ForeignDecoder
from highwater.connectors.replay.where_error import WhereError
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

DECODER = decoder_of()


def counted(by: str, *events: dict[str, object] | None) -> Counting:
    """The counts of these events by an expression; None is a tombstone."""
    counting = Counting(expression_of(by, [field.name for field in DECODER.arrow_type]), DECODER.arrow_type, TOPIC)
    values = [None if event is None else encoded(event, own_text()) for event in events]
    counting.add(DECODER.decode(batch(values, keys=[b"k"] * len(values))))
    return counting


def test_the_most_frequent_come_first():
    """The values of a field, with or without `value.`; equal counts in the order of their texts."""
    events = [insight(channel_id="b" if n % 2 else "a") for n in range(4)] + [insight(channel_id="b")]
    for by in ("channel_id", "value.channel_id"):
        counting = counted(by, *events)
        assert counting.top(9) == [("b", 3), ("a", 2)]
    assert counted("channel_id", *events[:4]).top(1) == [("a", 2)]


def test_any_expression_is_counted_by():
    """It may use the record or the event, and have any type; a time is shown as one."""
    events = [insight(channel_id=f"c{n}") for n in range(3)]
    assert counted("partition", *events).top(9) == [(3, 3)]
    assert counted("value.channel_id == 'c1'", *events).top(9) == [("false", 2), ("true", 1)]
    assert counted("key", *events).top(9) == [("k", 3)]
    assert str(counted("ts", events[0]).top(1)[0][0]).endswith("Z")


def test_what_has_no_answer_is_counted_apart():
    """A tombstone is not a failure; an expression that fails is."""
    events = [insight(channel_id="c"), None]
    counting = counted("channel_id", *events)
    assert (counting.counted, counting.without_answer) == (1, 0)
    failing = counted("int(value.channel_id)", *events)
    assert (failing.counted, failing.without_answer) == (0, 1)
    assert failing.first_failure


def test_an_expression_that_cannot_be_read_names_its_option():
    """And the place."""
    with pytest.raises(WhereError, match=r"--by, line 1, column \d+: events of .* have no field 'chanel'"):
        counted("value.chanel")


def test_different_values_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """The count ends with what to do instead of taking all memory."""
    monkeypatch.setattr(module, "VALUES_MAX", 2)
    with pytest.raises(TooManyValuesError, match="coarser"):
        counted("channel_id", *(insight(channel_id=f"c{n}") for n in range(3)))


def test_values_of_unknown_fields_are_counted_by_a_path():
    """Any field of another application's topic may be named; an invalid path is an expression."""
    assert [expression_of(by, None) for by in ("n", "at.city", "value.n", "key", "size(key)", "'x'", "true")] == [
        "value.n",
        "value.at.city",
        "value.n",
        "key",
        "size(key)",
        "'x'",
        "true",
    ]
    decoder = ForeignDecoder(None)
    counting = Counting(expression_of("at.city", None), decoder.arrow_type, "orders", is_open=True)
    values = [b'{"at": {"city": "Ulm"}}', b'{"at": {"city": "Ulm"}}', b'{"at": {}}', b"text", None]
    counting.add(decoder.decode(batch(values, topic="orders")))
    assert (counting.top(9), counting.without_answer) == ([("Ulm", 2)], 2)
    of_text = Counting("value.n", decoder.arrow_type, "orders", is_open=True)
    of_text.add(decoder.decode(batch([b"text"], topic="orders")))
    assert of_text.first_failure == "a value of another type than the expression needs"
