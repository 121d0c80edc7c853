"""The agent of the seasons without a broker: what is sent, and that nothing is written before it was acknowledged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemas.codec import Codec
from schemas.topics import TOPICS
from streams.agents import Wiring
from streams.heartbeat import Heartbeats
from streams.intake import Intake
from streams.league.agents import MATCHES_PER_TICK_MAX, SeasonAgent
from streams.league.state import match_key, season_key
from streams.league.windows import WindowOptions

MINUTE, HOUR = 60_000, 3_600_000
KICKOFF = 1_790_000_000_000
OPENS = KICKOFF - 45 * MINUTE
CHANGED, TICK = "league.match-changed", "streams.tick"
REFRESH, PREWARM = "league.refresh-requested", "cache.prewarm-requested"
CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})


@dataclass
class Record:
    """A record of one partition."""

    topic: str
    value: bytes
    offset: int
    key: bytes | None = None
    headers: Any = ()
    partition: int = 0


class Table(dict[bytes, bytes]):
    """A table of one partition."""

    offset_key = b"offset"

    @property
    def data(self) -> Table:
        """Its store."""
        return self

    def _db_for_partition(self, partition: int) -> Table:
        return self


@dataclass
class Case:
    """One agent with its rows and what it sent; acknowledgements come when `acknowledge` is set."""

    rows: Table = field(default_factory=Table)
    ticks: Table = field(default_factory=Table)
    sent: list[tuple[str, Any]] = field(default_factory=list)
    acknowledge: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    offset: int = 0
    agent: SeasonAgent = field(init=False)

    def __post_init__(self) -> None:
        self.acknowledge.set()
        self.restart()

    def restart(self) -> None:
        """Another worker takes over: rows and ticks as they were written, nothing else."""
        wiring = Wiring(CODEC, self.send, Heartbeats(["seasons"]), pytest.fail, lambda now, newest: None)
        intake = Intake("test", CODEC, self.learn, self.send)
        self.agent = SeasonAgent(WindowOptions(), wiring, intake, self.rows, self.ticks)

    async def learn(self, schema_id: int) -> None:
        """Nothing to learn."""

    async def send(self, topic: str, *, key: Any, value: Any, headers: Any, partition: Any = None) -> Any:
        """Note it; the acknowledgement waits."""
        self.sent.append((topic, CODEC.decode(topic, value)))
        self.asked.set()
        return self.acknowledge.wait()

    async def take(self, topic: str, event: Any) -> None:
        """One event of the partition."""
        self.offset += 1
        await self.agent._deal_with(Record(topic, CODEC.encode(topic, event), self.offset))

    async def tick(self, now: int) -> None:
        """A tick."""
        await self.take(TICK, {"number": now // 30_000, "now": now})

    async def change(self, match_id: str = "m", **more: Any) -> None:
        """A match is told."""
        event = {
            "match_id": match_id,
            "season": "s",
            "changed": ["schedule"],
            "kickoff": KICKOFF,
            "status": "scheduled",
            "state": "scheduled",
            "home": "home",
            "away": "away",
            "former_teams": [],
            "home_goals": None,
            "away_goals": None,
            "finalized_at": None,
            "revision": 1,
        }
        await self.take(CHANGED, {**event, **more})

    def told(self, topic: str, reason: str = "match-changed") -> list[Any]:
        """What was sent to a topic; of refreshes those of one reason."""
        return [event for name, event in self.sent if name == topic and (name != REFRESH or event["reason"] == reason)]


async def test_a_row_is_written_after_the_acknowledgement():
    """Until the broker has the request, the row is as it was: a crash before repeats the request."""
    case = Case()
    case.acknowledge.clear()
    waiting = asyncio.create_task(case.change())
    await case.asked.wait()
    assert case.rows == {}
    case.acknowledge.set()
    await waiting
    assert set(case.rows) == {match_key("s", "m")}


async def test_a_tick_is_written_after_the_acknowledgement():
    """A prewarm that was not acknowledged leaves neither the season's row nor the tick behind."""
    case = Case()
    await case.change()
    case.acknowledge.clear()
    case.asked.clear()
    waiting = asyncio.create_task(case.tick(OPENS))
    await case.asked.wait()
    assert case.told(PREWARM)
    assert season_key("s") not in case.rows
    assert case.ticks == {}
    case.acknowledge.set()
    await waiting
    assert season_key("s") in case.rows
    assert case.ticks


async def test_a_repetition_is_told_again():
    """The same change twice, and an older one: three requests, and the newest revision in the row."""
    case = Case()
    await case.change(revision=5)
    row = dict(case.rows)
    await case.change(revision=5)
    await case.change(revision=4, kickoff=KICKOFF + HOUR)
    assert len(case.told(REFRESH)) == 3
    assert case.rows == row


async def test_after_a_restart_only_what_is_still_due_is_told():
    """Another worker prewarms nothing twice, and tells the end of a live page that fell into the gap, once."""
    case = Case()
    await case.change()
    await case.tick(OPENS)
    case.restart()
    await case.tick(OPENS + MINUTE)
    assert len(case.told(PREWARM)) == 1
    case.restart()
    await case.tick(KICKOFF + 6 * HOUR)
    case.restart()
    await case.tick(KICKOFF + 7 * HOUR)
    assert [event["dropped"] for event in case.told(REFRESH, "match-over")] == [["md:m:live"]]
    assert len(case.told(PREWARM)) == 1


async def test_one_worker_tells_start_and_end():
    """Without any restart the window's start and the end of the live page are told at their ticks, each once."""
    case = Case()
    await case.change()
    for now in (OPENS - MINUTE, OPENS, KICKOFF, KICKOFF + 5 * HOUR - MINUTE, KICKOFF + 5 * HOUR, KICKOFF + 6 * HOUR):
        await case.tick(now)
    assert [event["requested_at"] for event in case.told(PREWARM)] == [OPENS]
    assert [event["planned_at"] for event in case.told(REFRESH, "match-over")] == [KICKOFF + 5 * HOUR]


async def test_what_was_told_is_not_in_the_index():
    """After a restart a match that was prewarmed waits for its end, and one that is over for nothing."""
    case = Case()
    await case.change()
    await case.tick(OPENS)
    case.restart()
    key = match_key("s", "m").decode()
    assert case.agent._index(0).at(key) == KICKOFF + 5 * HOUR
    await case.tick(KICKOFF + 5 * HOUR)
    case.restart()
    assert len(case.agent._index(0)) == 0


async def test_a_tick_deals_with_a_bounded_number_of_matches():
    """More matches than a tick may take are dealt with at the next ones, each once."""
    case = Case()
    count = MATCHES_PER_TICK_MAX + 10
    for number in range(count):
        await case.change(str(number), kickoff=KICKOFF - 900 * HOUR, revision=number + 1)
    await case.tick(KICKOFF)
    (first,) = case.told(REFRESH, "match-over")
    assert len(first["dropped"]) == MATCHES_PER_TICK_MAX
    await case.tick(KICKOFF + MINUTE)
    await case.tick(KICKOFF + 2 * MINUTE)
    dropped = [key for event in case.told(REFRESH, "match-over") for key in event["dropped"]]
    assert len(dropped) == len(set(dropped)) == count
    assert case.told(PREWARM) == []


async def test_a_repeated_tick_does_nothing():
    """A tick that comes again, or late, tells nothing."""
    case = Case()
    await case.tick(OPENS + MINUTE)
    await case.change()
    await case.tick(OPENS + MINUTE)
    await case.tick(OPENS)
    assert case.told(PREWARM) == []
    await case.tick(OPENS + 2 * MINUTE)
    assert len(case.told(PREWARM)) == 1
