"""Records that wait until nothing older can come: the order of the broker's time, within bounds of memory."""

from __future__ import annotations

from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.log import Waiting


def record(topic: str, partition: int, offset: int, at: int, size: int = 0) -> Record:
    """A record that arrived at a time."""
    return Record(topic, partition, offset, at, None, b"x" * size, [])


def test_the_oldest_comes_first_and_a_partition_keeps_its_order():
    """Even where the broker's time goes back within a partition."""
    waiting = Waiting([("a", 0), ("b", 0)])
    for one in (record("a", 0, 0, 5), record("a", 0, 1, 3), record("b", 0, 0, 4), record("b", 0, 1, 9)):
        waiting.add(one)
    order = []
    while (one := waiting.next()) is not None:
        order.append((one.topic, one.offset))
    assert order == [("b", 0), ("a", 0), ("a", 1), ("b", 1)]


def test_a_partition_of_which_nothing_waits_is_silent():
    """So it is waited for before anything else is given out."""
    waiting = Waiting([("a", 0), ("b", 0)])
    assert waiting.silent == {("a", 0), ("b", 0)}
    waiting.add(record("a", 0, 0, 5))
    assert waiting.silent == {("b", 0)}
    assert waiting.next() is not None
    assert waiting.silent == {("a", 0), ("b", 0)}


def test_bytes_are_bounded():
    """Full at the bound, to be filled again below half of it; a small record counts with what it takes as an object."""
    waiting = Waiting([("a", 0)], bytes_max=10_000)
    for offset in range(3):
        waiting.add(record("a", 0, offset, offset, 2_000))
    assert not waiting.is_full
    waiting.add(record("a", 0, 3, 3, 2_000))
    assert waiting.is_full
    waiting.next()
    waiting.next()
    assert not waiting.is_drained
    waiting.next()
    assert waiting.is_drained
    small = Waiting([("a", 0)], bytes_max=10_000)
    for offset in range(10):
        small.add(record("a", 0, offset, offset))
    assert small.is_full
