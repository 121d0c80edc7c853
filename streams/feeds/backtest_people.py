"""Simulated subscribers for a backtest: their channels, plans and visits, and the resulting events.

Invariant: the same seed gives the same users, on every machine; nothing is derived from real users.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from highwater.schemas.feeds import UserChanged
from highwater.streams.feeds.backtest import (
    DAY_MS,
    Advanced,
    Changed,
    Costs,
    Happening,
    Milliseconds,
    Notification,
    Player,
    Report,
    Request,
    Ticked,
)
from highwater.streams.feeds.policy import Policy

# Half read up to three channels, a few read many: shares of users by their maximum number of channels.
_CHANNELS_MAX = (3, 8, 20)
_CHANNELS_SHARES = (0.5, 0.35, 0.15)
# Days between two visits, so that each rule about activity matters: daily, weekly, long inactive.
_VISIT_DAYS = (1, 7, 21)
_VISIT_SHARES = (0.6, 0.3, 0.1)
# The plans of the default policy; others are given by name.
PLANS_DEFAULT = (("free", 0.8), ("pro", 0.2))


@dataclass(frozen=True)
class Population:
    """Insights as they arrived, and users with known channels and visits.

    `arrivals_ms` ascends; `channels[i]` is the number of the channel of arrival i. `subscribed`: users by channels. A
    user is seen at `active_from_ms` and every `active_every_ms` after it. Ticks come every `tick_ms` from `begin_ms`
    until before `end_ms`. A tick reports all channels that advanced: their number is below the limit of a tick.
    """

    arrivals_ms: Milliseconds
    channels: NDArray[np.int64]
    channel_count: int
    subscribed: NDArray[np.bool_]
    plans: tuple[str, ...]
    active_from_ms: Milliseconds
    active_every_ms: Milliseconds
    begin_ms: int
    end_ms: int
    tick_ms: int

    @property
    def users(self) -> int:
        """Return the number of users."""
        return len(self.plans)

    @property
    def days(self) -> float:
        """Return the duration in days."""
        return (self.end_ms - self.begin_ms) / DAY_MS


def make_population(
    arrivals_ms: Milliseconds,
    channel_ids: Sequence[str],
    users: int,
    *,
    begin_ms: int,
    end_ms: int,
    tick_ms: int,
    seed: int = 0,
    plans: Sequence[tuple[str, float]] = PLANS_DEFAULT,
) -> Population:
    """Simulate users over a history of insights.

    Args:
        arrivals_ms: when each insight arrived; those from `begin_ms` until before `end_ms` count.
        channel_ids: the channel of each.
        users: the number of users.
        begin_ms: the first tick.
        end_ms: the end of the simulation.
        tick_ms: the time between ticks.
        seed: determines the users.
        plans: plans with the share of users on each.
    """
    arrived = np.asarray(arrivals_ms, dtype=np.int64)
    names, numbers = np.unique(np.asarray(channel_ids, dtype=str), return_inverse=True)
    within = np.flatnonzero((arrived >= begin_ms) & (arrived < end_ms))
    within = within[np.argsort(arrived[within], kind="stable")]
    draw = np.random.Generator(np.random.PCG64(seed))
    most = draw.choice(_CHANNELS_MAX, size=users, p=_CHANNELS_SHARES)
    wanted = np.minimum(len(names), draw.integers(1, most + 1))
    # Each user ranks the channels at random and reads the first N of them.
    ranks = draw.random((users, len(names))).argsort(axis=1).argsort(axis=1)
    shares = np.array([share for _, share in plans])
    chosen = draw.choice(len(plans), size=users, p=shares / shares.sum())
    every_ms = draw.choice(_VISIT_DAYS, size=users, p=_VISIT_SHARES) * DAY_MS
    return Population(
        arrivals_ms=arrived[within],
        channels=numbers.astype(np.int64)[within],
        channel_count=len(names),
        subscribed=ranks < wanted[:, None],
        plans=tuple(plans[number][0] for number in chosen.tolist()),
        active_from_ms=begin_ms - draw.integers(0, every_ms),
        active_every_ms=every_ms,
        begin_ms=begin_ms,
        end_ms=end_ms,
        tick_ms=tick_ms,
    )


def user_name(number: int) -> str:
    """Return the id of a simulated user."""
    return f"user-{number:06d}"


def report_plain(policy: Policy, population: Population, costs: Costs) -> tuple[Report, list[Request]]:
    """Run a policy over a population, event by event through the live rules; return the requests in order."""
    player = Player(policy, costs)
    player.play(happenings_of(population))
    return Report(policy.hash, population.users, population.days, player.tally, costs), player.requests


def happenings_of(population: Population) -> Iterator[Happening]:
    """Yield the history of a population, in the order of time; events at the time of a tick come before it."""
    own = _own_events(population)
    next_own = next(own, None)
    arrived = 0
    counts = [0] * population.channel_count
    readers = [
        tuple(user_name(number) for number in np.flatnonzero(population.subscribed[:, channel]).tolist())
        for channel in range(population.channel_count)
    ]
    for number, now_ms in enumerate(range(population.begin_ms, population.end_ms, population.tick_ms)):
        while next_own is not None and next_own.at_ms <= now_ms:
            yield next_own
            next_own = next(own, None)
        moved: set[int] = set()
        while arrived < len(population.arrivals_ms) and population.arrivals_ms[arrived] <= now_ms:
            channel = int(population.channels[arrived])
            counts[channel] += 1
            moved.add(channel)
            yield Advanced(int(population.arrivals_ms[arrived]), _channel_name(channel), counts[channel])
            arrived += 1
        yield Ticked(now_ms, number, now_ms)
        # The tick found these dirty; it notifies their readers and decides about them.
        for channel in sorted(moved):
            yield Notification(now_ms, _channel_name(channel), counts[channel], readers[channel])


def _channel_name(number: int) -> str:
    return f"channel-{number:04d}"


def _own_events(population: Population) -> Iterator[Changed]:
    """Yield the subscriptions at the beginning, and every visit."""
    heads: list[tuple[int, int, int]] = []
    for number in range(population.users):
        channels = [_channel_name(channel) for channel in np.flatnonzero(population.subscribed[number]).tolist()]
        yield Changed(population.begin_ms, _changed(number, 1, plan=population.plans[number], subscribed=channels))
        heapq.heappush(heads, (int(population.active_from_ms[number]), number, 2))
    while heads and heads[0][0] < population.end_ms:
        at_ms, number, revision = heapq.heappop(heads)
        yield Changed(max(at_ms, population.begin_ms), _changed(number, revision, active_ms=at_ms))
        heapq.heappush(heads, (at_ms + int(population.active_every_ms[number]), number, revision + 1))


def _changed(
    number: int, revision: int, *, plan: str | None = None, subscribed: Iterable[str] = (), active_ms: int | None = None
) -> UserChanged:
    return {
        "user_id": user_name(number),
        "revision": revision,
        "plan": plan,
        "last_active_at": active_ms,
        "subscribed": list(subscribed),
        "unsubscribed": [],
        "rebuild_demanded": False,
        "rebuild_forced": False,
        "erased": False,
    }
