"""The verdict on the plan of the cache, at each of its borders (R4.41)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.streams.league.monitoring import SPAN_MS, Sample, Verdict, quantile_seconds, upgrade_verdict

NOW = 1_790_000_000_000
MINUTE = 60_000
BOUNDS = (0.5, 1.0, 2.5, math.inf)


def verdict(*increases: Sample, base: Sample | None = None) -> Verdict:
    """The verdict on a base four minutes ago and the given samples, a minute apart."""
    first = base or Sample(NOW - 4 * MINUTE, hits=1_000, misses=500, evicted_keys=9)
    return upgrade_verdict([first, *increases], NOW)


def reads(hits: int, misses: int, evicted: int = 0) -> Sample:
    """The base plus N reads."""
    return Sample(NOW, hits=1_000 + hits, misses=500 + misses, evicted_keys=9 + evicted)


def answers(*counts: int) -> Verdict:
    """The verdict on these numbers of answers up to each bound, after a base of other answers."""
    base = dict.fromkeys(BOUNDS, 7.0)
    later = {bound: 7.0 + count for bound, count in zip(BOUNDS, counts, strict=True)}
    return upgrade_verdict([Sample(NOW - MINUTE, latency=base), Sample(NOW, latency=later)], NOW)


def names(found: Verdict) -> list[str]:
    """The reasons."""
    return [reason.name for reason in found.reasons]


@pytest.mark.requirement("R4.41")
@pytest.mark.parametrize(
    ("hits", "misses", "expected"),
    [
        (85, 15, []),
        (84, 16, ["hit_ratio"]),
        (849, 151, ["hit_ratio"]),
        (850, 150, []),
        (0, 99, []),
        (0, 100, ["hit_ratio"]),
    ],
)
def test_a_ratio_below_85_of_at_least_100(hits: int, misses: int, expected: list[str]):
    """85 % is enough, a little less is not, and below 100 requests there is no verdict."""
    found = verdict(reads(hits, misses))
    assert names(found) == expected
    assert found.should_upgrade == bool(expected)
    assert (found.hit_ratio, found.requests) == (hits / (hits + misses), hits + misses)


@pytest.mark.requirement("R4.41")
def test_one_evicted_key_is_enough():
    """An eviction recommends more memory, at any ratio and number of requests; earlier ones are ignored."""
    assert names(verdict(reads(0, 0))) == []
    assert names(verdict(reads(10, 0, evicted=1))) == ["evicted_keys"]
    assert verdict(reads(10, 0, evicted=3)).evicted_keys == 3


@pytest.mark.requirement("R4.41")
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 95, 100, 100), []),  # exactly a second
        ((0, 94, 100, 100), ["p95"]),
        ((0, 94, 99, 99), []),  # fewer than a hundred answers are no load
        ((0, 0, 0, 100), ["p95"]),
        ((100, 100, 100, 100), []),
    ],
)
def test_a_slow_twentieth_of_at_least_100(counts: tuple[int, ...], expected: list[str]):
    """More than one second for the slowest twentieth under load asks for an upgrade; a second does not."""
    assert names(answers(*counts)) == expected


def test_nothing_sampled_says_nothing():
    """Without samples, with one, or with none of the last five minutes there is no verdict and no number."""
    nothing = Verdict(False, (), None, 0, 0, None)
    old = Sample(NOW - SPAN_MS - 1, hits=0)
    ahead = Sample(NOW + 1, misses=1_000, evicted_keys=1_000)
    assert upgrade_verdict([], NOW) == upgrade_verdict([reads(0, 900, 9)], NOW) == nothing
    assert upgrade_verdict([old, reads(0, 900, 9)], NOW) == upgrade_verdict([reads(0, 0), ahead], NOW) == nothing


def test_the_span_is_five_minutes():
    """A sample of exactly five minutes ago still counts as the base."""
    base = Sample(NOW - SPAN_MS, hits=1_000, misses=500, evicted_keys=9)
    assert verdict(reads(0, 100), base=base).requests == 100


def test_a_restarted_source_counts_from_zero():
    """Counters that fell were restarted: their present value counts, and nothing is negative."""
    restarted = Sample(NOW - MINUTE, hits=30, misses=70, evicted_keys=0)
    found = verdict(restarted, Sample(NOW, hits=60, misses=140, evicted_keys=0))
    assert (found.requests, found.hit_ratio, found.evicted_keys) == (200, 0.3, 0)


def test_all_counters_of_a_restarted_source_restart():
    """One counter that fell shows that another, which is higher than before, restarted at zero too."""
    found = verdict(Sample(NOW, hits=1_200, misses=0, evicted_keys=12))
    assert (found.requests, found.evicted_keys) == (1_200, 12)


def test_a_restarted_histogram_counts_from_zero():
    """A restarted process, also one with other bounds, gives no negative answers."""
    before = Sample(NOW - MINUTE, latency=dict.fromkeys(BOUNDS, 1_000.0))
    fell = Sample(NOW, latency={0.5: 0, 1.0: 0, 2.5: 200, math.inf: 200})
    other_bounds = Sample(NOW, latency={2.0: 1_100, math.inf: 1_200})
    assert names(upgrade_verdict([before, fell], NOW)) == ["p95"]
    assert upgrade_verdict([before, other_bounds], NOW).p95_seconds == 2.0


def test_sources_are_summed():
    """Several processes count together, each against its own past, in any order of their samples."""
    samples = [
        Sample(NOW, "b", hits=10, misses=40),
        Sample(NOW - MINUTE, "a", hits=500, misses=500),
        Sample(NOW, "a", hits=550, misses=500),
        Sample(NOW - MINUTE, "b", hits=0, misses=0),
    ]
    found = upgrade_verdict(samples, NOW)
    assert (found.requests, found.hit_ratio, names(found)) == (100, 0.6, ["hit_ratio"])


def test_quantiles_are_those_of_prometheus():
    """Interpolated in the bucket; the last finite bound for what lies beyond; nothing for an empty histogram."""
    latency = {0.1: 10.0, 0.5: 50.0, 1.0: 90.0, math.inf: 100.0}
    assert quantile_seconds(latency, 0.5) == 0.5
    assert quantile_seconds(latency, 0.05) == pytest.approx(0.05)
    assert quantile_seconds(latency, 0.7) == pytest.approx(0.75)
    assert quantile_seconds(latency, 0.95) == 1.0
    assert quantile_seconds({math.inf: 5.0}, 0.5) == 0.0
    assert quantile_seconds({}, 0.95) is quantile_seconds(dict.fromkeys(BOUNDS, 0.0), 0.95) is None


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], share: float):
    """For any measurements, the estimate is in the bucket that contains the true quantile."""
    latency = {bound: float(sum(one <= bound for one in seconds)) for bound in BOUNDS}
    true = sorted(seconds)[math.ceil(share * len(seconds) - 1e-9) - 1]
    found = quantile_seconds(latency, share)
    assert found is not None
    upper = min(bound for bound in BOUNDS if true <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    assert lower <= found <= min(upper, 2.5)
