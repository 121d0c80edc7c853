"""Replays into other topics: refused topics, the origin of a copy, and its speed."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka.records import Record
from highwater.connectors.replay.into import Pace, RefusedError, check_target, copy_of
from highwater.schemas.topics import TOPICS, dead_letter_topic

INSIGHTS = TOPICS["feeds.insight-ingested"]


@pytest.mark.parametrize(
    ("source", "into"),
    [
        ("feeds.rebuild-requested", "feeds.rebuild-requested"),
        ("feeds.rebuild-demanded", "feeds.rebuild-demanded"),
        ("feeds.user-erased", "feeds.user-erased"),
        ("queries.query-submitted", "queries.query-submitted"),
        ("jobs.control", "jobs.control"),
        ("jobs.usage-flushed", "jobs.usage-flushed"),
        ("cache.version-bumped", "cache.version-bumped"),
        ("feeds.insight-ingested", "feeds.user-active"),
        ("feeds.insight-ingested", "highwater-pending-changelog"),
        ("feeds.insight-ingested", "feeds.insight-ingested.dlq"),
        ("feeds.insight-ingested", "__consumer_offsets"),
    ],
)
def test_what_the_product_acts_upon_is_refused_unless_one_knows(source: str, into: str):
    """Commands, the product's own topics, other events and its bookkeeping; --i-know lets each pass."""
    with pytest.raises(RefusedError, match="--i-know"):
        check_target(TOPICS[source], into, i_know=False)
    check_target(TOPICS[source], into, i_know=True)


@pytest.mark.parametrize(
    ("source", "into"),
    [
        ("feeds.insight-ingested", "feeds.insight-ingested"),
        ("feeds.insight-ingested", "scratch"),
        ("feeds.rebuild-requested", "scratch"),
        ("feeds.cluster-evolved", "feeds.cluster-evolved"),
    ],
)
def test_facts_and_topics_of_ones_own_are_not(source: str, into: str):
    """Topics that any producer may publish to, and topics that the product does not read."""
    check_target(TOPICS[source], into, i_know=False)


def test_dead_letters_go_back_where_they_came_from():
    """A dead-letter topic holds the events of its topic."""
    check_target(dead_letter_topic(INSIGHTS), INSIGHTS.name, i_know=False)


@pytest.mark.parametrize("name", [name for name, topic in TOPICS.items() if topic.consumers and not topic.outsider])
def test_no_topic_that_the_product_alone_writes_is_open(name: str):
    """A topic that is added to the catalogue later is refused too."""
    with pytest.raises(RefusedError):
        check_target(TOPICS[name], name, i_know=False)


RECORD = Record("t", 3, 14, 1_700_000_000_123, b"k", None, [("a", b"1"), ("replay_origin", b"old")])


def test_a_copy_tells_its_origin():
    """Key and bytes as they were, tombstones too; position and time in headers, once."""
    copy = copy_of(RECORD, 8, 8)
    assert (copy.partition, copy.key, copy.value) == (3, b"k", None)
    assert copy.headers == [("a", b"1"), ("replay_origin", b"t/3/14"), ("replay_time", b"2023-11-14T22:13:20.123Z")]
    assert copy_of(RECORD, 4, 8).partition == -1


class _Time:
    """Seconds that pass by being slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def seconds(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("speed", "expected"), [(1.0, 12.0), (10.0, 1.2), (None, 0.0)])
def test_records_come_as_far_apart_as_they_did(speed: float | None, expected: float):
    """Intervals are divided by the speed; records out of order do not wait, and no single wait is long."""
    time = _Time()
    pace = Pace(speed, time.seconds, time.sleep)
    for arrived_ms in (5_000, 5_000, 9_000, 4_000, 17_000):
        pace.wait(arrived_ms)
    assert sum(time.slept) == pytest.approx(expected)
    assert max(time.slept, default=0) <= 0.2
