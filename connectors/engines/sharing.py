"""Assigns the free slots of this process to waiting work: read from PostgreSQL, decided by
`streams/identity/sharing.py`.

Invariant: one process at a time assigns slots of a kind of work, so that two never give one organization more than its
share. The caller claims the chosen work in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from highwater.connectors.engines.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection
from highwater.streams.identity.sharing import InProgress, Waiting, share_out


class Statement(NamedTuple):
    """The text of a statement, with its arguments."""

    text: str
    arguments: tuple[Any, ...] = ()


class Share(NamedTuple):
    """How much one organization may have in progress, and which organizations are exempt."""

    begun_max: int
    uncapped: Collection[str] = ()


async def choose(
    tx: Connection, lock: tuple[LockClass, int], waiting: Statement, in_progress: Statement, *, slots: int, share: Share
) -> list[str]:
    """Return the ids of the work that gets the free slots.

    Args:
        tx: the transaction in which the caller claims it.
        lock: the lock on assigning this kind of work, held until the transaction ends.
        waiting: returns `work_id`, `organization_id` and `is_begun`, the longest waiting first.
        in_progress: returns `organization_id`, `held`, `begun` and `awaiting`.
        slots: the number of free ones.
        share: of one organization.
    """
    await tx.execute(QUERIES["hold_slots"], *lock)
    works = await tx.fetch(waiting.text, *waiting.arguments)
    held = await tx.fetch(in_progress.text, *in_progress.arguments)
    return share_out(
        [Waiting(row["work_id"], row["organization_id"], row["is_begun"]) for row in works],
        {row["organization_id"]: InProgress(row["held"], row["begun"], row["awaiting"]) for row in held},
        slots=slots,
        begun_max=share.begun_max,
        uncapped=share.uncapped,
    )
