"""Records the history of metrics: one sample a minute, by the API process that holds the lease.

Invariants. While PostgreSQL is unavailable nothing is measured. A value that could not be measured is missing for its
minute. A rate is never computed across a minute in which this process did not record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from highwater.api.core.services import Services
from highwater.connectors.history.samples import add_sample, stage_seconds, watched
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.groups import Standing, lags
from highwater.connectors.kafka.memberships import foreign_standings
from highwater.connectors.kafka.reading import log_ranges_of
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.postgres.pool import AWAY, reading, transaction
from highwater.schemas.errors import HighwaterError
from highwater.schemas.topics import all_topics
from highwater.streams.clock import monotonic_seconds
from highwater.streams.history import (
    GROUP_LAG,
    SAMPLE_MS,
    Counters,
    Figures,
    partition_lags,
    rate_figures,
    ratio,
    step_of,
)
from highwater.streams.telemetry import CONDITIONAL_GETS, DOCUMENT_READS, REDIS_HIT_RATIO, get_log

# After two missed minutes another process takes over; the minutes between are a gap.
LEASE_SECONDS = 150.0
_NAME = "recorder"
_READS, _ANSWERED, _PAGES, _IN_MEMORY = "reads", "answered with 304", "pages", "in memory"
_log = get_log("history")


class HistoryRecorder:
    """One task, which measures once a minute while it holds the lease."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # A client is created for each measurement of the lag, and logs its end; that is not worth a log line.
        self._client = {**services.settings.kafka_client(), "log_level": "4"}
        self._leases = Leases(LeaseKind.HISTORY, seconds=LEASE_SECONDS, ends_with_session=False)
        self._task: asyncio.Task[None] | None = None
        self._ends: Counters | None = None
        self._reads: Counters | None = None
        self.measured = 0

    def start(self) -> None:
        """Start recording."""
        self._task = asyncio.create_task(self._run(), name="history")

    async def close(self) -> None:
        """Stop, and let another process record at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._leases.held and self._services.database.ready:
            with suppress(HighwaterError):  # the lease expires
                async with reading(self._services.database.require()) as connection:
                    await self._leases.release(connection)

    async def _run(self) -> None:
        while True:
            now_ms = self._services.clock()
            await asyncio.sleep((step_of(now_ms) + SAMPLE_MS - now_ms) / 1000)
            await self.record(self._services.clock())

    async def record(self, now_ms: int) -> bool:
        """Measure and store the minute that ends now; return whether this process did."""
        try:
            return await self._record(now_ms)
        except (HighwaterError, *AWAY) as error:
            _log.debug("a minute is not recorded", reason=str(error) or type(error).__name__)
            self._ends = self._reads = None
            return False

    async def _record(self, now_ms: int) -> bool:
        pool = self._services.database.require()
        async with reading(pool) as connection:
            if not await self._leases.take(connection, [_NAME]):
                self._leases.forget()
                self._ends = self._reads = None
                return False
        self.measured += 1
        figures = {name: found for name, found in (await self._figures(now_ms)).items() if found is not None}
        async with transaction(pool) as tx:
            await add_sample(tx, step_of(now_ms) - SAMPLE_MS, figures)
        return True

    async def _figures(self, now_ms: int) -> Mapping[str, Figures | Mapping[str, Figures] | None]:
        pool = self._services.database.require()
        others = await watched(pool, now_ms)
        return {
            "stage_seconds": await stage_seconds(pool, now_ms - SAMPLE_MS, now_ms),
            "hit_ratio": self._hit_ratios(),
            **await self._rates(others["topic"]),
            **await self._lags(others["group"]),
        }

    def _hit_ratios(self) -> Figures | None:
        before, self._reads = self._reads, _counters()
        (redis,) = [sample.value for metric in REDIS_HIT_RATIO.collect() for sample in metric.samples]
        found = {
            "Redis": None if math.isnan(redis) else round(redis, 4),
            "conditional reads": ratio(before, self._reads, _ANSWERED, _READS),
            "league pages": ratio(before, self._reads, _IN_MEMORY, _PAGES),
        }
        return {name: value for name, value in found.items() if value is not None}

    async def _rates(self, others: Sequence[str]) -> dict[str, Figures | Mapping[str, Figures]]:
        """Return the rates of our topics, and of these of other applications."""
        before, self._ends = self._ends, None
        try:
            self._services.kafka.require()
            own = [topic.name for topic in all_topics()]
            ranges = await log_ranges_of(self._services.admin, [*own, *others])
        except (HighwaterError, OSError, TimeoutError) as error:
            _log.debug("a minute has no rates", reason=str(error) or type(error).__name__)
            return {}
        self._ends = Counters(monotonic_seconds(), _sums(ranges))
        return {} if before is None else rate_figures(before, self._ends, others)

    async def _lags(self, others: Sequence[str]) -> dict[str, Figures | Mapping[str, Figures]]:
        """Return the lag of our groups, and of these of other applications."""
        try:
            self._services.kafka.require()
            found = await lags(self._client, self._services.database.require())
            parts = {lag.group: _by_partition(lag.standings) for lag in found}
            for name in others:
                standings = await foreign_standings(self._services.admin, self._client, name)
                if standings:
                    parts[name] = _by_partition(standings)
        except (HighwaterError, OSError, TimeoutError) as error:
            _log.debug("a minute has no lag", reason=str(error) or type(error).__name__)
            return {}
        behind = [lag for lag in found if lag.events]
        return {
            "lag": {lag.group: float(lag.events) for lag in behind},
            "lag_seconds": {lag.group: lag.seconds for lag in behind if lag.seconds is not None},
            GROUP_LAG.name: parts,
        }


def _by_partition(standings: Iterable[Standing]) -> Figures:
    return partition_lags({f"{one.topic}/{one.partition}": one.events for one in standings})


def _sums(ranges: Mapping[tuple[str, int], LogRange]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (topic, _), held in ranges.items():
        found[topic] = found.get(topic, 0.0) + held.high
    return found


def _counters() -> Counters:
    """Return what this process has answered since it started."""
    found = dict.fromkeys((_READS, _ANSWERED, _PAGES, _IN_MEMORY), 0.0)
    for counter, label, hit, reads, hits in (
        (CONDITIONAL_GETS, "answer", "not_modified", _READS, _ANSWERED),
        (DOCUMENT_READS, "source", "memory", _PAGES, _IN_MEMORY),
    ):
        for sample in (sample for metric in counter.collect() for sample in metric.samples):
            if sample.name.endswith("_total"):
                found[reads] += sample.value
                found[hits] += sample.value if sample.labels[label] == hit else 0.0
    return Counters(monotonic_seconds(), found)
