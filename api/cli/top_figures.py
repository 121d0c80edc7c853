"""Computes what `highwater top` shows from two samples of the product: rates, the slowest work between them, and lag.

Invariant: a rate or a latency covers only the time between the samples; a counter that was reset counts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# Histogram -> the label that names the work, and its prefix in the output.
WORK: Mapping[str, tuple[str, str]] = {
    "highwater_http_seconds": ("route", "route"),
    "highwater_query_stage_seconds": ("stage", "query stage"),
    "highwater_job_step_seconds": ("kind", "step of job"),
    "highwater_batch_seconds": ("group", "batch of"),
}
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Timings:
    """The durations of one kind of work: total seconds, and counts by upper bound, cumulative."""

    seconds: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def count(self) -> float:
        """Return the number of executions."""
        return self.buckets[-1][1] if self.buckets else 0.0

    def since(self, before: Timings | None) -> Timings:
        """Return the difference to an earlier sample."""
        if before is None or before.count > self.count:
            return self
        known = dict(before.buckets)
        return Timings(
            self.seconds - before.seconds, tuple((bound, n - known.get(bound, 0.0)) for bound, n in self.buckets)
        )

    def quantile_seconds(self, quantile: float) -> float:
        """Return the quantile, interpolated within its bucket."""
        wanted = self.count * quantile
        for (low, before), (high, after) in pairwise([(0.0, 0.0), *self.buckets]):
            if after >= wanted and after > before:
                return low if high == float("inf") else low + (high - low) * (wanted - before) / (after - before)
        return 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """The product at one time of a monotonic clock. Values that could not be read are empty, and listed in `problems`."""

    at_seconds: float
    ends: Mapping[str, int] = field(default_factory=dict)  # of each topic, the sum of its next offsets
    groups: Sequence[Mapping[str, Any]] = ()
    work: Mapping[tuple[str, str], Timings] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    problems: Sequence[str] = ()


def parse_work(text: str) -> dict[tuple[str, str], Timings]:
    """Parse the histograms of `WORK` in a page of metrics, by kind and name of the work."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], dict[float, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in WORK:
            continue
        label, _ = WORK[family.name]
        for sample in family.samples:
            name = (family.name, sample.labels.get(label, ""))
            if sample.name.endswith("_sum"):
                sums[name] = sums.get(name, 0.0) + sample.value
            elif sample.name.endswith("_bucket"):
                bounds = counts.setdefault(name, {})
                bound = float(sample.labels["le"])
                bounds[bound] = bounds.get(bound, 0.0) + sample.value
    return {name: Timings(sums.get(name, 0.0), tuple(sorted(bounds.items()))) for name, bounds in counts.items()}


def figures(before: Look, after: Look) -> dict[str, Any]:
    """Return what to show, as JSON; the busiest, the largest lag, the slowest and the largest come first."""
    seconds = max(0.001, after.at_seconds - before.at_seconds)
    topics = [
        {
            "topic": topic,
            "per_second": round(max(0, end - before.ends.get(topic, end)) / seconds, 1),
            "records": end,
        }
        for topic, end in after.ends.items()
    ]
    groups = [{key: one[key] for key in ("group", "events", "seconds", "problem")} for one in after.groups]
    slowest = []
    for (name, what), timings in after.work.items():
        lately = timings.since(before.work.get((name, what)))
        if lately.count:
            slowest.append(
                {
                    "work": f"{WORK[name][1]} {what}",
                    "p95_ms": round(lately.quantile_seconds(_QUANTILE) * 1_000, 1),
                    "mean_ms": round(lately.seconds / lately.count * 1_000, 1),
                    "count": round(lately.count),
                }
            )
    memory = [{"process": name, "bytes": size} for name, size in after.memory_bytes.items()]
    return {
        "over_seconds": round(seconds, 1),
        "topics": sorted(topics, key=lambda one: (-one["per_second"], -one["records"], one["topic"])),
        "groups": sorted(groups, key=lambda one: (-one["events"], one["group"])),
        "slowest": sorted(slowest, key=lambda one: (-one["p95_ms"], one["work"])),
        "memory": sorted(memory, key=lambda one: (-one["bytes"], one["process"])),
        "problems": list(after.problems),
    }
