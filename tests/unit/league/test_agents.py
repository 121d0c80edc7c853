"""The agent of the seasons without a broker: which events are sent, and that no row is written before the acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from highwater.streams.driver import Driver
from highwater.streams.league.agents import MATCHES_PER_TICK_MAX
from highwater.streams.league.state import match_key, season_key

MINUTE, HOUR = 60_000, 3_600_000
KICKOFF = 1_790_000_000_000
OPENS = KICKOFF - 45 * MINUTE
CHANGED = "league.match-changed"
REFRESH, PREWARM = "league.refresh-requested", "cache.prewarm-requested"


class Case(Driver):
    """The agent of seasons, with ticks of the partition of season s only."""

    partition = Driver.partition_of("s", CHANGED)

    def __init__(self) -> None:
        super().__init__("seasons")

    @property
    def rows(self) -> dict[bytes, bytes]:
        """The rows of matches and seasons that the agent has written."""
        return {key: row for _, key, row in self.tables["matches"].rows()}

    @property
    def ticks(self) -> dict[bytes, bytes]:
        """Its rows of ticks."""
        return {key: row for _, key, row in self.tables["ticks"].rows()}

    async def tick(self, now_ms: int, *, partitions: Iterable[int] = (partition,)) -> None:
        """A tick."""
        await super().tick(now_ms, partitions=partitions)

    async def change(self, match_id: str = "m", **more: Any) -> None:
        """A change of a match."""
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
        await self.publish(CHANGED, {**event, **more})

    def published(self, topic: str, reason: str = "match-changed") -> list[Any]:
        """The events sent to a topic; for refreshes those of one reason."""
        return [event for event in self.sent(topic) if topic != REFRESH or event["reason"] == reason]


async def test_a_row_is_written_after_the_acknowledgement():
    """Until the broker has the request, the row is as it was: a crash before repeats the request."""
    case = Case()
    case.hold()
    waiting = asyncio.create_task(case.change())
    await case.until_sent()
    assert case.rows == {}
    case.release()
    await waiting
    assert set(case.rows) == {match_key("s", "m")}


async def test_a_tick_is_written_after_the_acknowledgement():
    """A prewarm that was not acknowledged leaves neither the season's row nor the tick behind."""
    case = Case()
    await case.change()
    case.hold()
    waiting = asyncio.create_task(case.tick(OPENS))
    await case.until_sent()
    assert case.published(PREWARM)
    assert season_key("s") not in case.rows
    assert case.ticks == {}
    case.release()
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
    assert len(case.published(REFRESH)) == 3
    assert case.rows == row


async def test_after_a_restart_only_what_is_still_due_is_told():
    """Another worker prewarms nothing twice, and publishes the end of a live page during the gap once."""
    case = Case()
    await case.change()
    await case.tick(OPENS)
    case.restart()
    await case.tick(OPENS + MINUTE)
    assert len(case.published(PREWARM)) == 1
    case.restart()
    await case.tick(KICKOFF + 6 * HOUR)
    case.restart()
    await case.tick(KICKOFF + 7 * HOUR)
    assert [event["dropped"] for event in case.published(REFRESH, "match-over")] == [["md:m:live"]]
    assert len(case.published(PREWARM)) == 1


async def test_one_worker_tells_start_and_end():
    """Without a restart the window's start and the end of the live page are published at their ticks, each once."""
    case = Case()
    await case.change()
    for now in (OPENS - MINUTE, OPENS, KICKOFF, KICKOFF + 5 * HOUR - MINUTE, KICKOFF + 5 * HOUR, KICKOFF + 6 * HOUR):
        await case.tick(now)
    assert [event["requested_at"] for event in case.published(PREWARM)] == [OPENS]
    assert [event["planned_at"] for event in case.published(REFRESH, "match-over")] == [KICKOFF + 5 * HOUR]


async def test_what_was_told_is_not_in_the_index():
    """After a restart a match that was prewarmed waits for its end, and one that is over for nothing."""
    case = Case()
    await case.change()
    await case.tick(OPENS)
    case.restart()
    key = match_key("s", "m").decode()
    assert case.agents["seasons"]._index(case.partition).at(key) == KICKOFF + 5 * HOUR
    await case.tick(KICKOFF + 5 * HOUR)
    case.restart()
    assert len(case.agents["seasons"]._index(case.partition)) == 0


async def test_a_tick_deals_with_a_bounded_number_of_matches():
    """More matches than a tick may take are dealt with at the next ones, each once."""
    case = Case()
    count = MATCHES_PER_TICK_MAX + 10
    for number in range(count):
        await case.change(str(number), kickoff=KICKOFF - 900 * HOUR, revision=number + 1)
    await case.tick(KICKOFF)
    (first,) = case.published(REFRESH, "match-over")
    assert len(first["dropped"]) == MATCHES_PER_TICK_MAX
    await case.tick(KICKOFF + MINUTE)
    await case.tick(KICKOFF + 2 * MINUTE)
    dropped = [key for event in case.published(REFRESH, "match-over") for key in event["dropped"]]
    assert len(dropped) == len(set(dropped)) == count
    assert case.published(PREWARM) == []


async def test_a_repeated_tick_does_nothing():
    """A repeated or late tick publishes nothing."""
    case = Case()
    await case.tick(OPENS + MINUTE)
    await case.change()
    await case.tick(OPENS + MINUTE)
    await case.tick(OPENS)
    assert case.published(PREWARM) == []
    await case.tick(OPENS + 2 * MINUTE)
    assert len(case.published(PREWARM)) == 1
