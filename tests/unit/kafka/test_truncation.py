"""What is said of a log that lost its tail, and how a partition is filled up and cut."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from highwater.api.chaos.unsynced import cut, recovery_points
from highwater.connectors.kafka.admin import LogEnd, LogRange
from highwater.connectors.kafka.positions import Stored
from highwater.connectors.kafka.truncation import (
    COMMAND,
    Highest,
    Truncation,
    beyond_end,
    is_replaced,
    led_since,
    of_place,
)
from highwater.connectors.repair.filling import batches
from highwater.connectors.slices import REMAKES
from highwater.connectors.verify.holes import by_topic, holes
from highwater.connectors.verify.tables import incomplete_topics
from highwater.schemas.topics import TOPICS
from highwater.streams.preflight import tail_refusal

TOPIC = "feeds.insight-ingested"
OPEN = Truncation(TOPIC, 2, 5, 10, 0, "insights")
REPAIRED = Truncation(TOPIC, 2, 5, 10, 0, "insights", filled_to=11, missing=0, repaired_at_ms=1)


def test_only_a_position_behind_the_end_is_beyond_it() -> None:
    """A position at the end is in order, and so is a partition of which no end is known."""
    stored = {(TOPIC, 0): 7, (TOPIC, 1): 8, (TOPIC, 2): 9}
    assert beyond_end(stored, {(TOPIC, 0): 7, (TOPIC, 1): 6}) == {(TOPIC, 1): 6}


@pytest.mark.parametrize(("offset", "expected"), [(4, None), (5, REPAIRED), (10, REPAIRED), (11, None)])
def test_a_repaired_loss_covers_what_was_lost_and_filled_up(offset: int, expected: Truncation | None) -> None:
    """From the first lost offset to the last that is not given again."""
    assert of_place([REPAIRED], (TOPIC, 2), offset) == expected
    assert of_place([REPAIRED], (TOPIC, 3), offset) is None


def test_an_open_loss_covers_all_from_its_end_on_and_comes_first() -> None:
    """What is written behind it may stand on a position that was given before."""
    assert of_place([REPAIRED, OPEN], (TOPIC, 2), 7) == OPEN
    assert of_place([OPEN], (TOPIC, 2), 1_000) == OPEN


def test_the_text_names_records_offset_and_command() -> None:
    """An operator reads what happened and what to run."""
    assert "the 5 records from offset 5 on" in OPEN.text
    assert f"`{COMMAND} --execute`" in OPEN.text


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10_001, 25_000])
def test_a_partition_is_filled_up_to_its_last_position_and_at_most_one_further(count: int) -> None:
    """Each transaction takes an offset for its marker."""
    taken = sum(records + 1 for records in batches(count))
    assert count <= taken <= count + 1
    assert all(0 < records <= 10_000 for records in batches(count))


def test_a_worker_refuses_offsets_beyond_the_end() -> None:
    """It names the partition and the command; an offset at the end is none of them."""
    assert tail_refusal({(TOPIC, 1): (3, 3)}) is None
    refusal = tail_refusal({(TOPIC, 1): (3, 3), (TOPIC, 2): (9, 4)})
    assert refusal is not None
    assert f"{TOPIC}/2 from offset 4 on" in refusal
    assert f"{TOPIC}/1" not in refusal


def test_a_log_has_a_hole_unless_everything_was_made_again() -> None:
    """An open loss counts all of its records."""
    other = Truncation("streams.tick", 0, 0, 3, 0, "mirror", filled_to=4, missing=3, repaired_at_ms=1)
    assert holes([REPAIRED]) == {}
    found = by_topic(holes([REPAIRED, OPEN, other]))
    assert found.keys() == {TOPIC, "streams.tick"}
    assert "5 records" in found[TOPIC]


def test_a_decision_that_was_lost_is_no_difference_of_its_table() -> None:
    """The topic of a table's decisions is compared only if its partition has all of them; another partition does not count."""
    spans = {(TOPIC, 2): LogRange(0, 20), ("feeds.plan-changed", 2): LogRange(3, 9)}
    found = incomplete_topics(spans, holes([OPEN, dataclasses.replace(OPEN, topic="streams.tick")]))
    assert found.keys() == {TOPIC, "feeds.plan-changed"}
    assert incomplete_topics({(TOPIC, 1): LogRange(0, 20)}, holes([OPEN])) == {}


def test_a_record_in_the_place_of_a_lost_one_is_replaced_once_the_log_is_repaired() -> None:
    """Before the repair the partition is not read; later records are not replaced."""
    place = (TOPIC, 2)
    assert [is_replaced([REPAIRED], place, offset) for offset in (4, 5, 10, 11)] == [False, True, True, False]
    assert not is_replaced([REPAIRED], (TOPIC, 3), 5)
    assert not is_replaced([OPEN], place, 5)


def test_only_a_partition_with_another_leader_since_is_read_again() -> None:
    """A log that ends before the position is known to have lost it, and one under the same leader has not."""
    known = Stored(10, 3)
    ends = {
        (TOPIC, 0): LogEnd(12, 3),
        (TOPIC, 1): LogEnd(12, 5),
        (TOPIC, 2): LogEnd(9, 5),
        (TOPIC, 3): LogEnd(12, None),
    }
    highest = {(TOPIC, number): Highest(10, known) for number in range(5)} | {(TOPIC, 5): Highest(10)}
    assert led_since(highest, ends) == {(TOPIC, 1): known, (TOPIC, 3): known}


def test_what_can_be_made_again_is_a_topic_of_the_catalogue() -> None:
    """Every remake is of a topic that others may write: of our own events the effects are stored."""
    assert all(TOPICS[topic].outsider for topic in REMAKES)


def test_a_cut_takes_whole_batches_and_later_segments(tmp_path: Path) -> None:
    """As an interrupted write would leave them: the beginning of the next batch is still there."""
    folder = tmp_path / "topic-0"
    folder.mkdir()

    def batch(base: int, records: int) -> bytes:
        body = struct.pack(">ibIhi", 0, 2, 0, 0, records - 1) + b"x" * 40
        return struct.pack(">qi", base, len(body)) + body

    first, later = folder / "00000000000000000000.log", folder / "00000000000000000008.log"
    first.write_bytes(batch(0, 5) + batch(5, 3))
    later.write_bytes(batch(8, 2))
    (folder / "00000000000000000008.index").write_bytes(b"")
    assert cut(folder, 6) == 5
    assert first.stat().st_size == len(batch(0, 5)) + 7
    assert sorted(path.name for path in folder.iterdir()) == [first.name]
    assert cut(folder, 100) is None


def test_recovery_points_are_read_as_kafka_writes_them(tmp_path: Path) -> None:
    """A version, a count, then topic, partition and offset of each line."""
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\na.b 4 0\nc 5 17\n", encoding="ascii")
    assert recovery_points(tmp_path) == {("a.b", 4): 0, ("c", 5): 17}
