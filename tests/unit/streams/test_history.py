"""The history of figures: gaps stay gaps, few values for long spans, rates and ratios only of what was measured."""

from __future__ import annotations

from highwater.streams.history import (
    KEPT_MS,
    METRICS,
    SAMPLE_MS,
    VALUES_MAX,
    Counters,
    Sample,
    grid_of,
    rates,
    ratio,
    values_of,
)

BEGIN = 1_700_000_040_000  # a whole minute


def at(minute: int, **figures: float) -> Sample:
    """A sample of the minute."""
    return Sample(BEGIN + minute * SAMPLE_MS, figures)


def test_a_minute_without_a_sample_has_no_value() -> None:
    """It is not zero and not its neighbours' mean; a label that a sample lacks has the metric's own value for that."""
    grid = grid_of(BEGIN, BEGIN + 4 * SAMPLE_MS)
    found = values_of(METRICS["rate"], [at(0, a=2.0), at(1, a=4.0, b=1.0), at(3, a=1.0)], grid)
    assert found == {"a": [2.0, 4.0, None, 1.0], "b": [0.0, 1.0, None, 0.0]}
    stages = values_of(METRICS["stage_seconds"], [at(0, a=2.0), at(1, b=1.0)], grid)
    assert stages == {"a": [2.0, None, None, None], "b": [None, 1.0, None, None]}


def test_long_spans_have_as_many_values_as_a_chart_shows() -> None:
    """An hour has a value a minute; a day is drawn in steps of four minutes; every span is covered to its end."""
    assert (grid_of(BEGIN, BEGIN + 3_600_000).step_ms, grid_of(BEGIN, BEGIN + KEPT_MS).step_ms) == (60_000, 240_000)
    for begin in range(BEGIN, BEGIN + 300_000, 7_001):
        for span in (1, 59_999, 3_600_000, 21_600_000, KEPT_MS):
            grid = grid_of(begin, begin + span)
            assert 1 <= grid.steps <= VALUES_MAX
            assert grid.to_ms >= begin + span
            assert grid.from_ms % grid.step_ms == 0


def test_a_step_shows_the_mean_of_a_rate_and_the_peak_of_a_lag() -> None:
    """A peak of a minute does not vanish from the chart of a day."""
    grid = grid_of(BEGIN - BEGIN % 240_000, BEGIN - BEGIN % 240_000 + KEPT_MS)
    samples = [Sample(grid.from_ms + n * SAMPLE_MS, {"a": value}) for n, value in enumerate((0.0, 8.0, 0.0, 0.0))]
    assert values_of(METRICS["lag"], samples, grid)["a"][:2] == [8.0, None]
    assert values_of(METRICS["rate"], samples, grid)["a"][:2] == [2.0, None]


def test_rates_and_ratios_are_of_what_grew_between_two_moments() -> None:
    """The first moment, a counter that was reset and a time without reads give none."""
    before, after = Counters(10.0, {"a": 5, "b": 9, "hits": 1, "reads": 2}), Counters(20.0, {"a": 25, "b": 3, "c": 7})
    assert rates(None, after) == {}
    assert rates(before, after) == {"a": 2.0}
    later = Counters(20.0, {"hits": 2, "reads": 6})
    assert ratio(before, later, "hits", "reads") == 0.25
    assert ratio(None, later, "hits", "reads") is None
    assert ratio(later, later, "hits", "reads") is None
