"""The live policy over a recorded log gives the recorded requests, in any order in which the agent had read its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from highwater.streams.feeds.backtest import Advanced, Answered, Changed, Costs, Happening, Notification, Player, Ticked
from highwater.streams.feeds.backtest_people import Population, happenings_of
from highwater.streams.feeds.backtest_recorded import Comparison, RecordedPlayer, recorded_requests
from highwater.streams.feeds.policy import PlanPolicy, Policy, make_policy
from highwater.streams.feeds.rules import Trigger

TICK_MS = 30_000
COSTS = Costs(fixed_ms=2_000)
POLICY = make_policy({"free": PlanPolicy(3, 600, 86_400, 60)})


class Agent(Player):
    """The agent as it was: meets events in an order of its own, and leaves its requests and their answers in a log."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, COSTS)
        self.requested: list[tuple[int, dict[str, Any]]] = []
        self.answered: list[Answered] = []

    def _request(self, user_id: str, user: Any, trigger: Trigger, now_ms: int) -> None:
        pending = self.requests[-1].pending
        super()._request(user_id, user, trigger, now_ms)
        asked = {
            "user_id": user_id,
            "planned_at": now_ms,
            "trigger": trigger.value,
            "pending": pending,
            "plan": user.plan,
        }
        self.requested.append((user.requested_offset, asked))

    def _finish(self, user_id: str, number: int, at_ms: int, user: Any, **fields: Any) -> None:
        super()._finish(user_id, number, at_ms, user, **fields)
        outcome = "rebuilt" if fields.get("hwm") is not None else "skipped"
        event = next(event for _, name, offset, event in self._answers if (name, offset) == (user_id, number))
        self.answered.append(Answered(at_ms, {**event, "outcome": outcome}))


def population(arrivals: Iterable[int], users: int) -> Population:
    """Insights of one channel, and readers of it who are always there."""
    return Population(
        np.array(sorted(arrivals), dtype=np.int64), np.zeros(len(list(arrivals)), dtype=np.int64), 1,
        np.ones((users, 1), dtype=bool), ("free",) * users, np.zeros(users, dtype=np.int64),
        np.full(users, 3_600_000, dtype=np.int64), 0, 80 * TICK_MS, TICK_MS,
    )  # fmt: skip


def met(history: list[Happening], delays_ms: list[int]) -> list[Happening]:
    """The history in the order in which an agent met it: each topic in its own order, some of it late."""
    last: dict[type, int] = {}
    timed = []
    for number, happening in enumerate(history):
        delay = 0 if isinstance(happening, Ticked | Advanced) else delays_ms[number % len(delays_ms)]
        at_ms = max(happening.at_ms + delay, last.get(type(happening), 0))
        last[type(happening)] = at_ms
        timed.append((at_ms, number, happening))
    return [happening for _, _, happening in sorted(timed, key=lambda one: one[:2])]


def compared(world: Population, delays_ms: list[int], policy: Policy = POLICY) -> tuple[Agent, Comparison]:
    """An agent that met events late, and the replay of what it left in the log."""
    history = list(happenings_of(world))
    agent = Agent(POLICY)
    agent.play(met(history, delays_ms))
    # The log is ordered by the broker's time, ticks last: which events the agent read late is recorded nowhere.
    log = sorted([*history, *agent.answered], key=lambda one: (one.at_ms, isinstance(one, Ticked)))
    asked = recorded_requests(agent.requested, [(one.at_ms, one.event) for one in agent.answered])
    player = RecordedPlayer(policy, COSTS, lambda _: 0, asked)
    player.play(log)
    return agent, player.comparison


def test_a_log_in_order_is_replayed_as_it_was() -> None:
    """Every request again, none else, and no other order was needed where none was lost."""
    world = population(range(0, 70 * TICK_MS, 11_000), 3)
    agent, comparison = compared(world, [0])
    assert comparison.is_exact
    assert comparison.recorded == len(agent.requests) > 20


def test_another_policy_is_not_the_one_that_was_live() -> None:
    """The order of events may vary within limits, the decision may not: another threshold is reported as a difference."""
    other = make_policy({"free": PlanPolicy(50, 86_400, 86_400, 60)})
    _, comparison = compared(population(range(0, 70 * TICK_MS, 11_000), 2), [0], other)
    assert not comparison.is_exact
    assert comparison.missing
    assert comparison.document()["first_differences"][0]["kind"] == "missing"


def test_a_request_that_was_taken_out_of_the_log_is_extra() -> None:
    """Nor may a request be explained away that no order of events prevents."""
    history = list(happenings_of(population([], 1)))
    player = RecordedPlayer(POLICY, COSTS, lambda _: 0, {})
    # Long after the user was first seen nothing is late any more.
    player.play([one for one in history if not isinstance(one, Ticked) or one.now_ms > 30 * TICK_MS])
    assert player.comparison.extra
    assert not player.comparison.is_exact


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 70 * TICK_MS), max_size=40),
    st.integers(1, 3),
    st.lists(st.sampled_from([0, 0, 0, 1, TICK_MS, 2 * TICK_MS + 1]), min_size=1, max_size=7),
)
def test_whatever_was_met_late_the_requests_are_those_that_happened(
    arrivals: list[int], users: int, delays_ms: list[int]
) -> None:
    """A worker that reads its topics unevenly, by up to two ticks."""
    _, comparison = compared(population(arrivals, users), delays_ms)
    assert comparison.is_exact, comparison.document()


def test_a_request_that_was_sent_twice_is_one() -> None:
    """A worker that died between sending and noting sends again at the same tick: one decision, in flight until the last copy."""
    value = {"user_id": "u", "planned_at": 7, "trigger": "novelty", "pending": 3, "plan": "free"}
    answers = [
        (10, {"user_id": "u", "request_position": "feeds.rebuild-requested/0/4", "outcome": "rebuilt"}),
        (11, {"user_id": "u", "request_position": "feeds.rebuild-requested/0/5", "outcome": "skipped"}),
    ]
    ((key, asked),) = recorded_requests([(4, value), (5, value)], answers).items()
    assert key == ("u", 7)
    assert (asked.offset, asked.answered_ms) == (5, 10)
    assert asked.answer is not None
    assert asked.answer["outcome"] == "rebuilt"


def test_happenings_that_change_nobody_are_played_as_they_are() -> None:
    """Advances count for what a rebuild finds, for all notified users."""
    player = RecordedPlayer(POLICY, COSTS, lambda _: 0, {})
    player.play([Advanced(0, "c", 3), Notification(1, "c", 3, ("u",)), Changed(2, _erased())])
    assert player.comparison.is_exact


def _erased() -> dict[str, Any]:
    return {
        "user_id": "u", "revision": 5, "plan": None, "last_active_at": None, "subscribed": [], "unsubscribed": [],
        "rebuild_demanded": False, "rebuild_forced": False, "erased": True,
    }  # fmt: skip
