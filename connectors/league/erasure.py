"""The step of leagues in an erasure of users: all their votes, predictions and comments up to it, their ratings and
their documents.

Invariant: it runs alone (`connectors/identity/erasures.py`); transactions that store votes or comments wait. Votes of
the matches are recounted, and changed documents are published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.league.refreshing import RefreshRequest, request_refreshes
from highwater.connectors.league.sink_votes import documents_of_votes
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.league.votes import recount
from highwater.connectors.pages import rows as documents
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Cause
from highwater.streams.league.resources import resource
from highwater.streams.pages.kinds import Resource


def documents_of_user(user_id: str) -> list[Resource]:
    """Return the documents that end with a user."""
    return [resource("predictions_user", user_id), resource("achievements", user_id)]


async def lock_documents(tx: Connection, users: Collection[str]) -> None:
    """Lock the users' documents: no builder can give one a version that the floor does not know of."""
    for key in sorted(await documents.existing(tx, _keys(users))):
        await documents.lock(tx, key)


async def erase_from_league(tx: Connection, codec: Codec, erased: Mapping[str, Cause], now_ms: int) -> None:
    """Erase users in the transaction of their erasures (`erased`: user to event), under its locks, and publish the changes."""
    users, until_ms = list(erased), [cause.arrived_ms for cause in erased.values()]
    voted = await _erased(tx, QUERIES["erase_votes"], users, until_ms)
    predicted = await _erased(tx, QUERIES["erase_predictions"], users, until_ms)
    commented = await _erased(tx, QUERIES["erase_comments"], users, until_ms)
    rated = await tx.fetch(QUERIES["erase_ratings"], users)
    await documents.drop(tx, _keys(users))
    last = max(erased.values(), key=lambda cause: cause.order)
    await recount(tx, dict.fromkeys(voted, last))

    def told(scope: str, found: Sequence[Resource], dropped: Sequence[Resource] = ()) -> RefreshRequest:
        return RefreshRequest(scope, found, "erased", last.position, dropped=dropped)

    requests = [told(match_id, documents_of_votes(match_id)) for match_id in sorted(voted | predicted)]
    requests += [told(match_id, [resource("match_comments", match_id)]) for match_id in sorted(commented)]
    requests += [told("ratings", [resource("leaderboard", "1")])] if rated else []
    requests += [told(user_id, [], documents_of_user(user_id)) for user_id in users]
    await request_refreshes(tx, codec, requests, source="sinks/users", now_ms=now_ms)


def _keys(users: Collection[str]) -> list[str]:
    return sorted(document.key for user_id in users for document in documents_of_user(user_id))


async def _erased(tx: Connection, statement: str, users: Sequence[str], until_ms: Sequence[int]) -> set[str]:
    return {row["match_id"] for row in await tx.fetch(statement, users, until_ms)}


ERASURE = ErasureStep(
    erase_from_league,
    lock=lock_documents,
    resources=lambda user_id: [document.key for document in documents_of_user(user_id)],
)
