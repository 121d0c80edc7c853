"""The figures whose history is kept for a day, and how samples become the values of a chart. Pure; times in ms since 1970.

Invariant: a minute without a sample has no value. Nothing is drawn or computed across a time in which nothing was recorded.
"""

from __future__ import annotations

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
    """A figure with a history.

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


class Sample(NamedTuple):
    """The figures of one metric, recorded in the minute that began then."""

    at_ms: int
    figures: Figures


class Counters(NamedTuple):
    """Counters at a moment, by name; `at_seconds` is of a clock that only grows."""

    at_seconds: float
    counts: Mapping[str, float]


def step_of(at_ms: int, step_ms: int = SAMPLE_MS) -> int:
    """The beginning of the step that a moment is in."""
    return at_ms - at_ms % step_ms


def rates(before: Counters | None, after: Counters) -> dict[str, float]:
    """The growth of each counter per second, where it grew; a counter that fell was reset and says nothing."""
    if before is None or after.at_seconds <= before.at_seconds:
        return {}
    seconds = after.at_seconds - before.at_seconds
    grown = {name: count - before.counts.get(name, count) for name, count in after.counts.items()}
    return {name: round(growth / seconds, 3) for name, growth in grown.items() if growth > 0}


def ratio(before: Counters | None, after: Counters, hits: str, reads: str) -> float | None:
    """The share of the hits in what was read between two moments; None when nothing was read."""
    if before is None:
        return None
    read = after.counts[reads] - before.counts[reads]
    hit = after.counts[hits] - before.counts[hits]
    return round(hit / read, 4) if read > 0 and hit >= 0 else None


def merged(metric: Metric, samples: Sequence[Figures]) -> dict[str, float]:
    """One sample of several."""
    found = {}
    for label in sorted({label for figures in samples for label in figures}):
        values = [value for figures in samples if (value := figures.get(label, metric.absent)) is not None]
        found[label] = round(max(values) if metric.is_peak else fmean(values), 4)
    return found


class Grid(NamedTuple):
    """The steps of a chart: where the first begins, their length and their number."""

    from_ms: int
    step_ms: int
    steps: int

    @property
    def to_ms(self) -> int:
        """Where the last step ends."""
        return self.from_ms + self.steps * self.step_ms


def grid_of(from_ms: int, to_ms: int) -> Grid:
    """Steps of whole minutes that cover the span with at most `VALUES_MAX` values."""
    step = SAMPLE_MS * max(1, -(-(to_ms - from_ms) // (SAMPLE_MS * VALUES_MAX)))
    begin = step_of(from_ms, step)
    count = max(1, -(-(to_ms - begin) // step))
    if count > VALUES_MAX:  # the span began within a step: its end is what people look at
        begin, count = begin + (count - VALUES_MAX) * step, VALUES_MAX
    return Grid(begin, step, count)


def values_of(metric: Metric, samples: Iterable[Sample], grid: Grid) -> dict[str, list[float | None]]:
    """For each label a value per step of the grid; None where nothing was recorded."""
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
            values[place] = one.get(label, metric.absent)
        found[label] = values
    return found
