"""Rates between samples of the ends of topics."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.rates import RATE_SECONDS, SAMPLES_MAX, Rates, Sample


def rates_of(*samples: tuple[float, int]) -> Rates:
    """Samples of one topic."""
    rates = Rates()
    for at_seconds, end in samples:
        rates.add(Sample(at_seconds, {"t": end}))
    return rates


def test_nothing_is_told_before_the_second_look():
    """One sample does not give a rate."""
    assert rates_of((0, 100)).per_second() == {}


def test_a_rate_is_told_over_the_last_ten_seconds():
    """Events appended before them do not count."""
    assert rates_of((0, 0), (2, 1_000), (4, 1_010), (12, 1_050)).per_second() == {"t": 5.0}


def test_looks_further_apart_than_that_still_tell():
    """A broker that answers slowly leaves gaps; the last two looks are compared."""
    assert rates_of((0, 0), (4 * RATE_SECONDS, 80)).per_second() == {"t": 2.0}


@pytest.mark.parametrize("after", [0, 50])
def test_a_topic_made_anew_has_no_rate_below_nothing(after):
    """Its end is lower than it was."""
    assert rates_of((0, 100), (2, after)).per_second() == {"t": 0.0}


def test_what_is_kept_is_bounded():
    """At most five minutes of samples are kept."""
    rates = rates_of(*((number * 2.0, number) for number in range(10 * SAMPLES_MAX)))
    assert len(rates.history("t", 10 * SAMPLES_MAX)) == SAMPLES_MAX - 1
    assert rates.history("t", 3) == [0.5] * 3
    assert rates.total_history(3) == [0.5] * 3
