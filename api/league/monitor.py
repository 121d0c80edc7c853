"""Whether the services beneath league pages are large enough: sampled counters, the verdict, and the same as metrics
(R4.40, R4.41). Also sets the gauges of the queries at the same times.

Invariant: reported is the increase over the last five minutes of what Redis, PostgreSQL and this process count
themselves. No value is ever null: an unavailable service has `is_up` false beside its last counters, and sampling
continues; without any requests a share of hits is 1, and a share of errors, a rate or a latency is 0. Without
`pg_stat_statements` slow statements are sampled.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.league import read_model as league_api
from highwater.connectors.league.read_model import DatabaseCounters
from highwater.connectors.queries import metrics as query_metrics
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.errors import UnavailableError
from highwater.streams import telemetry
from highwater.streams.clock import Clock
from highwater.streams.league.monitoring import SPAN_MS, Sample, quantile_seconds, upgrade_verdict
from highwater.streams.telemetry import get_log

# How slow statements were found: measured by PostgreSQL, or running at the time of a sample.
MEASURED, SAMPLED = "pg_stat_statements", "pg_stat_activity"
_NO_REDIS: Mapping[str, Any] = dict.fromkeys(
    ("keyspace_hits", "keyspace_misses", "evicted_keys", "connected_clients", "used_memory"), 0
)
_NO_DATABASE = DatabaseCounters(0, 0, None)

SAMPLE_SECONDS = 10
# Sizes of tables change slowly, and querying them reads the file system: each sixth sample.
_SIZES_EACH = 6
# Five minutes, and the sample at their beginning.
SAMPLES_MAX = SPAN_MS // (SAMPLE_SECONDS * 1000) + 1
_ERROR_MIN = 500
_P95, _P99 = 0.95, 0.99

_log = get_log("monitor")

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True, slots=True)
class HttpCounters:
    """Answers of this process: by upper bound in seconds, all of them, and those above 499."""

    latency: Mapping[float, float]
    requests: float
    errors: float


@dataclass(frozen=True, slots=True)
class Look:
    """All counters at one time; None for an unavailable service."""

    at_ms: int
    http: HttpCounters
    redis: Mapping[str, Any] | None
    database: DatabaseCounters | None
    pool: Mapping[str, int]

    @property
    def is_pool_exhausted(self) -> bool:
        """Return whether a new reader would have to wait for a connection."""
        return bool(self.pool) and self.pool["idle"] == 0 and self.pool["size"] >= self.pool["size_max"]


class Monitor:
    """Samples in the background, and reports."""

    def __init__(self, link: RedisLink, pool: Callable[[], Pool], clock: Clock) -> None:
        self._link = link
        self._pool = pool
        self._clock = clock
        self._looks: deque[Look] = deque(maxlen=SAMPLES_MAX)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sampling."""
        self._task = asyncio.create_task(self._sample(), name="monitor")

    async def close(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self) -> None:
        for number in itertools.count():
            look = await self._look()
            self._looks.append(look)
            _export(_report([*self._looks], look))
            await self.export_queries(has_sizes=number % _SIZES_EACH == 0)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def export_queries(self, *, has_sizes: bool) -> None:
        """Set the gauges of the queries: how many wait, and the sizes of their tables (R1.38, R1.40)."""
        try:
            telemetry.QUERY_BACKLOG.set(await query_metrics.backlog(self._pool()))
            sizes = await query_metrics.store_bytes(self._pool()) if has_sizes else {}
        except UnavailableError as error:
            _log.debug("queries are not sampled", reason=str(error))
            telemetry.QUERY_BACKLOG.set(math.nan)
            return
        for table, size in sizes.items():
            telemetry.QUERY_STORE_BYTES.labels(table).set(size)

    async def report(self) -> dict[str, Any]:
        """Return the current counters, their increase, and the verdict."""
        look = await self._look()
        return _report([*self._looks, look], look)

    async def _look(self) -> Look:
        pool = _pool_sizes(self._pool)
        return Look(self._clock(), http_counters(), await self._redis(), await self._database(), pool)

    async def _redis(self) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._link.counters()
        except RedisAwayError as error:
            _log.debug("Redis is not sampled", reason=str(error))
            return None
        return found

    async def _database(self) -> DatabaseCounters | None:
        try:
            return await league_api.counters(self._pool())
        except UnavailableError as error:
            _log.debug("PostgreSQL is not sampled", reason=str(error))
            return None


def http_counters() -> HttpCounters:
    """Return what this process has answered since it started, over all routes."""
    latency: dict[float, float] = {}
    requests = errors = 0.0
    for metric in telemetry.HTTP_SECONDS.collect():
        for sample in metric.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                latency[bound] = latency.get(bound, 0) + sample.value
            elif sample.name.endswith("_count"):
                requests += sample.value
                errors += sample.value if int(sample.labels["status"]) >= _ERROR_MIN else 0
    return HttpCounters(latency, requests, errors)


def _pool_sizes(pool: Callable[[], Pool]) -> dict[str, int]:
    try:
        found = pool()
    except UnavailableError:
        return {}
    return {"size": found.get_size(), "idle": found.get_idle_size(), "size_max": found.get_max_size()}


def _samples(looks: list[Look]) -> list[Sample]:
    """Return the samples as the verdict needs them: Redis and this process are separate sources."""
    of_redis = [
        Sample(
            look.at_ms,
            "redis",
            hits=look.redis["keyspace_hits"],
            misses=look.redis["keyspace_misses"],
            evicted_keys=look.redis["evicted_keys"],
        )
        for look in looks
        if look.redis is not None
    ]
    return of_redis + [Sample(look.at_ms, "http", latency=look.http.latency) for look in looks]


def _report(looks: list[Look], now: Look) -> dict[str, Any]:
    recent = [look for look in looks if now.at_ms - SPAN_MS <= look.at_ms <= now.at_ms]
    verdict = upgrade_verdict(_samples(recent), now.at_ms)
    span_seconds = (now.at_ms - recent[0].at_ms) / 1000
    return {
        "should_upgrade": verdict.should_upgrade,
        "reasons": [reason._asdict() for reason in verdict.reasons],
        "span_seconds": span_seconds,
        "redis": _redis_report(looks, now, verdict.hit_ratio),
        "database": _database_report(looks, recent, now, span_seconds),
        "http": _http_report(recent[0].http, now.http),
    }


def _redis_report(looks: list[Look], now: Look, hit_ratio: float | None) -> dict[str, Any]:
    known = next((look.redis for look in reversed(looks) if look.redis is not None), _NO_REDIS)
    names = ("keyspace_hits", "keyspace_misses", "evicted_keys", "connected_clients")
    reads = known["keyspace_hits"] + known["keyspace_misses"]
    ever = known["keyspace_hits"] / reads if reads else 1.0
    return {
        "is_up": now.redis is not None,
        # Of the last five minutes; if nothing was read in them, since Redis started.
        "hit_ratio": ever if hit_ratio is None else hit_ratio,
        **{name: known[name] for name in names},
        "used_memory_bytes": known["used_memory"],
    }


def _database_report(looks: list[Look], recent: list[Look], now: Look, span_seconds: float) -> dict[str, Any]:
    known = next((look.database for look in reversed(looks) if look.database is not None), _NO_DATABASE)
    of_span = [look.database for look in recent if look.database is not None]
    grown = max(0, known.transactions - of_span[0].transactions) if of_span else 0
    is_measured = known.slow_statements is not None
    return {
        "is_up": now.database is not None,
        "pool": {"size": 0, "idle": 0, "size_max": 0, **now.pool},
        "connection_waits": sum(look.is_pool_exhausted for look in recent),
        "lock_waits": known.lock_waits,
        "transactions": known.transactions,
        "transactions_per_second": round(grown / span_seconds, 2) if span_seconds else 0.0,
        "slow_statements": known.slow_statements if is_measured else sum(one.slow_now for one in of_span),
        "slow_statements_by": MEASURED if is_measured else SAMPLED,
    }


def _http_report(first: HttpCounters, now: HttpCounters) -> dict[str, Any]:
    latency = {bound: count - first.latency.get(bound, 0) for bound, count in now.latency.items()}
    requests = now.requests - first.requests
    return {
        "requests": int(requests),
        "error_ratio": (now.errors - first.errors) / requests if requests else 0.0,
        "p95_seconds": quantile_seconds(latency, _P95) or 0.0,
        "p99_seconds": quantile_seconds(latency, _P99) or 0.0,
    }


def _export(report: Mapping[str, Any]) -> None:
    """Export the report as metrics; an unavailable service is NaN, since a series has no `is_up` beside it."""
    redis, database, http = report["redis"], report["database"], report["http"]

    def number(part: Mapping[str, Any], name: str) -> float:
        return float(part[name]) if part["is_up"] else math.nan

    telemetry.UPGRADE_ADVISED.set(report["should_upgrade"])
    telemetry.REDIS_HIT_RATIO.set(number(redis, "hit_ratio"))
    telemetry.REDIS_EVICTED_KEYS.set(number(redis, "evicted_keys"))
    telemetry.REDIS_MEMORY_BYTES.set(number(redis, "used_memory_bytes"))
    telemetry.REDIS_CLIENTS.set(number(redis, "connected_clients"))
    pool = database["pool"]
    telemetry.DATABASE_CONNECTIONS.labels("idle").set(pool["idle"])
    telemetry.DATABASE_CONNECTIONS.labels("in_use").set(pool["size"] - pool["idle"])
    telemetry.DATABASE_WAITS.labels("lock").set(number(database, "lock_waits"))
    telemetry.DATABASE_WAITS.labels("connection").set(number(database, "connection_waits"))
    telemetry.DATABASE_TRANSACTIONS.set(number(database, "transactions"))
    telemetry.DATABASE_SLOW_STATEMENTS.set(number(database, "slow_statements"))
    telemetry.HTTP_QUANTILE_SECONDS.labels("0.95").set(http["p95_seconds"])
    telemetry.HTTP_QUANTILE_SECONDS.labels("0.99").set(http["p99_seconds"])
    telemetry.HTTP_ERROR_RATIO.set(http["error_ratio"])
