"""Histories for backtests: insights from PostgreSQL for a simulated population, and the recorded log for real users.

Invariant: a history is read up to ends that were fixed before, joins no group, and is sorted by the broker's time;
events in the same millisecond as a tick come before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import numpy as np

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka.finding import Finder
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.pool import one_row, reading
from highwater.schemas.errors import HighwaterError
from highwater.schemas.feeds import CHANNEL_ADVANCED, NOVELTY, REBUILD_FINISHED, REBUILD_REQUESTED, USER_CHANGED
from highwater.schemas.streams import TICK
from highwater.schemas.topic_names import EventT, ReadTopic
from highwater.schemas.topics import TOPICS, keyed_partitions
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.feeds.backtest import (
    Advanced,
    Answered,
    Changed,
    Costs,
    Happening,
    Milliseconds,
    Notification,
    Player,
    Report,
    Ticked,
)
from highwater.streams.feeds.backtest_recorded import AskedBy, Comparison, RecordedPlayer, recorded_requests
from highwater.streams.feeds.policy import Policy

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
_READ = (TICK, USER_CHANGED, NOVELTY, CHANNEL_ADVANCED, REBUILD_FINISHED, REBUILD_REQUESTED)
# Recorded events of users are sorted in memory: 2 million are about 1 GB.
HAPPENINGS_MAX = 2_000_000
_DAY_MS = 86_400_000


class TooMuchHistoryError(HighwaterError):
    """The log has more events than a backtest of recorded users can keep in memory. Use `--population` instead."""


class Arrivals(NamedTuple):
    """Insights in the order of time: their time and channel."""

    at_ms: Milliseconds
    channel_ids: tuple[str, ...]


async def read_span(pool: Pool, *, by_arrival: bool) -> tuple[int, int] | None:
    """Return the times of the first and the last insight; None if there is none."""
    async with reading(pool) as connection:
        row = await one_row(connection, QUERIES["backtest_span"])
    first, last = ("first_arrived_at", "last_arrived_at") if by_arrival else ("first_ts", "last_ts")
    return None if row[first] is None else (to_ms(row[first]), to_ms(row[last]))


async def read_arrivals(pool: Pool, begin_ms: int, end_ms: int, *, by_arrival: bool) -> Arrivals:
    """Return the insights of a time span."""
    statement = QUERIES["backtest_by_arrival"] if by_arrival else QUERIES["backtest_by_event_time"]
    bounds: tuple[datetime, datetime] = to_datetime(begin_ms), to_datetime(end_ms)
    async with reading(pool) as connection:
        rows = await connection.fetch(statement, *bounds)
    at_ms = np.array([to_ms(row["at"]) for row in rows], dtype=np.int64)
    return Arrivals(at_ms, tuple(row["channel_id"] for row in rows))


@dataclass(frozen=True)
class Recorded:
    """The recorded log, in order; `users`: those it names."""

    happenings: tuple[Happening, ...]
    asked: AskedBy
    users: int

    @property
    def span_ms(self) -> tuple[int, int]:
        """Return the times of the first and the last recorded tick."""
        ticks = [one.now_ms for one in self.happenings if isinstance(one, Ticked)]
        return (min(ticks), max(ticks)) if ticks else (0, 0)


def partition_of(user_id: str) -> int:
    """Return the partition of a user's events."""
    return murmur2_partition(user_id.encode(), keyed_partitions())


def read_recorded(finder: Finder, from_ms: int = 0, until_ms: int | None = None) -> Recorded:
    """Read the recorded history. Rows are computed from the beginning of the log; only ticks from `from_ms` until
    `until_ms` count.

    Blocks; see `Finder` for what it raises.

    Raises:
        TooMuchHistoryError: it does not fit into memory.
    """
    ends: dict[str, list[int]] = {
        topic: [finder.ends((topic, partition))[1] for partition in range(TOPICS[topic].partitions)] for topic in _READ
    }

    def events(topic: ReadTopic[EventT]) -> Iterable[Event[EventT]]:
        for partition, end in enumerate(ends[topic]):
            yield from finder.span((topic, partition), end)

    happenings: list[Happening] = []
    for told in (USER_CHANGED, NOVELTY, CHANNEL_ADVANCED, REBUILD_FINISHED, TICK):
        for event in events(told):
            happenings += _happenings(event, from_ms, until_ms)
            if len(happenings) > HAPPENINGS_MAX:
                raise TooMuchHistoryError
    # The sort is stable: events in the same millisecond as a tick stay before it, as ticks were read last.
    happenings.sort(key=lambda one: one.at_ms)
    requests = [
        (record.offset, value)
        for record, value in events(REBUILD_REQUESTED)
        if from_ms <= value["planned_at"] and (until_ms is None or value["planned_at"] < until_ms)
    ]
    answers = [(one.at_ms, one.event) for one in happenings if isinstance(one, Answered)]
    users = {one.event["user_id"] for one in happenings if isinstance(one, Changed)}
    return Recorded(tuple(happenings), recorded_requests(requests, answers), len(users))


def _happenings(event: Event[Mapping[str, object]], from_ms: int, until_ms: int | None) -> list[Happening]:
    at_ms = event.record.arrived_ms
    if tick := event.of(TICK):
        is_counted = from_ms <= tick["now"] and (until_ms is None or tick["now"] < until_ms)
        now = Ticked(at_ms, tick["number"], tick["now"], event.record.partition, tick["clock_offset_ms"])
        return [now] if is_counted else []
    if changed := event.of(USER_CHANGED):
        return [Changed(at_ms, changed)]
    if novelty := event.of(NOVELTY):
        return [
            Notification(at_ms, one["channel_id"], one["head"], tuple(one["users"]), one["retractions"])
            for one in novelty["heads"]
        ]
    if advanced := event.of(CHANNEL_ADVANCED):
        # The insight's own arrival, from which staleness counts.
        return [Advanced(min(at_ms, advanced["arrived_at"]), advanced["channel_id"], advanced["head"])]
    finished = event.of(REBUILD_FINISHED)
    return [] if finished is None else [Answered(at_ms, finished)]


def replay_live(policy: Policy, recorded: Recorded, costs: Costs) -> tuple[Report, Comparison]:
    """Replay the live policy over its recorded ticks and answers; return how far its requests match the actual ones."""
    player = RecordedPlayer(policy, costs, partition_of, recorded.asked)
    player.play(recorded.happenings)
    return _report(policy, recorded, costs, player), player.comparison


def replay_other(policy: Policy, recorded: Recorded, costs: Costs) -> Report:
    """Replay another policy over the same users and ticks; `Costs` decides the results of its rebuilds."""
    player = Player(policy, costs, partition_of)
    player.play(recorded.happenings)
    return _report(policy, recorded, costs, player)


def _report(policy: Policy, recorded: Recorded, costs: Costs, player: Player) -> Report:
    begin_ms, end_ms = recorded.span_ms
    return Report(policy.hash, recorded.users, (end_ms - begin_ms) / _DAY_MS, player.tally, costs)


def described(reports: Mapping[str, Report], comparison: Comparison | None) -> dict[str, Any]:
    """Return reports by policy name as JSON, the live one first, and the comparison with the recorded requests."""
    return {
        "policies": [{"policy": name, **report.document()} for name, report in reports.items()],
        "live_check": None if comparison is None else comparison.document(),
    }
