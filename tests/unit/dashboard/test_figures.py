"""Numbers and durations as people read them."""

from __future__ import annotations

import pytest

from highwater.api.dashboard import figures


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "-"), (0, "0 s"), (0.25, "250 ms"), (2.5, "2.5 s"), (30, "30 s"), (61, "1 min 1 s"), (3_600, "1 h"),
     (7_300, "2 h 1 min"), (7 * 86_400, "7 d"), (90_000, "1 d 1 h")],
)  # fmt: skip
def test_durations(value, told):
    """In the two largest units, the smaller left out where it is nothing."""
    assert told == figures.seconds(value)


@pytest.mark.parametrize(
    ("value", "told"), [(None, "-"), (0, "0/s"), (0.01, "<0.1/s"), (12.34, "12.3/s"), (1_234.5, "1,234/s")]
)
def test_rates(value, told):
    """Three digits where they say something."""
    assert told == figures.rate(value)


def test_ago_is_rough():
    """Seconds are not shown beside hours."""
    assert figures.ago(0, 3_723_000) == "1 h ago"
    assert figures.ago(None, 0) == "never"
    assert figures.ago(10_000, 0) == "in 10 s"


def test_a_line_stays_in_its_box():
    """This holds for any values."""
    points = [tuple(map(float, point.split(","))) for point in figures.spark_points([0, 5, 1_000_000, 3]).split()]
    assert all(0 <= x <= 90 and 0 <= y <= 22 for x, y in points)
    assert figures.spark_points([1]) == ""


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes(size_bytes: int, shown: str):
    """In the largest unit that gives at least one."""
    assert shown == figures.size(size_bytes)
