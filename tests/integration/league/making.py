"""Shared parts of the tests of the leagues: a separate season, its events, and the stored state."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka import consumer
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_posts import PostsSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.league.worker_ratings import RatingsWorker
from highwater.connectors.slices import ERASURE
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_outbox, in_transaction, running, send, surroundings

NOW_MS = 10**12
KICKOFF_MS = 2_000_000


class League:
    """A season, its events, and the stored state."""

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.season = fresh("season")
        self._at = 1_000
        self._sinks = {
            "fixtures": FixturesSink(context.codec, lambda: NOW_MS),
            "results": ResultsSink(context),
            "votes": VotesSink(context, window_seconds=5.0),
            "posts": PostsSink(context),
            "users": UsersSink(context.codec, lambda: NOW_MS, ERASURE, dimensions=384),
            "ratings": RatingsWorker(context.codec, lambda: NOW_MS),
        }

    # -- events ------------------------------------------------------------------------------------------------------

    def says(self, topic: str, value: dict[str, Any], *, at: int | None = None, offset: int | None = None) -> Event:
        """An event; by default broker time advances by a millisecond."""
        self._at += 1
        at = self._at if at is None else at
        return event(topic, value, offset=self._at if offset is None else offset, arrived_ms=at)

    def match(self, match_id: str) -> str:
        """The id of a match of this season."""
        return f"{self.season}/{match_id}"

    def schedule(self, match_id: str, **changes: Any) -> dict[str, Any]:
        """The value of a match-scheduled."""
        return {
            "match_id": self.match(match_id), "season": self.season, "round": "Matchday 1", "kickoff": KICKOFF_MS,
            "home": f"home of {match_id}", "away": f"away of {match_id}", "time_unknown": False, "status": None, **changes,
        }  # fmt: skip

    def result(self, match_id: str, home: int, away: int, **changes: Any) -> dict[str, Any]:
        """The value of a match-finalized."""
        score = {"home_goals": home, "away_goals": away, "finalized_at": KICKOFF_MS + 1}
        return {"match_id": self.match(match_id), "season": self.season, **score, **changes}

    def scheduled(self, match_id: str, *, at: int | None = None, offset: int | None = None, **changes: Any) -> Event:
        """A match has a date."""
        return self.says("league.match-scheduled", self.schedule(match_id, **changes), at=at, offset=offset)

    def updated(self, match_id: str, home: int, away: int, *, at: int | None = None, **changes: Any) -> Event:
        """A score in play."""
        score = {"home_goals": home, "away_goals": away, "minute": None}
        value = {"match_id": self.match(match_id), "season": self.season, **score, **changes}
        return self.says("league.match-updated", value, at=at)

    def finalized(self, match_id: str, home: int, away: int, *, at: int | None = None, **changes: Any) -> Event:
        """A result."""
        return self.says("league.match-finalized", self.result(match_id, home, away, **changes), at=at)

    def voted(
        self, match_id: str, user: str, choice: str, *, at: int | None = None, offset: int | None = None, ts: int = 1
    ) -> Event:
        """A vote."""
        value = {"match_id": self.match(match_id), "user_id": user, "choice": choice, "ts": ts}
        return self.says("league.vote-cast", value, at=at, offset=offset)

    def predicted(self, match_id: str, user: str, home: int, away: int, *, at: int | None = None, ts: int = 1) -> Event:
        """A prediction."""
        value = {
            "match_id": self.match(match_id), "user_id": user, "home_goals": home, "away_goals": away, "ts": ts,
        }  # fmt: skip
        return self.says("league.prediction-made", value, at=at)

    def commented(self, match_id: str, user: str, text: str, *, at: int | None = None) -> Event:
        """A comment."""
        value = {"match_id": self.match(match_id), "user_id": user, "text": text, "ts": 1}
        return self.says("league.comment-posted", value, at=at)

    def erased(self, user: str, *, at: int | None = None) -> Event:
        """A user is to be erased."""
        return self.says("feeds.user-erased", {"user_id": user, "ts": 1}, at=at)

    # -- storing -----------------------------------------------------------------------------------------------------

    async def stores(self, *events: Event) -> list[DeadLetter]:
        """One batch through the sink that reads these events."""
        (group,) = {TOPICS[e.record.topic].consumers[0] for e in events}
        return list(await in_transaction(self.context, self._sinks[group], events))

    async def rates(self, *events: Event) -> None:
        """One batch through the worker of ratings."""
        await in_transaction(self.context, self._sinks["ratings"], events)

    # -- stored state ------------------------------------------------------------------------------------------------

    async def row(self, match_id: str) -> Any:
        """The row of a match."""
        return await self.context.pool.fetchrow(
            "SELECT * FROM league_matches WHERE match_id = $1", self.match(match_id)
        )

    async def score(self, match_id: str) -> tuple[int | None, int | None]:
        """Goals as stored."""
        row = await self.row(match_id)
        return row["home_goals"], row["away_goals"]

    async def revision(self) -> int | None:
        """The revision of the season; None when there is none."""
        query = "SELECT revision FROM league_seasons WHERE season = $1"
        return await self.context.pool.fetchval(query, self.season)  # type: ignore[no-any-return]

    async def counts(self, match_id: str) -> tuple[int, int, int]:
        """Votes for home, draw and away as they are counted; and that they are those of the votes."""
        match = self.match(match_id)
        row = await self.context.pool.fetchrow("SELECT * FROM league_vote_counts WHERE match_id = $1", match)
        query = "SELECT choice, count(*) AS n FROM league_votes WHERE match_id = $1 GROUP BY 1"
        votes = {found["choice"]: found["n"] for found in await self.context.pool.fetch(query, match)}
        counted = (row["home"], row["draw"], row["away"]) if row is not None else (0, 0, 0)
        assert counted == (votes.get("home", 0), votes.get("draw", 0), votes.get("away", 0))
        return counted

    async def published(self, topic: str, key: str | None = None) -> list[dict[str, Any]]:
        """Our events under a key (the season) that wait in the outbox, in their order."""
        return await in_outbox(self.context, topic, key or self.season)

    async def asked(self, scope: str) -> list[dict[str, Any]]:
        """Requests to rebuild documents under a scope."""
        return await self.published("league.refresh-requested", scope)

    async def texts(self, match_id: str) -> list[str]:
        """Comments, the newest first."""
        query = """SELECT body FROM league_comments WHERE match_id = $1
                   ORDER BY posted_ms DESC, length(position) DESC, position DESC"""
        return [row["body"] for row in await self.context.pool.fetch(query, self.match(match_id))]

    # -- on the broker -----------------------------------------------------------------------------------------------

    def publish(self, kafka: str, topic: str, *values: dict[str, Any]) -> list[Position]:
        """Events as a stranger sends them."""
        key = TOPICS[topic].key
        records = [(str(value[key]).encode(), self.context.codec.encode(topic, value)) for value in values]
        return send(kafka, topic, records)


def reasons(dead: Sequence[DeadLetter]) -> list[str]:
    """Why each was refused."""
    return [letter.reason for letter in dead]


class Announcing(BatchConsumer):
    """A consumer that says by a file when a window has begun."""

    folder: Path

    async def _gather(self, records: list[Record], stop: asyncio.Event) -> list[Record]:
        (self.folder / "gathering").touch()
        return await super()._gather(records, stop)


async def main(folder: Path) -> None:
    """Consume votes in windows of ten seconds, for a test that kills this process in the middle of one."""
    names = ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL")
    consumer.SESSION_MS = int(os.environ["SESSION_MS"])
    async with surroundings(Stack(*(os.environ[name] for name in names), local=None)) as context:  # type: ignore[arg-type]
        member = Announcing(VotesSink(context, window_seconds=10.0), context)
        member.folder = folder
        async with running(member):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
