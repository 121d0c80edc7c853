"""The queries under the ids of stored runs: a repeat is compared with them, by the sink and by the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.engines.submissions import FirstSubmission
from highwater.connectors.postgres.pool import Connection
from highwater.connectors.queries.statements import QUERIES
from highwater.schemas.queries import QuerySubmitted


class Question(NamedTuple):
    """The fields that must be equal in two submissions of one query."""

    user_id: str
    organization_id: str | None
    query: str


def question_of(event: QuerySubmitted) -> Question:
    """Return what an event asks."""
    return Question(event["user_id"], event.get("organization_id"), event["query"])


async def known_questions(tx: Connection, request_ids: Sequence[str]) -> dict[str, FirstSubmission[Question]]:
    """Return the queries under those of these ids that are stored."""
    rows = await tx.fetch(QUERIES["known_queries"], list(request_ids))
    return {
        row["id"]: FirstSubmission(Question(row["user_id"], row["organization_id"], row["user_query"]), row["position"])
        for row in rows
    }
