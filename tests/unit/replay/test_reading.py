"""Reading to fixed ends, and in the order of time over partitions, with a client that behaves as librdkafka does."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.replay import reading
from highwater.connectors.replay.reading import in_batches, read_batches, read_in_time
from highwater.schemas.errors import UnavailableError


class Log:
    """A topic in memory. A paused partition returns nothing; a resumed one continues at its reader's position."""

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
        """Continue."""
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
    """Each partition after its first record, without the last `cut`."""
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
    """Over all partitions no record comes before an older one; nothing waits for a filtered record."""
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
    """A partition far ahead of another is paused, by number and by size, and continues later."""
    log: Any = Log({0: list(range(5_000)), 1: [10_000] * 5_000}, at_a_time=10, size=size)
    spans = {0: LogRange(0, 5_000), 1: LogRange(0, 5_000)}
    given_out = 0
    for _ in read_in_time(log, "t", spans, lambda batch: batch):
        given_out += 1
        assert sum(log.next.values()) - given_out <= held_max
    assert given_out == 10_000


@settings(deadline=None)
@given(LOGS, st.integers(1, 30), st.integers(1, 10), st.sampled_from([1, 2, 3]))
def test_the_first_few_are_those_of_the_whole(partitions: dict[int, list[int]], at_a_time: int, limit: int, every: int):
    """For any order of the partitions and any filter, the first N are the first N of the sorted whole."""
    spans = spans_of(partitions, 0)

    def keep(batch: Any) -> Any:
        return batch.only([i for i, offset in enumerate(batch.offsets) if offset % every == 0])

    log: Any = Log(partitions, at_a_time=at_a_time)
    found = [(r.arrived_ms, r.partition, r.offset) for r in islice(read_in_time(log, "t", spans, keep), limit)]
    whole = sorted((partitions[p][offset], p, offset) for p, offset in expected(spans) if offset % every == 0)
    assert found == whole[:limit]


def test_the_first_few_are_known_before_everything_is_read():
    """A partition of which nothing is kept holds the others back by its time only, not to its end."""
    times = list(range(5_000))
    log: Any = Log({0: times, 1: times}, at_a_time=10)
    found = read_in_time(
        log,
        "t",
        {0: LogRange(0, 5_000), 1: LogRange(0, 5_000)},
        lambda batch: batch.only([i for i in range(len(batch)) if batch.partitions[i] == 0 and batch.offsets[i] > 99]),
    )
    assert [record.offset for record in islice(found, 3)] == [100, 101, 102]
    assert sum(log.next.values()) <= 300


@pytest.mark.parametrize(("size", "lengths"), [(1, [1_000, 1_000, 500]), (600_000, [2] * 1_250)])
def test_records_one_by_one_become_batches_of_some(size: int, lengths: list[int]):
    """By number and by size, each record once and in order."""
    log: Any = Log({0: list(range(2_500))}, at_a_time=1_000 if size == 1 else 1, size=size)
    records = read_in_time(log, "t", {0: LogRange(0, 2_500)}, lambda batch: batch)
    offsets = []
    for place, batch in enumerate(in_batches("t", records)):
        assert len(batch) == lengths[place]
        offsets += batch.offsets.tolist()
    assert offsets == list(range(2_500))


def test_large_records_are_decoded_few_at_a_time():
    """A large batch is passed on completely, in parts of at most 1 MiB, or of one record."""
    log: Any = Log({0: [1] * 12}, at_a_time=12, size=375_000)
    assert [len(batch) for batch in read_batches(log, "t", {0: LogRange(0, 12)})] == [2] * 6
    log = Log({0: [1] * 3}, at_a_time=3, size=5_000_000)
    assert [len(batch) for batch in read_batches(log, "t", {0: LogRange(0, 3)})] == [1] * 3


def test_of_large_records_few_are_taken_at_a_time():
    """Once they are known to be large, no more than one decoded part is read; of small ones as many as before."""
    asked: list[int] = []

    class Asked(Log):
        def consume(self, count: int, timeout: float) -> list[Any]:
            asked.append(count)
            return super().consume(count, timeout)

    log: Any = Asked({0: [1] * 60}, at_a_time=20, size=300_000)
    assert sum(map(len, read_batches(log, "t", {0: LogRange(0, 60)}))) == 60
    assert asked == [reading.BATCH_RECORDS, *[3] * 14]
    asked.clear()
    log = Asked({0: [1] * 60}, at_a_time=20)
    assert sum(map(len, read_batches(log, "t", {0: LogRange(0, 60)}))) == 60
    assert set(asked) == {reading.BATCH_RECORDS}


def test_a_broker_that_falls_silent_is_away(monkeypatch):
    """A topic that said it had more and gives nothing ends the read with an error, not never."""
    monkeypatch.setattr(reading, "SILENCE_SECONDS", 1.0)
    log: Any = Log({0: [1, 2]})
    with pytest.raises(UnavailableError, match="sent nothing"):
        list(read_batches(log, "t", {0: LogRange(0, 3)}))
    with pytest.raises(UnavailableError, match="sent nothing"):
        list(read_in_time(Log({0: [1, 2]}), "t", {0: LogRange(0, 3)}, lambda batch: batch))  # type: ignore[arg-type]
