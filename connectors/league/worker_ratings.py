"""Rates users by their predictions of matches (R4.22, R4.34): those of a match when it has a result, and everyone every
six hours. A later vote or prediction is rated by the sink that stores it (`sink_votes.py`).

Invariant: a rating is a function of what is stored, computed completely each time, so a repeat changes nothing. One
transaction rates at a time: a result that was committed before it began is in all of its ratings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.identity import erasures
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.league.locks import hold_ratings
from highwater.connectors.league.ratings import USERS_MAX, rate_users
from highwater.connectors.league.refreshing import DOCUMENTS_MAX, RefreshRequest, request_refreshes
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.pages import rows as documents
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.league import MATCH_CHANGED, MatchChanged
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK, Tick
from highwater.streams.clock import Clock
from highwater.streams.league.matches import State
from highwater.streams.league.resources import resource
from highwater.streams.pages.kinds import Resource
from highwater.streams.ticks import is_of_the_future

# A full recalculation every six hours of the ticks' time (R4.22).
RUN_MS = 6 * 3_600_000


class RatingWork(NamedTuple):
    """The work of a batch: matches with another result, the number of the run at its newest tick, and the causing event."""

    matches: list[str]
    run: int | None
    cause: Position


class RatingsWorker(Handler[MatchChanged | Tick, RatingWork]):
    """Keeps `league_ratings`; the first page of the rating is requested when it may have changed, and at each run."""

    group = "ratings"
    topics = (MATCH_CHANGED, TICK)
    # A season's import of a few hundred results is rated at once.
    batch_max = 1_000

    def __init__(self, codec: Codec, clock: Clock) -> None:
        self._codec = codec
        self._clock = clock

    async def prepare(self, events: Sequence[Event[MatchChanged | Tick]]) -> RatingWork:
        """Return which matches and which run."""
        asking = [event for event in of_topic(events, MATCH_CHANGED) if _is_rated(event.value)]
        ticks = of_topic(events, TICK)
        runs = [
            tick.value["now"] // RUN_MS for tick in ticks if not is_of_the_future(tick.value, tick.record.arrived_ms)
        ]
        cause = (asking[-1] if asking else events[-1]).record.position
        return RatingWork(sorted({event.value["match_id"] for event in asking}), max(runs, default=None), cause)

    async def apply(
        self, tx: Connection, events: Sequence[Event[MatchChanged | Tick]], prepared: RatingWork
    ) -> Sequence[DeadLetter]:
        """Rate, and request the documents that show ratings."""
        if not prepared.matches and prepared.run is None:
            return []
        await erasures.share(tx)
        await hold_ratings(tx)  # later statements see what was committed while this waited
        is_run = prepared.run is not None and await tx.fetchval(QUERIES["begin_rating_run"], prepared.run) is not None
        rows = await (
            tx.fetch(QUERIES["users_to_rate"]) if is_run else tx.fetch(QUERIES["users_of_matches"], prepared.matches)
        )
        users = sorted(row["user_id"] for row in rows)
        changed = await rate_users(tx, users)
        if is_run or users:
            dropped = await _documents_of(tx, changed if is_run else users)
            requests = _requests(dropped, prepared.cause)
            await request_refreshes(tx, self._codec, requests, source="workers/ratings", now_ms=self._clock())
        return []


def _requests(dropped: Sequence[Resource], cause: Position) -> list[RefreshRequest]:
    """Rebuild the ratings and delete the users' own documents; those are built again on request."""
    parts = [dropped[start : start + DOCUMENTS_MAX] for start in range(0, len(dropped), DOCUMENTS_MAX)]
    rating = [resource("leaderboard", "1")]
    return [RefreshRequest("ratings", rating, "ratings", str(cause), dropped=part) for part in parts or [()]]


async def _documents_of(tx: Connection, users: Sequence[str]) -> list[Resource]:
    """Return the stored documents of these users."""
    found: list[Resource] = []
    for start in range(0, len(users), USERS_MAX):
        asked = {
            one.key: one
            for user in users[start : start + USERS_MAX]
            for one in (resource("predictions_user", user), resource("achievements", user))
        }
        found += [asked[key] for key in sorted(await documents.existing(tx, list(asked)))]
    return found


def _is_rated(change: MatchChanged) -> bool:
    """Return whether a change of a match can change ratings: another result, or another date of a match with one."""
    return "result" in change["changed"] or ("schedule" in change["changed"] and change["state"] == State.FINAL)
