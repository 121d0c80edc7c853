"""The history of figures: gaps stay gaps, few values for long spans, rates and ratios only from measured values."""

from __future__ import annotations

from highwater.streams.history import (
    ALL_PARTITIONS,
    GROUP_LAG,
    KEPT_MS,
    METRICS,
    OTHER_PARTITIONS,
    PARTITIONS_KEPT,
    SAMPLE_MS,
    TOPIC_RATE,
    VALUES_MAX,
    Counters,
    Sample,
    grid_of,
    of_label,
    partition_lags,
    rate_figures,
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
    """A peak of a minute stays visible in a chart of one day."""
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


def test_a_group_keeps_its_total_and_the_partitions_that_are_furthest_behind() -> None:
    """Beyond 16 partitions the rest are one sum, and each of them is unknown in that minute; a fully read partition is 0."""
    grid = grid_of(BEGIN, BEGIN + 3 * SAMPLE_MS)
    many = partition_lags({f"t/{number}": number for number in range(20)})
    assert len(many) == PARTITIONS_KEPT + 2
    assert (many[ALL_PARTITIONS], many[OTHER_PARTITIONS], many["t/19"]) == (190.0, 1.0 + 2.0 + 3.0, 19.0)
    idle, two = partition_lags({"t/0": 0, "t/1": 0}), partition_lags({"t/0": 0, "t/1": 2})
    assert (idle, two) == ({ALL_PARTITIONS: 0.0}, {ALL_PARTITIONS: 2.0, "t/1": 2.0})
    found = values_of(GROUP_LAG, [at(0, **idle), at(1, **two), at(2, **many)], grid)
    assert (found[ALL_PARTITIONS], found["t/1"], found["t/19"]) == (
        [0.0, 2.0, 190.0],
        [0.0, 2.0, None],
        [0.0, 0.0, 19.0],
    )
    day = grid_of(BEGIN - BEGIN % 240_000, BEGIN - BEGIN % 240_000 + KEPT_MS)
    steps = values_of(GROUP_LAG, [Sample(day.from_ms, two), Sample(day.from_ms + SAMPLE_MS, many)], day)
    assert (steps["t/1"][:2], steps[ALL_PARTITIONS][0]) == ([2.0, None], 190.0)


def test_rates_of_others_are_kept_apart() -> None:
    """0 if nothing came; None for a topic that was recreated or is missing."""
    before = Counters(0.0, {"own": 5, "idle": 3, "busy": 1, "new": 9})
    after = Counters(10.0, {"own": 15, "idle": 3, "busy": 21, "new": 2})
    assert rate_figures(before, after, ["idle", "busy", "new", "gone"]) == {
        "rate": {"own": 1.0},
        "topic_rate": {"idle": {"idle": 0.0}, "busy": {"busy": 2.0}},
    }


def test_one_topic_of_all_is_zero_where_others_came() -> None:
    """A sample of all topics without it means that nothing came; a minute without a sample is unknown."""
    grid = grid_of(BEGIN, BEGIN + 3 * SAMPLE_MS)
    assert values_of(TOPIC_RATE, of_label([at(0, a=2.0), at(2, b=1.0)], "a"), grid) == {"a": [2.0, None, 0.0]}
