"""When the cache has outgrown its plan (R4.40, R4.41).

Invariant: the verdict follows from sampled counters, never from a momentary gauge. Counters only grow; one that fell
belongs to a restarted source, so all counters of that source count from 0 again and nothing is ever negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from highwater.streams.wording import counted

SPAN_MS = 300_000
# Below this many requests a ratio or a percentile is chance, and there is no significant load.
REQUESTS_MIN = 100
HIT_RATIO_MIN = 0.85
P95_SECONDS_MAX = 1.0
_P95 = 0.95


class Reason(NamedTuple):
    """One reason for a larger plan: its name for programs, and a sentence for people."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one source (a Redis, a process) at one time, each since the source started.

    `latency` maps the upper bound of a bucket in seconds, `inf` included, to the requests that took at most this long,
    as Prometheus counts them. A source leaves counters that it does not have at 0.
    """

    at_ms: int
    source: str = ""
    hits: float = 0
    misses: float = 0
    evicted_keys: float = 0
    latency: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to upgrade and why, with the numbers of the span; a ratio or percentile without data is None."""

    should_upgrade: bool
    reasons: tuple[Reason, ...]
    hit_ratio: float | None
    requests: int
    evicted_keys: int
    p95_seconds: float | None


def upgrade_verdict(samples: Sequence[Sample], now_ms: int) -> Verdict:
    """Decide whether the last five minutes require a larger Redis (R4.41).

    Args:
        samples: of any number of sources, in any order. What counts is the increase between samples of the same source
            that
            both lie in the five minutes before `now_ms`; a single sample of a source has no increase.
        now_ms: the current time.
    """
    hits = misses = evicted = 0.0
    latency: dict[float, float] = {}
    by_source: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda one: one.at_ms):
        if now_ms - SPAN_MS <= sample.at_ms <= now_ms:
            by_source.setdefault(sample.source, []).append(sample)
    for of_source in by_source.values():
        for before, after in pairwise(of_source):
            base = Sample(at_ms=before.at_ms) if _has_begun_anew(before, after) else before
            hits += after.hits - base.hits
            misses += after.misses - base.misses
            evicted += after.evicted_keys - base.evicted_keys
            for bound, count in after.latency.items():
                latency[bound] = latency.get(bound, 0) + count - base.latency.get(bound, 0)
    requests = hits + misses
    ratio = hits / requests if requests > 0 else None
    answered = max(latency.values(), default=0)
    p95_seconds = quantile_seconds(latency, _P95)
    reasons = []
    if ratio is not None and requests >= REQUESTS_MIN and ratio < HIT_RATIO_MIN:
        reasons.append(Reason("hit_ratio", f"{ratio:.1%} of {requests:.0f} reads hit, below {HIT_RATIO_MIN:.0%}"))
    if evicted > 0:
        reasons.append(Reason("evicted_keys", f"{counted(round(evicted), 'key was', 'keys were')} evicted"))
    if p95_seconds is not None and answered >= REQUESTS_MIN and p95_seconds > P95_SECONDS_MAX:
        reasons.append(Reason("p95", f"95 % of {answered:.0f} requests took up to {p95_seconds:.2f} s"))
    return Verdict(bool(reasons), tuple(reasons), ratio, int(requests), int(evicted), p95_seconds)


def quantile_seconds(latency: Mapping[float, float], share: float) -> float | None:
    """Return the quantile of a histogram like Prometheus' `histogram_quantile`; None if nothing was counted.

    It is interpolated within a bucket; beyond the last finite bound that bound is returned.

    Args:
        latency: upper bound in seconds -> requests that took at most this long.
        share: 0 to 1.
    """
    bounds = sorted(latency)
    if not bounds or latency[bounds[-1]] <= 0:
        return None
    rank = share * latency[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = latency[bound]
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def _has_begun_anew(before: Sample, after: Sample) -> bool:
    """Return whether a source was restarted between two samples; other bounds mean another program."""
    if before.latency and before.latency.keys() != after.latency.keys():
        return True
    pairs = [
        (before.hits, after.hits),
        (before.misses, after.misses),
        (before.evicted_keys, after.evicted_keys),
        *((count, after.latency[bound]) for bound, count in before.latency.items()),
    ]
    return any(later < earlier for earlier, later in pairs)
