"""Which of what waits gets the free slots of this process: asked of PostgreSQL, decided by `streams/identity/sharing.py`.

Invariant. Who shares out slots of a kind of work does it alone, in all processes, so that two never give one organization more
than its share. What was chosen is taken by the caller, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from highwater.connectors.engines.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection
from highwater.streams.identity.sharing import InProgress, Waiting, share_out


class Statement(NamedTuple):
    """The text of a statement, with what is put into it."""

    text: str
    arguments: tuple[Any, ...] = ()


class Share(NamedTuple):
    """How much one organization may have in progress, and which are not bound by it."""

    begun_max: int
    uncapped: Collection[str] = ()


async def choose(
    tx: Connection, lock: tuple[LockClass, int], waiting: Statement, in_progress: Statement, *, slots: int, share: Share
) -> list[str]:
    """The ids of what gets the free slots.

    Args:
        tx: the transaction in which it is taken.
        lock: what whoever shares out this kind of work holds until the transaction ends.
        waiting: gives `work_id`, `organization_id` and `is_begun`, what has waited longest first.
        in_progress: gives `organization_id`, `held`, `begun` and `awaiting`.
        slots: how many are free.
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
