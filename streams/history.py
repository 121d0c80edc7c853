"""The metrics whose history is kept for a day, and how samples become the values of a chart. Pure; times in ms since
1970.

Invariant: a minute without a sample has no value. Nothing is drawn or computed across a time without records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeAlias

SAMPLE_MS = 60_000
# A day and the minute in progress: at most 1,441 rows.
KEPT_MS = 86_400_000
# A chart of 900 pixels shows no more: an hour and six hours by the minute, a day in steps of four minutes.
VALUES_MAX = 360

# Label -> value.
Figures: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with a history.

    Args:
        name: as in `GET /api/history?metric=`.
        title: for people.
        unit: of its values: `events/s`, `events`, `s` or `ratio`.
        label: what its series are: topics, consumers, stages or caches.
        about: what exactly it counts.
        is_peak: samples are merged by their largest value; otherwise by their mean.
        absent: the value of a label that a sample does not hold; None: it was not measured.
    """

    name: str
    title: str
    unit: str
    label: str
    about: str
    is_peak: bool = False
    absent: float | None = None


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "rate", "Events per second", "events/s", "topic", "Events appended to each topic, averaged over a minute.",
            absent=0.0,
        ),
        Metric(
            "lag", "Lag in events", "events", "consumer", "Events that each consumer has not processed yet.",
            is_peak=True, absent=0.0,
        ),
        Metric(
            "lag_seconds", "Lag in time", "s", "consumer", "Age of the oldest event that each consumer has not processed yet.",
            is_peak=True, absent=0.0,
        ),
        Metric(
            "stage_seconds", "Duration of query stages", "s", "stage",
            "Mean duration of the query stages that ended in each minute. A minute in which none ended has no value.",
        ),
        Metric(
            "hit_ratio", "Hit ratios", "ratio", "cache",
            "Share of reads that hit: keys in Redis over five minutes; and of the API process that records the history, "
            "conditional reads answered with 304 and league pages found in its memory.",
        ),
    )
}  # fmt: skip


# Values of single groups or topics, which the charts of all do not show: metric -> group or topic -> label -> value.
GROUP_LAG = Metric(
    "group_lag", "Lag by partition", "events", "partition",
    "Events that the group has not processed yet: in all, and of the 16 partitions that are furthest behind.",
    is_peak=True, absent=0.0,
)  # fmt: skip
TOPIC_RATE = Metric(
    "topic_rate", "Events per second", "events/s", "topic", "Events appended to the topic, averaged over a minute.",
    absent=0.0,
)  # fmt: skip
ALL_PARTITIONS, OTHER_PARTITIONS = "all partitions", "other partitions"
# A chart shows six lines. With this many of each group a minute is at most some 40 kB, if every group had lag
# everywhere.
PARTITIONS_KEPT = 16
# Groups, and topics, of other applications that are recorded: the most recently requested ones, for a day.
WATCHED_MAX = 20


class Sample(NamedTuple):
    """The values of one metric, recorded in the minute that began then."""

    at_ms: int
    figures: Figures


class Counters(NamedTuple):
    """Counters at a time, by name; `at_seconds` is of a monotonic clock."""

    at_seconds: float
    counts: Mapping[str, float]


def step_of(at_ms: int, step_ms: int = SAMPLE_MS) -> int:
    """Return the beginning of the step that contains a time."""
    return at_ms - at_ms % step_ms


def rates(before: Counters | None, after: Counters) -> dict[str, float]:
    """Return the growth of each counter per second, where it grew; a counter that fell was reset and is left out."""
    if before is None or after.at_seconds <= before.at_seconds:
        return {}
    seconds = after.at_seconds - before.at_seconds
    grown = {name: count - before.counts.get(name, count) for name, count in after.counts.items()}
    return {name: round(growth / seconds, 3) for name, growth in grown.items() if growth > 0}


def rate_figures(
    before: Counters, after: Counters, others: Sequence[str]
) -> dict[str, Figures | Mapping[str, Figures]]:
    """Return the rates of our topics together, and of each of the others separately: 0 if it did not grow since the
    last sample.
    """
    grown = rates(before, after)
    own = {name: rate for name, rate in grown.items() if name not in others}
    known = [name for name in others if after.counts.get(name, -1.0) >= before.counts.get(name, math.inf)]
    return {"rate": own, TOPIC_RATE.name: {name: {name: grown.get(name, 0.0)} for name in known}}


def ratio(before: Counters | None, after: Counters, hits: str, reads: str) -> float | None:
    """Return the hit ratio of the reads between two times; None without reads."""
    if before is None:
        return None
    read = after.counts[reads] - before.counts[reads]
    hit = after.counts[hits] - before.counts[hits]
    return round(hit / read, 4) if read > 0 and hit >= 0 else None


def partition_lags(lags: Mapping[str, int]) -> dict[str, float]:
    """Return what a sample keeps of a group: its total lag, and the lag by partition (`topic/partition`) where there is
    any.

    Of more than `PARTITIONS_KEPT` partitions those with the smallest lag are summed up.
    """
    behind = sorted(((lag, name) for name, lag in lags.items() if lag), key=lambda one: (-one[0], one[1]))
    found = {ALL_PARTITIONS: float(sum(lags.values()))}
    found |= {name: float(lag) for lag, name in behind[:PARTITIONS_KEPT]}
    if len(behind) > PARTITIONS_KEPT:
        found[OTHER_PARTITIONS] = float(sum(lag for lag, _ in behind[PARTITIONS_KEPT:]))
    return found


def _value(metric: Metric, figures: Figures, label: str) -> float | None:
    """Return the value of a label in a sample; one that is in the sum of others is unknown."""
    absent = None if OTHER_PARTITIONS in figures and label != OTHER_PARTITIONS else metric.absent
    return figures.get(label, absent)


def merged(metric: Metric, samples: Sequence[Figures]) -> dict[str, float]:
    """Merge several samples into one."""
    found = {}
    for label in sorted({label for figures in samples for label in figures}):
        values = [value for figures in samples if (value := _value(metric, figures, label)) is not None]
        if not values:
            continue
        found[label] = round(max(values) if metric.is_peak else fmean(values), 4)
    return found


class Grid(NamedTuple):
    """The steps of a chart: the beginning of the first, their length and their number."""

    from_ms: int
    step_ms: int
    steps: int

    @property
    def to_ms(self) -> int:
        """Return the end of the last step."""
        return self.from_ms + self.steps * self.step_ms


def grid_of(from_ms: int, to_ms: int) -> Grid:
    """Return steps of whole minutes that cover the span with at most `VALUES_MAX` values."""
    step = SAMPLE_MS * max(1, -(-(to_ms - from_ms) // (SAMPLE_MS * VALUES_MAX)))
    begin = step_of(from_ms, step)
    count = max(1, -(-(to_ms - begin) // step))
    if count > VALUES_MAX:  # the span began within a step: its end is what people check
        begin, count = begin + (count - VALUES_MAX) * step, VALUES_MAX
    return Grid(begin, step, count)


def of_label(samples: Iterable[Sample], label: str) -> list[Sample]:
    """Return the samples with only one label, whose value is 0 if a sample does not hold it."""
    return [Sample(at_ms, {label: figures.get(label, 0.0)}) for at_ms, figures in samples]


def values_of(metric: Metric, samples: Iterable[Sample], grid: Grid) -> dict[str, list[float | None]]:
    """Return for each label a value per step of the grid; None where nothing was recorded."""
    steps: dict[int, list[Figures]] = {}
    for at_ms, figures in samples:
        place = (at_ms - grid.from_ms) // grid.step_ms
        if 0 <= place < grid.steps:
            steps.setdefault(place, []).append(figures)
    means = {place: merged(metric, listed) for place, listed in steps.items()}
    found: dict[str, list[float | None]] = {}
    for label in sorted({label for one in means.values() for label in one}):
        values: list[float | None] = [None] * grid.steps
        for place, one in means.items():
            values[place] = _value(metric, one, label)
        found[label] = values
    return found
