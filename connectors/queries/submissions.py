"""What was asked under the ids of runs that are stored: what a repeat is compared with, by the sink and by the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.engines.submissions import Known
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.queries import QuerySubmitted


class Question(NamedTuple):
    """What two submissions of one query must have in common."""

    user_id: str
    organization_id: str | None
    query: str


def question_of(event: QuerySubmitted) -> Question:
    """What an event asks."""
    return Question(event["user_id"], event.get("organization_id"), event["query"])


async def known_questions(tx: Connection, request_ids: Sequence[str]) -> dict[str, Known[Question]]:
    """What was asked under these ids, those that are stored."""
    rows = await tx.fetch(QUERIES["known_queries"], list(request_ids))
    return {
        row["id"]: Known(Question(row["user_id"], row["organization_id"], row["user_query"]), row["position"])
        for row in rows
    }
