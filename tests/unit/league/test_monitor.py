"""The monitor's report of sampled counters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from highwater.api.league.monitor import SAMPLES_MAX, HttpCounters, Look, Monitor, _report, http_counters
from highwater.connectors.league.read_model import DatabaseCounters
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.errors import UnavailableError
from highwater.streams import telemetry

START_MS = 1_700_000_000_000


def _redis(hits: int, misses: int, evicted: int = 0) -> dict[str, Any]:
    return {
        "keyspace_hits": hits, "keyspace_misses": misses, "evicted_keys": evicted, "used_memory": 1_000, "connected_clients": 4,
    }  # fmt: skip


def _http(quick: int, slow: int = 0, errors: int = 0) -> HttpCounters:
    requests = quick + slow
    return HttpCounters({0.1: quick, 2.0: requests, math.inf: requests}, requests, errors)


def _look(seconds: int, **parts: Any) -> Look:
    told: dict[str, Any] = {
        "http": _http(0), "redis": _redis(0, 0), "database": DatabaseCounters(0, 0, None),
        "pool": {"size": 16, "idle": 3, "size_max": 16},
    }  # fmt: skip
    return Look(START_MS + seconds * 1000, **{**told, **parts})


def _of(*looks: Look) -> dict[str, Any]:
    return _report(list(looks), looks[-1])


def test_what_is_told_is_the_increase_of_the_last_five_minutes() -> None:
    """Earlier counts are left out, and so are older samples."""
    report = _of(
        _look(-10, redis=_redis(0, 0), http=_http(0), database=DatabaseCounters(0, 0, None)),
        _look(0, redis=_redis(1_000, 1_000), http=_http(500, errors=500), database=DatabaseCounters(100, 0, None)),
        _look(300, redis=_redis(1_900, 1_100), http=_http(600, errors=510), database=DatabaseCounters(700, 2, 1)),
    )
    assert report["span_seconds"] == 300
    assert report["redis"]["hit_ratio"] == 0.9
    assert (report["http"]["requests"], report["http"]["error_ratio"]) == (100, 0.1)
    database = report["database"]
    assert (database["transactions_per_second"], database["lock_waits"], database["slow_statements"]) == (2.0, 2, 1)
    assert report["should_upgrade"] is False


@pytest.mark.requirement("R4.41")
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"redis": _redis(84, 16)}, "hit_ratio"),
        ({"redis": _redis(100, 0, evicted=1)}, "evicted_keys"),
        ({"http": _http(50, 50)}, "p95"),
    ],
)
def test_what_speaks_for_a_larger_redis(parts: dict[str, Any], reason: str) -> None:
    """Each of the three signs of R4.41 by itself."""
    report = _of(_look(0), _look(60, **parts))
    assert (report["should_upgrade"], [one["name"] for one in report["reasons"]]) == (True, [reason])


def test_a_pool_with_nothing_left_is_a_wait() -> None:
    """Among the samples of the span, those at which a reader would have waited count."""
    full = {"size": 16, "idle": 0, "size_max": 16}
    growing = {"size": 15, "idle": 0, "size_max": 16}
    report = _of(_look(0, pool=full), _look(10, pool=growing), _look(20, pool=full), _look(30))
    assert report["database"]["connection_waits"] == 2


def test_a_part_that_is_away_says_so_beside_what_it_counted_last() -> None:
    """A part that was unavailable in between is counted around the gap."""
    report = _of(
        _look(0, redis=_redis(3, 1), database=DatabaseCounters(50, 1, None)),
        _look(10, redis=None, database=None, pool={}),
    )
    assert (report["redis"]["is_up"], report["redis"]["hit_ratio"]) == (False, 0.75)
    assert (report["database"]["is_up"], report["database"]["transactions"]) == (False, 50)
    assert _nulls(report) == []
    report = _of(_look(0, redis=None, database=None), _look(10), _look(20, redis=_redis(9, 1)))
    assert report["redis"]["hit_ratio"] == 0.9


def test_of_nothing_there_is_a_number_too() -> None:
    """A single sample, and nothing asked yet."""
    report = _of(_look(0))
    assert _nulls(report) == []
    assert (report["redis"]["hit_ratio"], report["database"]["transactions_per_second"]) == (1.0, 0.0)
    assert report["http"] == {"requests": 0, "error_ratio": 0.0, "p95_seconds": 0.0, "p99_seconds": 0.0}


def test_without_measured_statements_those_found_running_are_counted() -> None:
    """PostgreSQL measures statements only with an extension that few have."""
    report = _of(
        _look(0, database=DatabaseCounters(0, 0, None, 2)),
        _look(10, database=None),
        _look(20, database=DatabaseCounters(0, 0, None, 1)),
    )
    assert (report["database"]["slow_statements"], report["database"]["slow_statements_by"]) == (3, "pg_stat_activity")
    report = _of(_look(0, database=DatabaseCounters(0, 0, 7, 2)))
    assert (report["database"]["slow_statements"], report["database"]["slow_statements_by"]) == (
        7,
        "pg_stat_statements",
    )


def _nulls(value: Any, path: str = "") -> list[str]:
    """Where a document says null."""
    if isinstance(value, dict):
        return [found for name, one in value.items() for found in _nulls(one, f"{path}.{name}")]
    return [path] if value is None else []


def test_answers_are_counted_over_all_routes() -> None:
    """By bound, all of them, and those above 499."""
    before = http_counters()
    for status, seconds in ((200, 0.01), (304, 0.001), (503, 0.3)):
        telemetry.HTTP_SECONDS.labels("/test", "GET", status).observe(seconds)
    after = http_counters()
    assert (after.requests - before.requests, after.errors - before.errors) == (3, 1)
    grown = {bound: count - before.latency.get(bound, 0) for bound, count in after.latency.items()}
    assert (grown[0.005], grown[0.02], grown[0.5], grown[math.inf]) == (1, 2, 3, 3)


async def test_it_reports_with_everything_away_and_forgets_in_time() -> None:
    """No part has to be there, and memory is bounded by five minutes of samples."""

    def away() -> Any:
        raise UnavailableError

    monitor = Monitor(RedisLink(None), away, lambda: START_MS)
    report = await monitor.report()
    assert (report["redis"]["is_up"], report["database"]["is_up"], report["should_upgrade"]) == (False, False, False)
    assert _nulls(report) == []
    assert (monitor._looks.maxlen, SAMPLES_MAX) == (31, 31)
