"""The changes that a bell of resting consumers passes to its client: only added and removed partitions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import TopicPartition

from highwater.connectors.kafka.resting import _Bell


class Client:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[tuple[int, int]]]] = []

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions with the offsets to fetch from."""
        self.told.append(("add", [(one.partition, one.offset) for one in partitions]))

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions that go."""
        self.told.append(("remove", [(one.partition, 0) for one in partitions]))

    def taken(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Its calls since the last query."""
        told, self.told = self.told, []
        return told


def silent() -> _Bell:
    """A bell whose thread does not run."""
    bell = _Bell({}, "bell", 10_000)
    bell._thread = threading.current_thread()
    return bell


def test_partitions_that_stay_are_left_alone():
    """A consumer that joins and one that leaves do not restart the fetch of others."""
    bell, client = silent(), Client()
    bell.wait("a", {("t", 0): 5, ("t", 1): 7}, lambda: None)
    bell.wait("b", {("t", 2): 0}, lambda: None)
    bell._assign(client)  # type: ignore[arg-type]
    assert client.taken() == [("add", [(0, 5), (1, 7), (2, 0)])]
    bell.leave("b")
    bell.wait("c", {("t", 1): 4, ("t", 3): 9}, lambda: None)
    bell._assign(client)  # type: ignore[arg-type]
    # Another consumer with an earlier position of a partition begins there.
    assert client.taken() == [("remove", [(1, 0), (2, 0)]), ("add", [(1, 4), (3, 9)])]
    bell._assign(client)  # type: ignore[arg-type]
    assert client.taken() == []


def test_who_waits_once_more_for_a_record_that_was_taken_is_woken_by_it():
    """The client has it already, and would continue after it."""
    bell, client, rung = silent(), Client(), threading.Event()
    places = {("t", 0): 5, ("t", 1): 7}
    bell.wait("a", places, rung.set)
    bell._assign(client)  # type: ignore[arg-type]
    bell._wake(("t", 0), 5)
    assert rung.is_set()
    bell.wait("a", places, rung.set)
    client.taken()
    bell._assign(client)  # type: ignore[arg-type]
    assert client.taken() == [("remove", [(0, 0)]), ("add", [(0, 5)])]
