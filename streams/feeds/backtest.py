"""The rebuild policy in virtual time: what it would have requested over a history, and the consequences.

Invariant: every decision is made by the live rules (`novelty.judge`, `rules.reason_to_skip`) on a row that the live
merges keep (`streams/feeds/state.py`); only time and answers are simulated. `backtest_fast.py` does the same for a
whole population at once and tests compare the two; `backtest_recorded.py` replays what the log recorded. The cost of a
rebuild is a model (`Costs`) and is reported as such.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from highwater.schemas.feeds import REBUILD_REQUESTED, RebuildFinished, UserChanged
from highwater.schemas.positions import Position
from highwater.schemas.streams import Tick
from highwater.streams.due import DueIndex
from highwater.streams.feeds.agents import USERS_PER_TICK_MAX
from highwater.streams.feeds.novelty import (
    Forget,
    Remember,
    facts_of,
    judge,
    may_ask_at,
    pending_in_channel,
    pending_of,
)
from highwater.streams.feeds.policy import Policy
from highwater.streams.feeds.rules import (
    ACCOUNTED_FOR,
    NOTHING_NEW,
    REQUEST_DEADLINE_MS,
    Rebuild,
    Trigger,
    UserFacts,
    Wait,
    reason_to_skip,
)
from highwater.streams.feeds.state import User, apply_changed, apply_finished, apply_head, apply_requested
from highwater.streams.ticks import Admission, LastTick, admit

DAY_MS = 86_400_000
# Bins of staleness per doubling: a quantile is exact to 1.1 %.
_BINS_A_DOUBLING = 64
# 2**41 ms are seventy years.
_BINS = 41 * _BINS_A_DOUBLING

Milliseconds: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Costs:
    """The assumed cost of a rebuild, by the insights in its window and the new ones.

    Clustering: 30 ms and 0.1 ms per insight, as measured over 900 to 10,000 real commits (ARCHITECTURE, quality of
    clusters). Titles: one call for at most 30 clusters, 330 tokens to read and 100 to write for each; a title is
    requested when half of a cluster is new, so for a tenth as many clusters as there are new insights. Without prices
    (USD per million tokens) money is not counted.
    """

    fixed_ms: int = 30
    per_thousand_ms: int = 100
    insights_max: int = 20_000
    window_ms: int = 30 * DAY_MS
    deadline_ms: int = REQUEST_DEADLINE_MS
    price_in_usd: float | None = None
    price_out_usd: float | None = None

    def clustering_ms(self, insights: Any) -> Any:
        """Milliseconds to cluster this number of insights, at least 1; a number or an array."""
        return np.maximum(1, self.fixed_ms + np.minimum(insights, self.insights_max) * self.per_thousand_ms // 1000)

    def titles_asked(self, new: Any) -> Any:
        """Return the number of titles requested after this number of new insights; a number or an array."""
        return np.minimum(30, -(-new // 10))

    def usd(self, titles: int) -> float | None:
        """Return the cost of the calls; None without a price."""
        if self.price_in_usd is None or self.price_out_usd is None:
            return None
        return titles * (330 * self.price_in_usd + 100 * self.price_out_usd) / 1_000_000


class Request(NamedTuple):
    """A request of a policy: the user, the tick, the reason, and the pending insights."""

    user_id: str
    tick: int
    now_ms: int
    trigger: Trigger
    pending: int


@dataclass
class Tally:
    """The totals of a run. `staleness`: per insight and user, from its arrival to the first version with it."""

    requests: dict[Trigger, int] = field(default_factory=lambda: dict.fromkeys(Trigger, 0))
    rebuilds: int = 0
    skips: int = 0
    users_rebuilt: int = 0
    insights_clustered: int = 0
    clustering_ms: int = 0
    titles: int = 0
    staleness: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))
    staleness_ms_max: int = 0
    rebuilds_by_day: dict[int, int] = field(default_factory=dict)

    def add_staleness(self, waits_ms: Milliseconds) -> None:
        """Count waits, in milliseconds."""
        if len(waits_ms):
            self.staleness += np.bincount(bins_of(waits_ms), minlength=_BINS)
            self.staleness_ms_max = max(self.staleness_ms_max, int(waits_ms.max()))

    def staleness_ms(self, share: float) -> int | None:
        """Return the wait that this share of all waits does not exceed; None if nothing was served."""
        total = int(self.staleness.sum())
        if total == 0:
            return None
        number = int(np.searchsorted(np.cumsum(self.staleness), share * total))
        return min(self.staleness_ms_max, int(2 ** ((number + 1) / _BINS_A_DOUBLING)) - 1)


def bins_of(waits_ms: Milliseconds) -> NDArray[np.int64]:
    """Return the bin of each wait: 64 per doubling."""
    logs = np.log2(np.maximum(waits_ms, 0).astype(np.float64) + 1.0)
    return np.minimum((logs * _BINS_A_DOUBLING).astype(np.int64), _BINS - 1)


@dataclass(frozen=True, slots=True)
class Report:
    """A policy over a history of `days` days and `users` users."""

    policy_hash: str
    users: int
    days: float
    tally: Tally
    costs: Costs

    def document(self) -> dict[str, Any]:
        """Return the results as JSON; durations in seconds."""
        tally, person_days = self.tally, self.users * self.days
        quantiles = {f"staleness_p{int(share * 100)}_seconds": tally.staleness_ms(share) for share in (0.5, 0.95)}
        usd = self.costs.usd(tally.titles)
        return {
            "policy_hash": self.policy_hash,
            "users": self.users,
            "days": round(self.days, 3),
            "requests": sum(tally.requests.values()),
            "requests_by_trigger": {trigger.value: count for trigger, count in tally.requests.items()},
            "rebuilds": tally.rebuilds,
            "skips": tally.skips,
            "users_rebuilt": tally.users_rebuilt,
            "rebuilds_per_user_day": round(tally.rebuilds / person_days, 4) if person_days else None,
            **{name: None if ms is None else ms / 1000 for name, ms in quantiles.items()},
            "staleness_max_seconds": tally.staleness_ms_max / 1000 if tally.staleness.any() else None,
            "insights_served": int(tally.staleness.sum()),
            "clustering_seconds": tally.clustering_ms / 1000,
            "insights_clustered": tally.insights_clustered,
            "llm_clusters_titled": tally.titles,
            "llm_cost_usd": None if usd is None else round(usd, 4),
            "rebuilds_by_day": {str(day): tally.rebuilds_by_day[day] for day in sorted(tally.rebuilds_by_day)},
        }


# -- a history, event by event ---------------------------------------------------------------------------------------


class Ticked(NamedTuple):
    """A tick of a partition: its time and its own `now`; their difference is the offset of the product's clock."""

    at_ms: int
    number: int
    now_ms: int
    partition: int = 0
    clock_offset_ms: int = 0


class Changed(NamedTuple):
    """A `feeds.user-changed`."""

    at_ms: int
    event: UserChanged


class Notification(NamedTuple):
    """Users notified of a channel's head (`feeds.novelty`)."""

    at_ms: int
    channel_id: str
    head: int
    users: tuple[str, ...]
    retractions: int = 0


class Advanced(NamedTuple):
    """A channel advanced: what a rebuild finds in PostgreSQL, whether users were notified or not."""

    at_ms: int
    channel_id: str
    head: int


class Answered(NamedTuple):
    """A `feeds.rebuild-finished`, of a recorded or a simulated request."""

    at_ms: int
    event: RebuildFinished


Happening: TypeAlias = Ticked | Changed | Notification | Advanced | Answered


class Player:
    """Plays one history with one policy, in the given order."""

    def __init__(self, policy: Policy, costs: Costs, partition_of: Callable[[str], int] = lambda _: 0) -> None:
        self.requests: list[Request] = []
        self.tally = Tally()
        self._policy = policy
        self._costs = costs
        self._partition_of = partition_of
        self._users: dict[str, User] = {}
        self._due: dict[int, DueIndex] = {}
        self._ticked: dict[int, Ticked] = {}  # the last admitted one of each partition
        self._told: dict[str, None] = {}  # users notified at the last time
        self._told_ms = 0
        self._arrivals: dict[str, list[int]] = {}
        self._answers: list[tuple[int, str, int, RebuildFinished]] = []
        self._rebuilt: set[str] = set()

    def play(self, history: Iterable[Happening]) -> None:
        """Play a history; answers are inserted by their time, before a tick at the same time."""
        for happening in history:
            if not (isinstance(happening, Notification) and happening.at_ms == self._told_ms):
                self._judge_told()
            while self._answers and self._answers[0][0] <= happening.at_ms:
                self._answer(heapq.heappop(self._answers)[-1])
            self._happen(happening)
        self._judge_told()

    def _happen(self, happening: Happening) -> None:
        match happening:
            case Ticked():
                self._tick(happening)
            case Changed(_, event):
                self._change(event["user_id"], lambda user: apply_changed(user, event))
            case Notification(at_ms, channel_id, head, users, retractions):
                for user_id in users:
                    self._change(user_id, lambda user: apply_head(user, channel_id, head, retractions))
                self._told |= dict.fromkeys(users)
                self._told_ms = at_ms
            case Advanced(at_ms, channel_id, head):
                arrivals = self._arrivals.setdefault(channel_id, [])
                arrivals.extend([at_ms] * (head - len(arrivals)))
            case Answered():
                pass  # it answers a request that this policy may never have made

    def _change(self, user_id: str, merge: Callable[[User], None]) -> None:
        user = self._users.setdefault(user_id, User())
        merge(user)
        partition = self._partition_of(user_id)
        self._index(partition).put(user_id, ticked.now_ms if (ticked := self._ticked.get(partition)) else 0)

    def _index(self, partition: int) -> DueIndex:
        return self._due.setdefault(partition, DueIndex())

    def _tick(self, tick: Ticked) -> None:
        if self._admit(tick):
            index = self._index(tick.partition)
            for user_id in index.take(tick.now_ms, USERS_PER_TICK_MAX):
                self._judge(user_id, tick, index)

    def _judge_told(self) -> None:
        """Judge notified users at the last tick, unless it has requested them already."""
        for user_id in self._told:
            partition = self._partition_of(user_id)
            tick = self._ticked.get(partition)
            if tick is not None and may_ask_at(self._users[user_id], tick.now_ms, self._costs.deadline_ms):
                self._index(partition).drop(user_id)
                self._judge(user_id, tick, self._index(partition))
        self._told.clear()

    def _admit(self, tick: Ticked) -> bool:
        """Admit ticks as the agent does (`streams/ticks.py`): after a rebalance a tick may arrive twice."""
        told = Tick(number=tick.number, now=tick.now_ms, clock_offset_ms=tick.clock_offset_ms)
        before = self._ticked.get(tick.partition)
        last = LastTick(now=-1) if before is None else LastTick(before.number, before.now_ms)
        verdict = admit(told, tick.at_ms, last.offset + 1, last)
        if verdict.is_admitted:
            self._ticked[tick.partition] = tick
        if verdict.admission is Admission.OVERRULES:  # due times are computed again
            for user_id in self._users:
                if self._partition_of(user_id) == tick.partition:
                    self._index(tick.partition).put(user_id, 0)
        return verdict.is_admitted

    def _judge(self, user_id: str, tick: Ticked, index: DueIndex) -> None:
        user = self._users[user_id]
        pending = pending_of(user)
        match judge(user, pending, self._policy, tick.now_ms):
            case Rebuild(trigger):
                self.requests.append(Request(user_id, tick.number, tick.now_ms, trigger, pending.total))
                self._request(user_id, user, trigger, tick.now_ms)
                index.put(user_id, tick.now_ms + self._costs.deadline_ms)
            case Wait(until_ms):
                index.put(user_id, until_ms)
            case Remember(until_ms):
                user.forget_at = until_ms
                index.put(user_id, until_ms)
            case Forget():
                del self._users[user_id]

    def _request(self, user_id: str, user: User, trigger: Trigger, now_ms: int) -> None:
        """Apply a request, and simulate the worker: it begins at once, and reads what exists by then."""
        number = max(user.requested_offset, user.finished_offset) + 1
        is_forced = user.is_forced
        apply_requested(user, trigger, offset=number, now=now_ms, deadline_ms=self._costs.deadline_ms)
        self.tally.requests[trigger] += 1
        facts = facts_of(user, pending_of(user))
        heads = {name: len(self._arrivals.get(name, ())) for name, view in user.channels.items() if view.is_subscribed}
        new = sum(pending_in_channel(head, user.channels[name].hwm) for name, head in heads.items())
        reason = reason_to_skip(trigger, _with_pending(facts, new), self._policy, now_ms, is_forced=is_forced)
        if reason is not None:
            self.tally.skips += 1
            told = {name: user.channels[name].hwm for name in heads} if reason in ACCOUNTED_FOR else None
            checked_ms = now_ms if reason == NOTHING_NEW else None
            self._finish(user_id, number, now_ms + 1, user, hwm=told, checked_ms=checked_ms)
            return
        finish_ms = now_ms + self._count_rebuild(user_id, user, heads, now_ms)
        self._count_staleness(user, heads, finish_ms)
        self._finish(user_id, number, finish_ms, user, hwm=heads, clustered_ms=finish_ms)

    def _outside(self, channel_id: str, hwm: int, now_ms: int) -> int:
        """Return how many of a channel's insights are neither new nor in the window."""
        return min(hwm, bisect_left(self._arrivals.get(channel_id, []), now_ms - self._costs.window_ms))

    def _count_rebuild(self, user_id: str, user: User, heads: Mapping[str, int], now_ms: int) -> int:
        """Count a version that reaches up to `heads`; return its duration in milliseconds."""
        marks = {name: user.channels[name].hwm if name in user.channels else 0 for name in heads}
        insights = sum(head - self._outside(name, marks[name], now_ms) for name, head in heads.items())
        cost_ms = int(self._costs.clustering_ms(insights))
        tally = self.tally
        tally.rebuilds += 1
        tally.insights_clustered += min(insights, self._costs.insights_max)
        tally.clustering_ms += cost_ms
        tally.titles += int(
            self._costs.titles_asked(sum(pending_in_channel(head, marks[name]) for name, head in heads.items()))
        )
        day = now_ms // DAY_MS
        tally.rebuilds_by_day[day] = tally.rebuilds_by_day.get(day, 0) + 1
        self._rebuilt.add(user_id)
        tally.users_rebuilt = len(self._rebuilt)
        return cost_ms

    def _count_staleness(self, user: User, heads: Mapping[str, int], finish_ms: int) -> None:
        for name, head in heads.items():
            hwm = user.channels[name].hwm if name in user.channels else 0
            arrived = self._arrivals.get(name, [])[hwm:head]
            self.tally.add_staleness(finish_ms - np.array(arrived, dtype=np.int64))

    def _finish(
        self,
        user_id: str,
        number: int,
        at_ms: int,
        user: User,
        *,
        hwm: Mapping[str, int] | None = None,
        clustered_ms: int | None = None,
        checked_ms: int | None = None,
    ) -> None:
        event = RebuildFinished(
            user_id=user_id,
            request_position=str(Position(REBUILD_REQUESTED, 0, number)),
            outcome="skipped" if clustered_ms is None else "rebuilt",
            reason="",
            cluster_version=0,  # versions are not counted here
            hwm=dict(hwm or {}),
            last_clustered_at=clustered_ms if clustered_ms is not None else user.last_clustered_at,
            last_checked_at=checked_ms,
            finished_at=at_ms,
            retractions=None if hwm is None else {name: user.channels[name].retractions for name in hwm},
            last_enqueued_at=None,
            demanded_revision=0,
            forced=False,
        )
        heapq.heappush(self._answers, (at_ms, user_id, number, event))

    def _answer(self, event: RebuildFinished) -> None:
        self._change(event["user_id"], lambda user: apply_finished(user, event))


def _with_pending(facts: UserFacts, pending: int) -> UserFacts:
    """Return the facts that the worker judges by: its own count, without the demand and the request in progress."""
    return UserFacts(
        plan=facts.plan,
        pending=pending,
        is_subscribed=facts.is_subscribed,
        last_active_at=facts.last_active_at,
        last_clustered_at=facts.last_clustered_at,
        last_checked_at=facts.last_checked_at,
        is_changed=facts.is_changed,
    )
