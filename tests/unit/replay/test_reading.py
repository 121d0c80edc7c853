"""Reading to fixed ends, and in the order of time over partitions, with a client that behaves as librdkafka does."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.kafka.admin import LogRange
from connectors.replay import reading
from connectors.replay.reading import read_batches, read_in_time
from schemas.errors import UnavailableError


class Log:
    """A topic in memory. What is paused is not given; a resumed partition goes on where its reader was."""

    def __init__(self, partitions: dict[int, list[int]], *, at_a_time: int = 3, size: int = 1) -> None:
        """`partitions` gives the times of each partition's records; offsets begin at 0."""
        self.partitions = partitions
        self.next: dict[int, int] = {}
        self.paused: set[int] = set()
        self.at_a_time = at_a_time
        self.size = size
        self.given_most = 0
        self.turn = 0

    def assign(self, places: list[TopicPartition]) -> None:
        """Begin at these offsets."""
        self.next = {place.partition: place.offset for place in places}

    def pause(self, places: list[TopicPartition]) -> None:
        """Give nothing of them."""
        self.paused |= {place.partition for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        """Go on."""
        self.paused -= {place.partition for place in places}

    def consume(self, count: int, timeout: float) -> list[Any]:
        """Some records of one partition, each in its turn."""
        ready = [p for p in self.next if p not in self.paused and self.next[p] < len(self.partitions[p])]
        if not ready:
            return []
        self.turn += 1
        partition = ready[self.turn % len(ready)]
        first = self.next[partition]
        last = min(first + min(count, self.at_a_time), len(self.partitions[partition]))
        self.next[partition] = last
        return [
            Message(
                topic="t",
                partition=partition,
                offset=offset,
                key=b"k",
                value=b"v" * self.size,
                headers=[],
                timestamp=(2, self.partitions[partition][offset]),
            )
            for offset in range(first, last)
        ]


LOGS = st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 50), max_size=20).map(sorted), min_size=1, max_size=4)


def spans_of(partitions: dict[int, list[int]], cut: int) -> dict[int, LogRange]:
    """Of each partition what comes after its first record, without the last `cut`."""
    return {
        p: LogRange(min(1, len(times)), max(min(1, len(times)), len(times) - cut)) for p, times in partitions.items()
    }


def expected(spans: dict[int, LogRange]) -> set[tuple[int, int]]:
    """The places of the spans."""
    return {(p, offset) for p, span in spans.items() for offset in range(span.low, span.high)}


@settings(deadline=None)
@given(LOGS, st.integers(0, 3), st.integers(1, 30))
def test_a_read_gives_exactly_its_spans(partitions: dict[int, list[int]], cut: int, at_a_time: int):
    """All records from the beginning to the end that was fixed, each once, in order in each partition."""
    spans = spans_of(partitions, cut)
    log: Any = Log(partitions, at_a_time=at_a_time)
    found = [record for batch in read_batches(log, "t", spans) for record in batch.records()]
    places = [(record.partition, record.offset) for record in found]
    assert set(places) == expected(spans)
    assert len(places) == len(set(places))
    for partition in partitions:
        mine = [offset for p, offset in places if p == partition]
        assert mine == sorted(mine)


@settings(deadline=None)
@given(LOGS, st.integers(0, 3), st.integers(1, 30), st.sampled_from([1, 2]))
def test_in_time_gives_the_same_in_the_order_of_arrival(
    partitions: dict[int, list[int]], cut: int, at_a_time: int, every: int
):
    """Over all partitions no record comes before an older one; what is not kept is missed by nobody."""
    spans = spans_of(partitions, cut)
    log: Any = Log(partitions, at_a_time=at_a_time)
    found = list(
        read_in_time(log, "t", spans, lambda batch: batch.only([i for i in range(len(batch)) if i % every == 0]))
    )
    assert [record.arrived_ms for record in found] == sorted(record.arrived_ms for record in found)
    if every == 1:
        assert {(record.partition, record.offset) for record in found} == expected(spans)


@pytest.mark.parametrize(("size", "held_max"), [(1, 2_100), (100_000, 40)])
def test_what_waits_for_an_older_record_is_bounded(size: int, held_max: int):
    """A partition far ahead of another is paused, by number and by size, and goes on later."""
    log: Any = Log({0: list(range(5_000)), 1: [10_000] * 5_000}, at_a_time=10, size=size)
    spans = {0: LogRange(0, 5_000), 1: LogRange(0, 5_000)}
    given_out = 0
    for _ in read_in_time(log, "t", spans, lambda batch: batch):
        given_out += 1
        assert sum(log.next.values()) - given_out <= held_max
    assert given_out == 10_000


def test_large_records_are_decoded_few_at_a_time():
    """What came at once is handed on in parts of at most 4 MiB, or of one record, and all of it."""
    log: Any = Log({0: [1] * 12}, at_a_time=12, size=1_500_000)
    assert [len(batch) for batch in read_batches(log, "t", {0: LogRange(0, 12)})] == [2] * 6
    log = Log({0: [1] * 3}, at_a_time=3, size=5_000_000)
    assert [len(batch) for batch in read_batches(log, "t", {0: LogRange(0, 3)})] == [1] * 3


def test_a_broker_that_falls_silent_is_away(monkeypatch):
    """A topic that said it had more and gives nothing ends the read with an error, not never."""
    monkeypatch.setattr(reading, "SILENCE_SECONDS", 1.0)
    log: Any = Log({0: [1, 2]})
    with pytest.raises(UnavailableError, match="sent nothing"):
        list(read_batches(log, "t", {0: LogRange(0, 3)}))
    with pytest.raises(UnavailableError, match="sent nothing"):
        list(read_in_time(Log({0: [1, 2]}), "t", {0: LogRange(0, 3)}, lambda batch: batch))  # type: ignore[arg-type]
