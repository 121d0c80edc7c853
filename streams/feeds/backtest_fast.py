"""A policy over a whole population at once: `backtest_people.report_plain` in arrays, for ten thousand users over a
year.

Invariant: it gives exactly the requests of the plain implementation, which calls the live rules; a property test
compares the two. All users advance one step at a time: to the first tick at which the rules would request. That tick
follows from four others (answered, cooled down, enough novelty, enough time), since without new events of the user the
rules never change back, and only activity may delay it to the user's next visit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.backtest import DAY_MS, Costs, Milliseconds, Report, Request, Tally
from highwater.streams.feeds.backtest_people import Population, user_name
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import Trigger

# Users processed at once: 2,000 of them over 6,000 arrivals are 50 MB of sums.
USERS_AT_ONCE = 2_000
_NEVER = np.iinfo(np.int64).max // 4
_NONE = -1
_BEFORE_ALL = -_NEVER

Numbers = NDArray[np.int64]


def report_fast(policy: Policy, population: Population, costs: Costs) -> Report:
    """A policy over a population."""
    tally = Tally()
    for users in _chunks(population.users):
        for _ in _play(policy, population, costs, users, tally):
            pass
    return Report(policy.hash, population.users, population.days, tally, costs)


def requests_fast(policy: Policy, population: Population, costs: Costs) -> list[Request]:
    """The requests of a policy over a population, in the order of ticks and users."""
    found = []
    for users in _chunks(population.users):
        for step in _play(policy, population, costs, users, Tally()):
            for user, tick, now, novel, pending in zip(*step, strict=True):
                trigger = Trigger.NOVELTY if novel else Trigger.TIME
                found.append(Request(user_name(int(user)), int(tick), int(now), trigger, int(pending)))
    return sorted(found, key=lambda request: (request.tick, request.user_id))


def _chunks(users: int) -> Iterator[Numbers]:
    for begin in range(0, users, USERS_AT_ONCE):
        yield np.arange(begin, min(users, begin + USERS_AT_ONCE), dtype=np.int64)


class _Step(NamedTuple):
    """The requests of one step, as columns."""

    users: Numbers
    ticks: Numbers
    now_ms: Milliseconds
    is_novel: NDArray[np.bool_]
    pending: Numbers


@dataclass
class _Standing:
    """The state of users. `mark` counts arrivals of all channels: what had arrived when the last rebuild read the heads."""

    row: Numbers
    tick: Numbers
    mark: Numbers
    looked_ms: Milliseconds
    asked_ms: Milliseconds

    def keep(self, which: NDArray[np.bool_]) -> None:
        for name in ("row", "tick", "mark", "looked_ms", "asked_ms"):
            setattr(self, name, getattr(self, name)[which])


class _Sums:
    """For each user how many of the first m arrivals were in channels of that user; rows ascend."""

    def __init__(self, population: Population, users: Numbers) -> None:
        mine = population.subscribed[users][:, population.channels]
        self._rows = np.zeros((len(users), len(population.arrivals_ms) + 1), dtype=np.int32)
        np.cumsum(mine, axis=1, out=self._rows[:, 1:])
        self.mine = mine
        # All rows as one ascending array, so that one search finds a place in every row.
        self._stride = len(population.arrivals_ms) + 1
        self._flat = (self._rows + np.arange(len(users), dtype=np.int64)[:, None] * self._stride).ravel()

    def at(self, rows: Numbers, m: Numbers) -> Numbers:
        """Return for each row the sum after m arrivals."""
        return self._rows[rows, m].astype(np.int64)

    def reach(self, rows: Numbers, target: Numbers) -> Numbers:
        """Return for each row after how many arrivals the sum reaches a value; past the last if it never does."""
        is_there = target <= self._rows[rows, -1]
        found = np.searchsorted(self._flat, np.where(is_there, target, 0) + rows * self._stride) - rows * self._stride
        return np.where(is_there, found, self._stride)


def _play(policy: Policy, world: Population, costs: Costs, users: Numbers, tally: Tally) -> Iterator[_Step]:
    plans = [policy.plan(world.plans[user]) for user in users]
    least, interval, within, cooldown = (
        np.array([getattr(plan, name) for plan in plans], dtype=np.int64)
        for name in ("novelty_count_min", "rebuild_interval_ms", "active_within_ms", "cooldown_ms")
    )
    sums = _Sums(world, users)
    served_ms = np.full((len(users), len(world.arrivals_ms)), _NEVER, dtype=np.int64)
    rebuilt = np.zeros(len(users), dtype=bool)
    zeros = np.zeros(len(users), dtype=np.int64)
    nones = np.full(len(users), _NONE, dtype=np.int64)
    at = _Standing(np.arange(len(users), dtype=np.int64), zeros, zeros.copy(), nones, nones.copy())
    at.keep(np.asarray(world.subscribed[users].any(axis=1)))
    while len(at.row):
        row = at.row
        enough = sums.reach(row, sums.at(row, at.mark) + least[row])
        novel_tick = _told_tick(world, enough)
        time_tick = np.where(at.looked_ms == _NONE, 0, _tick_at(world, at.looked_ms + interval[row]))
        cool_tick = np.where(at.asked_ms == _NONE, 0, _tick_at(world, at.asked_ms + cooldown[row]))
        tick = np.maximum(np.maximum(at.tick, cool_tick), np.minimum(novel_tick, time_tick))
        tick = _active_tick(world, users[row], within[row], tick)
        is_within = world.begin_ms + tick * world.tick_ms < world.end_ms
        at.keep(np.asarray(is_within))
        row, tick, novel_tick = at.row, tick[is_within], novel_tick[is_within]
        if not len(row):
            break
        now_ms = world.begin_ms + tick * world.tick_ms
        # A tick first decides about users notified by earlier ticks, then about those it notifies itself.
        is_told = (tick == novel_tick) & (time_tick[is_within] > tick)
        is_novel = is_told | (tick > novel_tick)
        known_ms = np.where(is_told, now_ms, np.where(tick == 0, _BEFORE_ALL, now_ms - world.tick_ms))
        known = np.searchsorted(world.arrivals_ms, known_ms, side="right")
        base = sums.at(row, at.mark)
        pending = sums.at(row, np.maximum(known, at.mark)) - base
        yield _Step(users[row], tick, now_ms, is_novel, pending)
        tally.requests[Trigger.NOVELTY] += int(is_novel.sum())
        tally.requests[Trigger.TIME] += int((~is_novel).sum())
        _answer(world, costs, at, _Request(tick, now_ms, base), sums, tally, served_ms, rebuilt)
    tally.users_rebuilt += int(rebuilt.sum())
    _count_staleness(world, sums, served_ms, tally)


class _Request(NamedTuple):
    tick: Numbers
    now_ms: Milliseconds
    base: Numbers


def _answer(
    world: Population,
    costs: Costs,
    at: _Standing,
    request: _Request,
    sums: _Sums,
    tally: Tally,
    served_ms: Milliseconds,
    rebuilt: NDArray[np.bool_],
) -> None:
    """Simulate the worker's answers: without new insights a check, else a version of everything that has arrived."""
    row, now_ms = at.row, request.now_ms
    heads = np.searchsorted(world.arrivals_ms, now_ms, side="right")
    total = sums.at(row, heads)
    new = total - request.base
    is_built = new > 0
    begin = np.searchsorted(world.arrivals_ms, now_ms - costs.window_ms, side="left")
    insights = total - np.minimum(sums.at(row, begin), request.base)
    cost_ms = costs.clustering_ms(insights)
    finish_ms = np.where(is_built, now_ms + cost_ms, now_ms + 1)
    tally.rebuilds += int(is_built.sum())
    tally.skips += int((~is_built).sum())
    tally.insights_clustered += int(np.minimum(insights[is_built], costs.insights_max).sum())
    tally.clustering_ms += int(cost_ms[is_built].sum())
    tally.titles += int(costs.titles_asked(new[is_built]).sum())
    days, counts = np.unique(now_ms[is_built] // DAY_MS, return_counts=True)
    for day, count in zip(days.tolist(), counts.tolist(), strict=True):
        tally.rebuilds_by_day[day] = tally.rebuilds_by_day.get(day, 0) + count
    rebuilt[row[is_built]] = True
    served_ms[row[is_built], heads[is_built] - 1] = finish_ms[is_built]
    at.mark = np.where(is_built, heads, at.mark)
    at.looked_ms = np.where(is_built, finish_ms, now_ms)
    at.asked_ms = now_ms
    at.tick = np.maximum(request.tick + 1, _tick_at(world, finish_ms))


def _tick_at(world: Population, at_ms: Milliseconds) -> Numbers:
    """Return the first tick at or after a time."""
    return np.maximum(0, -(-(at_ms - world.begin_ms) // world.tick_ms))


def _told_tick(world: Population, arrivals: Numbers) -> Numbers:
    """Return the first tick that reports this many arrivals: it finds the channels dirty and decides about the users it
    notifies.
    """
    is_there = arrivals <= len(world.arrivals_ms)
    if not len(world.arrivals_ms):
        return np.full(len(arrivals), _NEVER // world.tick_ms, dtype=np.int64)
    at_ms = world.arrivals_ms[np.clip(arrivals, 1, len(world.arrivals_ms)) - 1]
    return np.where(is_there, _tick_at(world, at_ms), _NEVER // world.tick_ms)


def _active_tick(world: Population, users: Numbers, within_ms: Numbers, tick: Numbers) -> Numbers:
    """Return the first tick from a given one at which a user counts as active: that one, or one after a later visit."""
    since, every = world.active_from_ms[users], world.active_every_ms[users]
    tick = tick.copy()
    open_ = np.arange(len(tick))
    while len(open_):
        now_ms = world.begin_ms + tick[open_] * world.tick_ms
        since_o, every_o = since[open_], every[open_]
        seen = now_ms >= since_o
        last_ms = since_o + (now_ms - since_o) // every_o * every_o
        is_active = seen & (now_ms - last_ms <= within_ms[open_])
        is_open = ~is_active & (now_ms < world.end_ms)
        next_ms = np.where(seen, last_ms + every_o, since_o)
        open_, next_ms = open_[is_open], next_ms[is_open]
        tick[open_] = _tick_at(world, next_ms)
    return tick


def _count_staleness(world: Population, sums: _Sums, served_ms: Milliseconds, tally: Tally) -> None:
    """Count staleness: an insight is in the first version after it, so the next mark in its row gives the time."""
    if served_ms.size == 0:
        return
    first_ms = np.minimum.accumulate(served_ms[:, ::-1], axis=1)[:, ::-1]
    waits = (first_ms - world.arrivals_ms)[sums.mine & (first_ms < _NEVER)]
    tally.add_staleness(waits)
