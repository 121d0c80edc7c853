"""The rebuild policy in virtual time: the plain path by its rules, and the fast one by the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.feeds.backtest import Costs, Request, Tally
from highwater.streams.feeds.backtest_fast import report_fast, requests_fast
from highwater.streams.feeds.backtest_people import Population, make_population, report_plain
from highwater.streams.feeds.policy import PlanPolicy, Policy, make_policy
from highwater.streams.feeds.rules import Trigger

HOUR = 3_600_000


def population(arrivals: list[tuple[int, int]], **fields: object) -> Population:
    """Arrivals (time, channel), and one user with channel 0, who by default never becomes inactive."""
    arrivals = sorted(arrivals)
    given_ = {
        "channel_count": 2, "subscribed": np.array([[True, False]]), "plans": ("free",), "active_from_ms": np.array([0]),
        "active_every_ms": np.array([HOUR]), "begin_ms": 0, "end_ms": 10 * HOUR, "tick_ms": 60_000, **fields,
    }  # fmt: skip
    return Population(
        np.array([at for at, _ in arrivals], dtype=np.int64),
        np.array([channel for _, channel in arrivals], dtype=np.int64),
        **given_,  # type: ignore[arg-type]
    )


def policy(count: int = 3, interval: float = 3_600, active: float = 86_400, cooldown: float = 0) -> Policy:
    """A policy of one plan, in seconds."""
    return make_policy({"free": PlanPolicy(count, interval, active, cooldown)})


def test_novelty_is_acted_upon_by_the_tick_that_tells_of_it() -> None:
    """Three insights within the second minute are found at tick 2, published, and judged by it."""
    world = population([(70_000, 0), (80_000, 0), (90_000, 0)])
    asked = report_plain(policy(interval=10 * 3_600), world, Costs())[1]
    # A user who was never checked is due at once (R0.6); without new insights it is a check only.
    assert asked == [
        Request("user-000000", 0, 0, Trigger.TIME, 0),
        Request("user-000000", 2, 120_000, Trigger.NOVELTY, 3),
    ]


def test_what_a_rebuild_costs_and_how_long_insights_waited() -> None:
    """One of two insights in the window is new: it waited from its arrival to the end of the rebuild."""
    world = population([(0, 0), (2 * HOUR, 0)], end_ms=3 * HOUR + 60_000)
    report, asked = report_plain(policy(), world, Costs(fixed_ms=500, per_thousand_ms=1_000))
    assert [request.now_ms for request in asked] == [0, HOUR + 60_000, 2 * HOUR + 60_000]
    assert (report.tally.rebuilds, report.tally.skips) == (2, 1)
    assert report.tally.clustering_ms == 501 + 502
    assert report.tally.insights_clustered == 3
    document = report.document()
    assert document["insights_served"] == 2
    assert document["staleness_max_seconds"] == 60.502
    assert document["llm_cost_usd"] is None


def test_a_price_makes_money_of_titles() -> None:
    """330 tokens to read and 100 to write for each cluster that is asked about; without a price there is no sum."""
    costs = Costs(price_in_usd=1.0, price_out_usd=2.0)
    assert costs.usd(1_000) == pytest.approx(0.53)
    assert Costs(price_in_usd=1.0).usd(1_000) is None
    assert [int(costs.titles_asked(new)) for new in (0, 1, 10, 11, 1_000)] == [0, 1, 1, 2, 30]


def test_quantiles_of_staleness_are_within_their_bin() -> None:
    """A quantile is accurate to 1.1 %, and never above the longest wait."""
    tally = Tally()
    tally.add_staleness(np.array([1_000] * 50 + [60_000] * 45 + [7_200_000] * 5, dtype=np.int64))
    assert tally.staleness_ms(0.5) == pytest.approx(1_000, rel=0.011)
    assert tally.staleness_ms(0.95) == pytest.approx(60_000, rel=0.011)
    assert tally.staleness_ms(1.0) == 7_200_000
    assert Tally().staleness_ms(0.5) is None


_MINUTES = st.integers(0, 200)


@st.composite
def _worlds(draw: st.DrawFn) -> Population:
    users, channels = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    tick_ms = draw(st.sampled_from([1_000, 30_000, 60_000, 77_777]))
    begin_ms = draw(st.sampled_from([0, 5, 1_800_000_000_000]))
    # Times on, just before and just after ticks are the ones that tell two readings of a rule apart.
    times = st.builds(lambda n, off: max(0, n * tick_ms + off), st.integers(0, 120), st.integers(-1, 1))
    arrivals = draw(st.lists(st.tuples(times, st.integers(0, channels - 1)), max_size=60))
    grid = draw(st.lists(st.lists(st.booleans(), min_size=channels, max_size=channels), min_size=users, max_size=users))
    seen = [
        draw(st.builds(lambda n, off: n * tick_ms + off, st.integers(-50, 60), st.integers(-1, 1)))
        for _ in range(users)
    ]
    every = [
        draw(st.sampled_from([tick_ms, tick_ms + 1, 10 * tick_ms, 55 * tick_ms - 1, 10_000 * tick_ms]))
        for _ in range(users)
    ]
    arrivals.sort()
    return Population(
        np.array([begin_ms + at for at, _ in arrivals], dtype=np.int64),
        np.array([channel for _, channel in arrivals], dtype=np.int64),
        channels,
        np.array(grid, dtype=bool).reshape(users, channels),
        tuple(draw(st.sampled_from(["free", "pro", "none"])) for _ in range(users)),
        np.array([begin_ms + at for at in seen], dtype=np.int64),
        np.array(every, dtype=np.int64),
        begin_ms,
        begin_ms + draw(st.integers(1, 130)) * tick_ms,
        tick_ms,
    )


@st.composite
def _policies(draw: st.DrawFn) -> Policy:
    seconds = st.sampled_from([0, 0.001, 1, 29.999, 30, 60, 61, 600, 3_600, 100_000])
    plans = {
        name: PlanPolicy(draw(st.integers(1, 12)), draw(seconds), draw(seconds), draw(seconds))
        for name in ("free", "pro")
    }
    return make_policy(plans)


_COSTS = st.builds(
    Costs,
    fixed_ms=st.sampled_from([0, 30, 1_000, 59_999, 60_000, 61_000]),
    per_thousand_ms=st.sampled_from([0, 100, 100_000]),
    insights_max=st.sampled_from([5, 20_000]),
    window_ms=st.sampled_from([1, 60_000, 600_000, 10**12]),
    deadline_ms=st.just(900_000),
)


@settings(max_examples=300, deadline=None)
@given(_worlds(), _policies(), _COSTS)
def test_the_fast_path_is_equal_to_the_plain_one(world: Population, of: Policy, costs: Costs) -> None:
    """The very same requests, and the very same figures down to the bins of staleness."""
    report, asked = report_plain(of, world, costs)
    assert sorted(asked, key=lambda one: (one.tick, one.user_id)) == requests_fast(of, world, costs)
    fast = report_fast(of, world, costs)
    assert report.document() == fast.document()
    assert report.tally.staleness.tolist() == fast.tally.staleness.tolist()


def test_populations_larger_than_a_chunk_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are taken some at a time; the figures are of all of them."""
    world = population(
        [(n * 60_000, n % 2) for n in range(100)],
        subscribed=np.array([[True, False], [False, True], [True, True]]),
        plans=("free",) * 3,
        active_from_ms=np.zeros(3, dtype=np.int64),
        active_every_ms=np.full(3, HOUR, dtype=np.int64),
    )
    expected = report_plain(policy(), world, Costs())[0].document()
    monkeypatch.setattr("highwater.streams.feeds.backtest_fast.USERS_AT_ONCE", 2)
    assert expected == report_fast(policy(), world, Costs()).document()


def test_the_same_seed_makes_the_same_people() -> None:
    """They follow from the seed; only insights of the given time count."""
    at_ms = np.arange(0, 10 * HOUR, HOUR, dtype=np.int64)[::-1]
    made = [
        make_population(at_ms, ["a", "b"] * 5, 50, begin_ms=HOUR, end_ms=8 * HOUR, tick_ms=60_000, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert made[0].arrivals_ms.tolist() == [HOUR * n for n in range(1, 8)]
    assert made[0].subscribed.tolist() == made[1].subscribed.tolist()
    assert made[0].plans != made[2].plans
    assert made[0].subscribed.sum(axis=1).min() >= 1
    assert (made[0].active_from_ms <= HOUR).all()
