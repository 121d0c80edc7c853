"""The end-to-end heartbeat of a worker: every tick it publishes must reach every agent.

Invariant: silence has a limit. A tick travels through broker, fetcher, stream, agent and table, so a received tick
proves them all, and one that does not arrive in time makes the worker unready and ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

# A tick waits behind the events before it. An agent that processes events is alive, so its silence counts from the last
# one; but a single partition that is stuck while others flow must also be detected, after this many limits.
BUSY_LIMITS = 10

# Ticks in flight per partition: a busy agent gets no more than it may be behind by, so ticks never accumulate.
TICKS_UNDER_WAY_MAX = 3


class Heartbeats:
    """The ticks in flight to each agent. Seconds are on the monotonic clock, passed by the caller."""

    def __init__(self, agents: Collection[str]) -> None:
        self._agents = tuple(agents)
        self._under_way: dict[tuple[str, int], deque[tuple[int, float]]] = {}
        self._moved_at: dict[str, float] = {}

    def sent(self, partition: int, number: int, at_seconds: float) -> None:
        """Note a tick before it is published, so that an unavailable broker counts as silence too."""
        for agent in self._agents:
            self._under_way.setdefault((agent, partition), deque()).append((number, at_seconds))

    def heard(self, agent: str, partition: int, number: int) -> None:
        """Note that an agent has processed a tick, and with it all earlier ones."""
        under_way = self._under_way.get((agent, partition))
        while under_way and under_way[0][0] <= number:
            under_way.popleft()

    def moved(self, agent: str, at_seconds: float) -> None:
        """Note that an agent has processed any event."""
        self._moved_at[agent] = at_seconds

    def forget(self) -> None:
        """Forget everything at a rebalance: ticks in flight may go to another worker, which watches its own."""
        self._under_way.clear()

    def is_full(self, partition: int) -> bool:
        """Return whether a partition has the maximum number of ticks in flight."""
        return any(len(self._under_way.get((agent, partition), ())) >= TICKS_UNDER_WAY_MAX for agent in self._agents)

    def late(self, at_seconds: float, limit_seconds: float, answered_at: float = float("-inf")) -> dict[str, str]:
        """Return what was silent for longer than the limit: name -> reason.

        `answered_at` is when a silent broker answered again: a tick could not arrive before that, so its silence is
        counted from there.
        """
        found: dict[str, str] = {}
        for (agent, partition), under_way in self._under_way.items():
            if not under_way:
                continue
            number, sent_at = under_way[0]
            counted_from = max(sent_at, answered_at)
            silent = at_seconds - max(counted_from, self._moved_at.get(agent, counted_from))
            if silent > limit_seconds or at_seconds - counted_from > BUSY_LIMITS * limit_seconds:
                found[f"{agent}/{partition}"] = f"tick {number} was not applied within {at_seconds - sent_at:.0f} s"
        return found


class Progress:
    """Whether something that must progress did; for starting, rebalancing and recovery."""

    def __init__(self, at_seconds: float) -> None:
        self._last: object = None
        self._moved_at = at_seconds

    def look(self, state: object, at_seconds: float) -> float:
        """Return the seconds since `state` last changed."""
        if state != self._last:
            self._last, self._moved_at = state, at_seconds
        return at_seconds - self._moved_at

    def forgive(self, at_seconds: float) -> None:
        """Restart the count: it could not progress until now."""
        self._moved_at = max(self._moved_at, at_seconds)
