"""The output of `highwater top` from two measurements."""

from __future__ import annotations

import pytest

from highwater.api.cli.top_figures import Look, Timings, figures, parse_work

PAGE = """
# TYPE highwater_http_seconds histogram
highwater_http_seconds_bucket{route="/a",method="GET",status="200",le="0.1"} 8
highwater_http_seconds_bucket{route="/a",method="GET",status="200",le="1.0"} 10
highwater_http_seconds_bucket{route="/a",method="GET",status="200",le="+Inf"} 10
highwater_http_seconds_sum{route="/a",method="GET",status="200"} 2.0
highwater_http_seconds_bucket{route="/a",method="GET",status="404",le="0.1"} 1
highwater_http_seconds_bucket{route="/a",method="GET",status="404",le="1.0"} 1
highwater_http_seconds_bucket{route="/a",method="GET",status="404",le="+Inf"} 2
highwater_http_seconds_sum{route="/a",method="GET",status="404"} 5.0
# TYPE other histogram
other_bucket{route="/b",le="+Inf"} 3
other_sum{route="/b"} 3
"""
ROUTE = ("highwater_http_seconds", "/a")
INFINITE = float("inf")


def test_a_page_of_metrics_is_read():
    """The series of one route are added up; other metrics are left out."""
    assert parse_work(PAGE) == {ROUTE: Timings(7.0, ((0.1, 9.0), (1.0, 11.0), (INFINITE, 12.0)))}


def test_timings_are_of_what_came_since():
    """For a restarted process everything counts."""
    before = Timings(1.0, ((0.1, 4.0), (INFINITE, 4.0)))
    after = Timings(3.0, ((0.1, 4.0), (INFINITE, 9.0)))
    assert after.since(before) == Timings(2.0, ((0.1, 0.0), (INFINITE, 5.0)))
    assert before.since(after) == before
    assert after.since(None) == after


def test_a_quantile_lies_in_its_bucket():
    """In proportion; beyond the last bound it is that bound, and of nothing it is zero."""
    timings = Timings(0.0, ((0.1, 50.0), (0.3, 100.0), (INFINITE, 100.0)))
    assert timings.quantile_seconds(0.5) == pytest.approx(0.1)
    assert timings.quantile_seconds(0.75) == pytest.approx(0.2)
    assert Timings(0.0, ((0.1, 0.0), (INFINITE, 5.0))).quantile_seconds(0.95) == pytest.approx(0.1)
    assert Timings(0.0, ()).quantile_seconds(0.95) == 0.0


def test_the_busiest_come_first():
    """Topics by rate, consumers by unread events, work by its 95th percentile, processes by memory."""
    slow, quick = (Timings(9.0, ((1.0, 0.0), (2.0, 6.0), (INFINITE, 6.0))), Timings(0.2, ((0.1, 4.0), (INFINITE, 4.0))))
    group = {"seconds": None, "problem": None, "partitions": []}
    before = Look(10.0, {"quiet": 100, "busy": 5}, (), {})
    after = Look(
        12.0,
        {"quiet": 100, "busy": 45, "new": 7},
        ({"group": "a", "events": 1, **group}, {"group": "b", "events": 9, **group}),
        {
            ROUTE: slow,
            ("highwater_batch_seconds", "g"): quick,
            ("highwater_query_stage_seconds", "idle"): Timings(0.0, ()),
        },
        {"api": 5, "worker": 9},
        ("Kafka is away",),
    )
    told = figures(before, after)
    assert [(one["topic"], one["per_second"]) for one in told["topics"]] == [
        ("busy", 20.0),
        ("quiet", 0.0),
        ("new", 0.0),
    ]
    assert [one["group"] for one in told["groups"]] == ["b", "a"]
    assert told["slowest"] == [
        {"work": "route /a", "p95_ms": 1950.0, "mean_ms": 1500.0, "count": 6},
        {"work": "batch of g", "p95_ms": 95.0, "mean_ms": 50.0, "count": 4},
    ]
    assert [one["process"] for one in told["memory"]] == ["worker", "api"]
    assert (told["over_seconds"], told["problems"]) == (2.0, ["Kafka is away"])
