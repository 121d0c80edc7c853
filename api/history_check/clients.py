"""The clients of a run: what each one writes, repeats and reads, drawn from the seed.

Invariant: every value that a client writes is unique, except in a repeat, which is the same write again; only one client
writes the subscriptions of a user. So a check can say which write a read has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from highwater.api.history_check.history import Action
from highwater.api.history_check.sessions import Session, insight_path, insight_resource
from highwater.api.history_check.wire import ForeignProducer
from highwater.streams.clock import Clock

INSIGHT_TOPIC = "feeds.insight-ingested"
CHANNELS = 4
# Writes that a client may repeat, retract and read again; it has forgotten older ones.
WRITES_REMEMBERED = 200
_WORDS = ("rebalance", "throttle", "checkpoint", "compaction", "lease", "replica", "snapshot")
_GOALS = 5


@dataclass(frozen=True, slots=True)
class Names:
    """The names of everything that a run makes; a run shares none of them with another one."""

    run: str

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels."""
        return tuple(f"{self.run}-c{number}" for number in range(CHANNELS))

    @property
    def season(self) -> str:
        """Return the season of the matches."""
        return f"{self.run}-season"

    def user(self, client: str) -> str:
        """Return the user whose subscriptions a client writes."""
        return f"{self.run}-{client}"

    def asker(self, client: str) -> str:
        """Return the user who submits queries."""
        return f"{self.run}-{client}-asks"


class Client:
    """Sends one operation after the other until it is stopped."""

    def __init__(
        self, session: Session, names: Names, clients: Sequence[str], clock: Clock, producer: ForeignProducer | None
    ) -> None:
        """`clients`: the names of all; `producer`: it writes insights to Kafka, and without one by HTTP."""
        self.insights: set[str] = set()
        self._session = session
        self._names = names
        self._clients = clients
        self._clock = clock
        self._producer = producer
        self._user = names.user(session.name)
        self._events: list[dict[str, Any]] = []
        self._count = 0

    async def run(
        self, is_over: Callable[[], bool], turn: Callable[[], AbstractAsyncContextManager[None]], pause_seconds: float
    ) -> None:
        """Work until it is over; each operation is in a `turn`."""
        async with turn():
            await self._subscribe()
            await self._act()
        while not is_over():
            async with turn():
                await self._draw()()
            await asyncio.sleep(pause_seconds)

    def _draw(self) -> Callable[[], Awaitable[Any]]:
        chosen = self._session.draws.below(sum(weight for weight, _ in self._deck))
        for weight, operation in self._deck:
            chosen -= weight
            if chosen < 0:
                return operation
        raise AssertionError("the weights of the operations do not add up")

    @property
    def _deck(self) -> Sequence[tuple[int, Callable[[], Awaitable[Any]]]]:
        return (
            (24, self._write), (8, self._repeat), (16, self._read_insight), (14, self._read_channel), (10, self._read_feed),
            (8, self._read_clusters), (5, self._retract), (4, self._subscribe), (4, self._act), (6, self._read_page),
            (3, self._write_match), (2, self._submit_query), (1, self._erase),
        )  # fmt: skip

    # -- insights
    # --------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        self._count += 1
        channel = self._session.draws.one_of(self._names.channels)
        word = self._session.draws.one_of(_WORDS)
        insight_id = f"{channel}--{self._session.name}-{self._count}"
        text = f"{word} changed in part {self._count % 9}, value {insight_id}"
        event = {"insight_id": insight_id, "channel_id": channel, "ts": self._clock(), "text": text}
        self.insights.add(insight_id)
        self._events.append(event)
        del self._events[:-WRITES_REMEMBERED]
        await self._publish(event)
        if self._session.draws.below(2):
            await self._read(Action.READ_INSIGHT, event, is_positioned=True)

    async def _repeat(self) -> None:
        if self._events:
            await self._publish(self._session.draws.one_of(self._events))

    async def _publish(self, event: dict[str, Any]) -> None:
        resource = insight_resource(event["insight_id"])
        if self._producer is None:
            path = f"/api/events/{INSIGHT_TOPIC}"
            await self._session.write(Action.WRITE_INSIGHT, resource, "POST", path, event, value=event["text"])
            return
        recorder = self._session.recorder
        invocation = recorder.invoke(self._session.name, "kafka", Action.WRITE_INSIGHT, resource, value=event["text"])
        position = await asyncio.to_thread(self._producer.send, event["channel_id"], event)
        if position is None:
            recorder.complete(invocation, None)
            return
        recorder.complete(invocation, 200, positions=(position,))
        self._session.learn([position])

    async def _read(self, action: Action, event: dict[str, Any], **more: bool) -> None:
        path = insight_path(event["channel_id"], event["insight_id"])
        await self._session.read(action, insight_resource(event["insight_id"]), path, **more)

    async def _read_insight(self) -> None:
        if self._events:
            draws = self._session.draws
            more = {"is_positioned": draws.below(2) == 0, "is_conditional": draws.below(3) == 0}
            await self._read(Action.READ_INSIGHT, draws.one_of(self._events), **more)

    async def _retract(self) -> None:
        if not self._events:
            return
        event = self._session.draws.one_of(self._events)
        insight_id, channel = event["insight_id"], event["channel_id"]
        body = {"insight_id": insight_id, "channel_id": channel, "ts": self._clock()}
        path = "/api/events/feeds.insight-retracted"
        await self._session.write(Action.RETRACT_INSIGHT, insight_resource(insight_id), "POST", path, body)
        await self._read(Action.READ_INSIGHT, event, is_positioned=True)
        await self._read_own(Action.READ_FEED, "feed", is_positioned=True)

    async def _read_channel(self) -> None:
        draws = self._session.draws
        channel = draws.one_of(self._names.channels)
        more = self._drawn_options()
        await self._session.read(Action.READ_CHANNEL, f"channel:{channel}", f"/api/channels/{quote(channel)}", **more)

    def _drawn_options(self) -> dict[str, bool]:
        draws = self._session.draws
        names = ("is_positioned", "is_conditional", "is_identity")
        return {name: draws.below(every) == 0 for name, every in zip(names, (4, 2, 5), strict=True)}

    # -- users
    # -----------------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        """Subscribe to the channels and to one that no other write has, so that a read shows which write it has seen."""
        self._count += 1
        channels = sorted((*self._names.channels, f"{self._user}-mark-{self._count}"))
        resource, path = f"subscriptions:{self._user}", f"/api/users/{self._user}/subscriptions"
        body = {"channels": channels}
        await self._session.write(Action.REPLACE_SUBSCRIPTIONS, resource, "PUT", path, body, value=" ".join(channels))
        await self._read_own(Action.READ_SUBSCRIPTIONS, "subscriptions", is_positioned=True)

    async def _erase(self) -> None:
        path = f"/api/users/{self._user}/data"
        await self._session.write(Action.ERASE_USER, f"subscriptions:{self._user}", "DELETE", path, None)
        await self._read_own(Action.READ_SUBSCRIPTIONS, "subscriptions", is_positioned=True)
        await self._read_own(Action.READ_FEED, "feed", is_positioned=True)

    async def _act(self) -> None:
        """Be active, so that the clusters of the user are rebuilt."""
        resource, path = f"activity:{self._user}", f"/api/users/{self._user}/activity"
        await self._session.write(Action.REPORT_ACTIVITY, resource, "POST", path, {})

    async def _read_own(self, action: Action, kind: str, **more: bool) -> None:
        await self._session.read(action, f"{kind}:{self._user}", f"/api/users/{self._user}/{kind}", **more)

    async def _read_listing(self, action: Action, kind: str) -> None:
        """Read a page of any client's user: sessions compare what they see of the same resource."""
        user = self._names.user(self._session.draws.one_of(self._clients))
        more = self._drawn_options()
        await self._session.read(action, f"{kind}:{user}", f"/api/users/{user}/{kind}", **more)

    async def _read_feed(self) -> None:
        await self._read_listing(Action.READ_FEED, "feed")

    async def _read_clusters(self) -> None:
        await self._read_listing(Action.READ_CLUSTERS, "clusters")

    # -- pages and queries
    # -----------------------------------------------------------------------------------------------

    async def _write_match(self) -> None:
        """Schedule a match and report its result: the pages of the season change."""
        self._count += 1
        draws, season = self._session.draws, self._names.season
        match = {"match_id": f"{season}-{self._session.name}-{self._count}", "season": season}
        kickoff = self._clock()
        teams = {"home": f"Home {draws.below(6)}", "away": f"Away {draws.below(6)}"}
        scheduled = {**match, **teams, "round": "1", "kickoff": kickoff, "time_unknown": False, "status": "scheduled"}
        goals = {"home_goals": draws.below(_GOALS), "away_goals": draws.below(_GOALS)}
        result = {**match, **goals, "finalized_at": kickoff}
        for topic, event in (("league.match-scheduled", scheduled), ("league.match-finalized", result)):
            resource = f"match:{match['match_id']}"
            written = await self._session.write(Action.WRITE_MATCH, resource, "POST", f"/api/events/{topic}", event)
            if not written.is_acknowledged:
                return  # a result of a match that is not stored would be a dead letter

    async def _read_page(self) -> None:
        season = self._names.season
        page = self._session.draws.one_of(("table", "results"))
        await self._session.read(
            Action.READ_PAGE, f"league:{season}/{page}", f"/api/league/{season}/{page}", **self._drawn_options()
        )

    async def _submit_query(self) -> None:
        """Submit a query under a key, and most often repeat it under the same key, as after a lost answer."""
        self._count += 1
        asker, key = self._names.asker(self._session.name), f"{self._session.name}-{self._count}"
        body = {"user_id": asker, "query": f"What changed in part {self._count}?"}
        for _ in range(1 + self._session.draws.below(3)):
            await self._session.write(
                Action.SUBMIT_QUERY, f"queries:{asker}", "POST", "/api/query", body, value=body["query"], key=key
            )
