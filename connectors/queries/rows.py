"""Rows of runs as the sinks of queries create and end them: places in the order of users, log lines, events.

Invariant: rows of users are locked first and in the order of ids, and a place is assigned under its user's lock, so
that places follow the log and events of a user's new runs are published in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from highwater.connectors.engines.rows import json_or_none, work_columns
from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import ArchiveStatus, Status
from highwater.streams.queries.users import user_key


def run_of(row: Row) -> Run:
    """Return a run without its texts."""
    archive_status = row["archive_status"]
    return Run(
        id=row["id"],
        user_id=row["user_id"],
        ordinal=row["ordinal"],
        query="",
        status=Status(row["status"]),
        organization_id=row["organization_id"],
        archive_status=None if archive_status is None else ArchiveStatus(archive_status),
        released=row["released"],
        revision=row["revision"],
        epoch=row["epoch"],
        attempt=row["attempt"],
    )


def whole_run_of(row: Row) -> Run:
    """Return the run in a row of `pipeline_runs`, with its texts."""
    return Run(
        id=str(row["id"]),
        user_id=row["user_text_id"] or str(row["user_id"]),
        ordinal=row["ordinal"],
        query=row["user_query"],
        status=Status(row["status"]),
        organization_id=row["organization_id"],
        archive_status=None if row["archive_status"] is None else ArchiveStatus(row["archive_status"]),
        released=row["released"],
        revision=row["revision"],
        analysis=json_or_none(row["analysis_result"]),
        draft=row["draft_context"],
        payload=row["final_context_payload"],
        answer=row["final_answer"],
        sources=json_or_none(row["sources"]),
        **work_columns(row),
    )


class Ordinals:
    """Assigns places in the order of users whose rows are locked."""

    def __init__(self, last: Mapping[str, int]) -> None:
        self._last = dict(last)
        self._moved: set[str] = set()

    @classmethod
    async def lock(cls, tx: Connection, user_ids: Sequence[str]) -> Ordinals:
        """Lock the rows of these users, creating missing ones."""
        users = {user_key(user_id): user_id for user_id in user_ids}
        if not users:
            return cls({})
        await tx.execute(QUERIES["ensure_query_users"], list(users), list(users.values()))
        rows = await tx.fetch(QUERIES["lock_query_users"], list(users))
        return cls({users[row["user_id"]]: row["last_ordinal"] for row in rows})

    def take(self, user_id: str) -> int:
        """Return the next place of a user."""
        self._last[user_id] += 1
        self._moved.add(user_id)
        return self._last[user_id]

    async def store(self, tx: Connection) -> None:
        """Store the last place of each user."""
        if self._moved:
            users = sorted(self._moved)
            keys, last = [user_key(user) for user in users], [self._last[user] for user in users]
            await tx.execute(QUERIES["advance_query_users"], keys, last)
