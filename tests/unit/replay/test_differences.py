"""How two states of the log differ by key, without a broker."""

from __future__ import annotations

import json

import numpy as np
import pytest

from highwater.connectors.replay import differences as module
from highwater.connectors.replay.differences import Difference, State, StateTooLargeError, differences
from highwater.connectors.replay.reading import Batch


def batch(*records: tuple[int, int, int, bytes | None, bytes | None]) -> Batch:
    """Records as (arrived, partition, offset, key, value)."""
    times, partitions, offsets, keys, values = (list(column) for column in zip(*records, strict=True))
    numbers = np.array(partitions, np.int32), np.array(offsets, np.int64), np.array(times, np.int64)
    return Batch("t", *numbers, keys, [None] * len(keys), values)


def state(*records: tuple[int, int, int, bytes | None, bytes | None]) -> dict[bytes, bytes | None]:
    """The state after these records."""
    found = State()
    found.add(batch(*records))
    return found.values()


def read(value: bytes) -> dict[str, str]:
    """An event of `name=value` pairs."""
    return dict(pair.split("=") for pair in value.decode().split(","))


def test_the_latest_by_arrival_counts():
    """This holds for any order of the partitions; at the same time the later position counts."""
    assert state((5, 0, 1, b"k", b"new"), (3, 1, 9, b"k", b"old")) == {b"k": b"new"}
    assert state((5, 0, 2, b"k", b"second"), (5, 0, 1, b"k", b"first")) == {b"k": b"second"}
    assert state((1, 0, 1, b"k", b"x"), (2, 0, 2, b"k", None)) == {b"k": None}


def test_keys_are_added_removed_and_changed():
    """With the fields that differ; a tombstone is as good as no key, and equal events are no difference."""
    left = {b"gone": b"a=1", b"same": b"a=1", b"other": b"a=1,b=2", b"dead": None}
    right = {b"came": b"a=1", b"same": b"a=1", b"other": b"b=3,c=4", b"gone": None}
    assert list(differences(left, right, read, read)) == [
        Difference("came", "added", {}),
        Difference("gone", "removed", {}),
        Difference("other", "changed", {"a": ("1", None), "b": ("2", "3"), "c": (None, "4")}),
    ]


def test_ignored_fields_make_no_difference():
    """A key that differs in nothing else is the same."""
    left, right = {b"k": b"a=1,at=5"}, {b"k": b"a=1,at=6"}
    assert list(differences(left, right, read, read, ignored=("at",))) == []


def test_records_without_a_key_are_counted():
    """They belong to no state."""
    found = State()
    found.add(batch((1, 0, 0, None, b"x"), (2, 0, 1, b"k", b"y")))
    assert (found.values(), found.without_key) == ({b"k": b"y"}, 1)


def test_a_state_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """By the bytes that it holds: a value that was replaced is not counted."""
    monkeypatch.setattr(module, "BYTES_MAX", 100)
    found = State()
    for n in range(50):
        found.add(batch((n, 0, n, b"k", b"x" * 90)))
    with pytest.raises(StateTooLargeError, match="--key"):
        found.add(batch((99, 0, 99, b"other", b"x" * 20)))


def test_values_that_are_no_objects_are_compared_whole():
    """Another application's values may be of any kind, and of another kind later."""
    left = {b"a": b'"x"', b"b": b"[1]", b"c": b'{"n": 1}', b"same": b"null"}
    right = {b"a": b'"y"', b"b": b"[1]", b"c": b"5", b"same": b"null"}
    assert list(differences(left, right, json.loads, json.loads)) == [
        Difference("a", "changed", {"value": ("x", "y")}),
        Difference("c", "changed", {"n": (1, None), "value": (None, 5)}),
    ]
