"""The meaning of --from and --to, and the message for a position outside the topic."""

from __future__ import annotations

import pytest

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.replay.selection import (
    AtEnd,
    AtOffset,
    AtTime,
    Bound,
    InvalidSelectionError,
    parse_bound,
    select,
)

NOW_MS = 1_800_000_000_000
RANGES = {0: LogRange(10, 20), 1: LogRange(0, 100), 2: LogRange(5, 5)}


def parsed(text: str):
    """The bound of a text, for the topic t."""
    return parse_bound(text, topic="t", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", AtEnd(is_latest=False)),
        ("latest", AtEnd(is_latest=True)),
        ("1200", AtOffset(1200)),
        ("3/17", AtOffset(17, 3)),
        ("t/3/17", AtOffset(17, 3)),
        ("90m", AtTime(NOW_MS - 5_400_000)),
        ("1d12h", AtTime(NOW_MS - 129_600_000)),
        ("-90m", AtTime(NOW_MS - 5_400_000)),
        ("-1d12h", AtTime(NOW_MS - 129_600_000)),
        ("-0s", AtTime(NOW_MS)),
        ("99999999w", AtTime(0)),
        ("2026-01-31T12:00Z", AtTime(1_769_860_800_000)),
        ("2026-01-31", AtTime(1_769_817_600_000)),
        ("2026-01-31T13:00+01:00", AtTime(1_769_860_800_000)),
        ("1900-01-01", AtTime(0)),
    ],
)
def test_each_form_means_a_place(text: str, expected: object):
    """Offsets, positions, times and ages are distinguished; a time without a zone is UTC."""
    assert expected == parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-5",
        "5x",
        "2026-13-01",
        "3/",
        "1.5h",
        "--1h",
        "+1h",
        "-",
        "-1h-5m",
        "-2026-01-31",
        "9" * 40,
        "٣",
    ],
)
def test_what_is_no_place_is_refused_with_the_forms(text: str):
    """The message says what there may be instead."""
    with pytest.raises(InvalidSelectionError, match="is not one of: an offset"):
        parsed(text)


def test_a_position_of_another_topic_is_refused():
    """A position is copied from somewhere; one of another topic is a mistake."""
    with pytest.raises(InvalidSelectionError, match="position of other, not of t"):
        parsed("other/0/3")


def chosen(begin=None, end=None, at=None):
    """The spans as pairs."""
    found = select(begin, end, RANGES, lambda ms: (at or {})[ms], topic="t")
    return {partition: (span.low, span.high) for partition, span in found.items()}


def test_without_bounds_everything_is_meant():
    """From the first record of each partition to its end."""
    assert chosen() == {0: (10, 20), 1: (0, 100), 2: (5, 5)}


def test_an_offset_counts_in_every_partition_that_reaches_it():
    """Where a partition does not hold the offset its nearest end counts."""
    assert chosen(AtOffset(15)) == {0: (15, 20), 1: (15, 100), 2: (5, 5)}
    assert chosen(None, AtOffset(15)) == {0: (10, 15), 1: (0, 15), 2: (5, 5)}


def test_an_offset_of_one_partition_leaves_the_others_out():
    """A position means its partition."""
    assert chosen(AtOffset(15, 0)) == {0: (15, 20)}
    assert chosen(AtOffset(15, 0), AtOffset(18, 0)) == {0: (15, 18)}


def test_the_end_of_a_partition_is_in_range():
    """One past the last is where the next record will be: an empty span, not an error."""
    assert chosen(AtOffset(20, 0)) == {0: (20, 20)}


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (AtOffset(21, 0), "offset 21 is not in t: partition 0 holds 10 to 19$"),
        (AtOffset(9, 0), "partition 0 holds 10 to 19$"),
        (AtOffset(101), "partition 0 holds 10 to 19, partition 1 holds 0 to 99, partition 2 is empty"),
        (AtOffset(0, 9), "t has no partition 9: .*partition 1 holds 0 to 99"),
    ],
)
def test_an_offset_out_of_range_is_answered_with_the_range(bound: AtOffset, said: str):
    """The line says what the topic holds."""
    with pytest.raises(InvalidSelectionError, match=said):
        chosen(bound)


def test_times_are_found_in_each_partition_and_kept_within_its_ends():
    """A time after the last record is the end; without records between the times nothing is meant."""
    at = {1: {0: 12, 1: 50, 2: 2**62}, 2: {0: 18, 1: 2**62, 2: 2**62}}
    assert chosen(AtTime(1), AtTime(2), at) == {0: (12, 18), 1: (50, 100), 2: (5, 5)}
    assert chosen(AtTime(2), AtTime(2), at) == {0: (18, 18), 1: (100, 100), 2: (5, 5)}


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (AtTime(2), AtTime(1)),
        (AtOffset(18, 0), AtOffset(15, 0)),
        (AtOffset(18), AtOffset(15)),
        (AtEnd(is_latest=True), AtEnd(is_latest=False)),
    ],
)
def test_an_end_before_the_beginning_is_refused(begin: Bound, end: Bound):
    """An empty answer would look as if the log held nothing."""
    with pytest.raises(InvalidSelectionError, match="the end is before the beginning"):
        chosen(begin, end, {1: dict.fromkeys(RANGES, 1), 2: dict.fromkeys(RANGES, 2)})
