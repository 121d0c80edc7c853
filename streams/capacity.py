"""The capacity of one deployment: what each part costs by measured constants, which part reaches its limit first, and
what replaces it.

Constants are from one run on two cores; `tests/acceptance/operating/test_capacity.py` compares them with a fresh one
(on demand). Limits are those of one part as deployed today, with the reason beside each. People's behaviour is assumed,
and named in `Load`. Pure; rates are per second, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from highwater.schemas.topics import PARTITIONS

_DAY_SECONDS = 86_400
_GB, _TB = 10**9, 10**12
# Above this share of its limit a part has no room for a burst or the loss of a machine.
FULL = 0.7


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of a unit of work. CPU in seconds of one core."""

    sink_cpu_seconds: float  # an insight: decoded, embedded by the built-in function, stored, published
    worker_cpu_seconds: float  # an insight: the planner's share
    database_bytes: float  # an insight with its vector and indexes
    log_bytes: float  # an insight in all topics, one replica
    rebuild_cpu_seconds: float  # a rebuild of some hundred insights, with titles and vectors
    user_database_bytes: float  # a user: state, subscriptions, one version of clusters
    read_cpu_seconds: float  # a read of a feed, with any outcome


@dataclass(frozen=True, slots=True)
class Load:
    """The load on the product, and the assumed behaviour of people."""

    users: int
    channels: int
    insights_per_day: int
    active_share: float = 0.2  # users active per day
    reads_per_active_user: float = 30.0  # per day
    rebuilds_per_active_user: float = 2.0  # per day: cooldowns are hours
    peak: float = 4.0  # the busiest hour relative to the mean
    window_days: int = 30  # HIGHWATER_WINDOW_DAYS
    retention_days: int = 365  # of the log, from which everything can be rebuilt

    def times(self, factor: float) -> Load:
        """Return the same people and channels, multiplied by a factor."""
        return replace(
            self,
            users=round(self.users * factor),
            channels=max(1, round(self.channels * factor)),
            insights_per_day=round(self.insights_per_day * factor),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a deployment under a load: the used share of its limit, and what replaces it beyond that."""

    name: str
    demand: float
    limit: float
    unit: str
    reason: str  # of the limit
    following: str  # what replaces it, or is added

    @property
    def share(self) -> float:
        """Return the share of the limit."""
        return self.demand / self.limit


# One run of 30 users, 20 channels and 2,000 insights (the load of 30,000 users divided by a thousand), on two busy
# cores (load 40): CPU is that of the processes, sizes are those of the files. The worker's share is high, since it
# includes its ticks.
MEASURED = Costs(
    sink_cpu_seconds=0.14e-3,
    worker_cpu_seconds=1.1e-3,
    database_bytes=2_600,
    log_bytes=140,
    rebuild_cpu_seconds=0.24,
    user_database_bytes=24_000,
    read_cpu_seconds=3.3e-3,
)


def parts(load: Load, costs: Costs = MEASURED) -> list[Part]:
    """Return each part under a load, the most loaded first."""
    insights = load.insights_per_day / _DAY_SECONDS * load.peak
    active = load.users * load.active_share
    rebuilds = active * load.rebuilds_per_active_user / _DAY_SECONDS * load.peak
    reads = active * load.reads_per_active_user / _DAY_SECONDS * load.peak
    database = load.insights_per_day * load.window_days * costs.database_bytes + load.users * costs.user_database_bytes
    found = [
        Part(
            "insights sink", insights * costs.sink_cpu_seconds, PARTITIONS, "cores",
            f"one process a partition, and {PARTITIONS} partitions",
            "the topic of insights with more partitions (a new topic, filled by `highwater replay`), a sink process each",
        ),
        Part(
            "worker", insights * costs.worker_cpu_seconds, PARTITIONS, "cores",
            f"one process a partition, and {PARTITIONS} partitions",
            "more partitions of the worker's topics and changelogs; beyond 100 a stream processor that is not Python",
        ),
        Part(
            "rebuild workers", rebuilds * costs.rebuild_cpu_seconds, PARTITIONS * 16, "cores",
            f"{PARTITIONS} processes with a pool of 16 cores each",
            "more partitions of `feeds.rebuild-requested`, by user",
        ),
        Part(
            "API", reads * costs.read_cpu_seconds, 64, "cores",
            "64 processes of 8 connections each are what one Redis and a pool of 1,000 PostgreSQL connections serve",
            "a cache in front of the API (304s need no payload), Redis Cluster, read replicas of PostgreSQL",
        ),
        Part(
            "PostgreSQL, size", database, 4 * _TB, "bytes",
            "a server whose backup is restored within half a day (100 MB/s)",
            "insights divided by channel and users by user over several servers; vectors in a store of their own",
        ),
        Part(
            "PostgreSQL, writes", insights + rebuilds * 50, 10_000, "rows/s",
            "rows with indexes and events that one primary commits in groups; not measured beyond two cores",
            "the same division: each server has the sinks of its channels",
        ),
        Part(
            "Kafka, log", load.insights_per_day * load.retention_days * costs.log_bytes, 3 * 4 * _TB / 3, "bytes",
            "three brokers with 4 TB each, three replicas",
            "more brokers, then tiered storage (KIP-405) for what is older than a week",
        ),
    ]  # fmt: skip
    return sorted(found, key=lambda part: -part.share)


@dataclass(frozen=True, slots=True)
class Step:
    """A power of ten of users: the load, and the parts."""

    load: Load
    parts: Sequence[Part]

    @property
    def breaks(self) -> list[Part]:
        """Return the parts beyond their limits, the worst first."""
        return [part for part in self.parts if part.share > FULL]


def steps(load: Load, costs: Costs = MEASURED, users_max: int = 10**8) -> list[Step]:
    """Return the load itself, then each power of ten of users above it, with channels and insights in proportion."""
    found = [Step(load, parts(load, costs))]
    power = 10 ** len(str(load.users))
    while power <= users_max:
        grown = load.times(power / load.users)
        found.append(Step(grown, parts(grown, costs)))
        power *= 10
    return found


def reach(load: Load, costs: Costs = MEASURED) -> int:
    """Return the maximum number of users within all limits, in the same proportions."""
    worst = parts(load, costs)[0].share
    return int(load.users * FULL / worst) if worst else load.users
