"""The sink of votes and predictions: collected for a window, then stored and published once (R4.33).

Invariant: a window is a batch. Its votes, the counts, the ratings of users who voted or predicted after the result, the
requests to rebuild documents and the positions are one transaction, so a process that dies in the middle of a window
loses nothing and counts nothing twice. The log is the buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from highwater.connectors.identity import erasures
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.league.known_matches import KnownMatches
from highwater.connectors.league.matches import checked
from highwater.connectors.league.ratings import rate_late
from highwater.connectors.league.refreshing import RefreshRequest, request_refreshes
from highwater.connectors.league.sink_fixtures import Prepared
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.league.votes import WordEvent, newest_causes, recount, store_words
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.league import PREDICTION_MADE, VOTE_CAST
from highwater.streams.league.resources import PREDICTION_DAYS, resource
from highwater.streams.league.votes import Word
from highwater.streams.pages.kinds import Resource


class VotesSink(Handler[WordEvent, Prepared[WordEvent]]):
    """Stores one row per user and match, and one of counts per match; publishes a change of a match once per window (R4.4)."""

    group = "votes"
    topics = (VOTE_CAST, PREDICTION_MADE)
    # A full window ends early. The keys of this many users, with the longest ids, are 5.3 MB and fit one record.
    batch_max = 5_000

    def __init__(self, context: ProcessContext, *, window_seconds: float) -> None:
        self._codec = context.codec
        self._clock = context.clock
        self._matches = KnownMatches(context.pool, context.admin)
        self.gather_seconds = window_seconds

    async def prepare(self, events: Sequence[Event[WordEvent]]) -> Prepared[WordEvent]:
        """Check the events, and that their matches are known."""
        good, dead = checked(events)
        known, unknown = await self._matches.split(good)
        return Prepared(known, [*dead, *unknown])

    async def apply(
        self, tx: Connection, events: Sequence[Event[WordEvent]], prepared: Prepared[WordEvent]
    ) -> Sequence[DeadLetter]:
        """Store the last vote and prediction of each user and match, recount the votes of changed matches, and publish."""
        valid = await erasures.valid(tx, prepared.events)
        if valid:
            matches = await tx.fetch(QUERIES["lock_matches"], sorted({event.value["match_id"] for event in valid}))
            votes = await store_words(tx, VOTE_CAST, valid)
            predictions = await store_words(tx, PREDICTION_MADE, valid)
            await recount(tx, newest_causes(votes.changed))
            requests = _requests([*votes.changed, *predictions.changed])
            ended = {row["match_id"] for row in matches if row["result_ms"] is not None}
            late = [word for word in (*votes.stored, *predictions.stored) if word.match_id in ended]
            if await rate_late(tx, sorted({word.user_id for word in late})):
                requests.append(_rating_request(late))
            await request_refreshes(tx, self._codec, requests, source="sinks/votes", now_ms=self._clock())
        return prepared.dead


def _requests(changed: Sequence[Word]) -> list[RefreshRequest]:
    """Return one request per match."""
    users: dict[str, list[str]] = defaultdict(list)
    for word in changed:
        users[word.match_id].append(word.user_id)
    return [
        RefreshRequest(
            match_id, [*documents_of_votes(match_id), *_documents_of_users(users[match_id])], "votes", cause.position
        )
        for match_id, cause in newest_causes(changed).items()
    ]


def _rating_request(late: Sequence[Word]) -> RefreshRequest:
    """Return the request to rebuild the rating, which votes and predictions after a result have changed."""
    last = max((word.cause for word in late), key=lambda cause: cause.order)
    return RefreshRequest("ratings", [resource("leaderboard", "1")], "votes", last.position)


def documents_of_votes(match_id: str) -> list[Resource]:
    """Return the documents that show the votes of a match."""
    return [
        resource("match_live", match_id),
        resource("predictions_active", str(PREDICTION_DAYS)),
        resource("admin_stats"),
    ]


def _documents_of_users(user_ids: Sequence[str]) -> Iterator[Resource]:
    for user_id in user_ids:
        yield resource("predictions_user", user_id)
        yield resource("achievements", user_id)
