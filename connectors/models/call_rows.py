"""Calls of the language model in PostgreSQL.

Invariant: a call is stored before it is made, and its answer before anything follows from it, or in the same
transaction; the first outcome of a call stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import asyncpg

from highwater.connectors.models.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, reading, transaction
from highwater.streams.clock import to_datetime


class CallBegin(NamedTuple):
    """A call that is about to be made, with its prompts; `user_key` None: it does not belong to a query."""

    run_id: str
    stage: str
    attempt: int
    user_key: str | None
    model: str
    prompt_ids: tuple[int, ...]
    started_ms: int


class CallEnd(NamedTuple):
    """The outcome of a call; times in ms since 1970."""

    run_id: str
    stage: str
    attempt: int
    ended_ms: int
    outcome: str
    answer: str | None
    error: str | None
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: Decimal | None


class StoredCall(NamedTuple):
    """What is stored of an earlier call."""

    outcome: str
    answer: str | None
    error: str | None


class Calls:
    """The store of calls."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool

    async def end(self, ends: Sequence[CallEnd]) -> list[bool]:
        """Store the outcomes of calls in a separate transaction, as `end_calls` does."""
        async with transaction(self._pool) as tx:
            return await end_calls(tx, ends)

    async def find(self, run_id: str, stage: str, attempt: int) -> StoredCall | None:
        """Return what is stored of a call; None while it has no outcome."""
        async with reading(self._pool) as tx:
            row = await tx.fetchrow(QUERIES["find_call"], run_id, stage, attempt)
        return None if row is None or row["outcome"] is None else StoredCall(**row)


async def begin_calls(tx: Connection, calls: Sequence[CallBegin]) -> None:
    """Store calls that are made once the transaction is committed."""
    if not calls:
        return
    rows = [(*call[:5], ",".join(map(str, call.prompt_ids)), to_datetime(call.started_ms)) for call in calls]
    await tx.execute(QUERIES["begin_calls"], *map(list, zip(*rows, strict=True)))


async def end_calls(tx: Connection, ends: Sequence[CallEnd]) -> list[bool]:
    """Store the outcomes of calls, also for runs that another worker has taken over: the calls were paid.

    False for a call that has an outcome already, since another worker sent it as well: the first one stays.
    """
    if not ends:
        return []
    columns = map(list, zip(*ends, strict=True))
    run_ids, stages, attempts, ended, outcomes, answers, errors, models, read, written, costs = columns
    at = [to_datetime(ms) for ms in ended]
    rows = await tx.fetch(
        QUERIES["end_calls"],
        run_ids, stages, attempts, at, outcomes, answers, errors, models, read, written, costs,
    )  # fmt: skip
    stored = {(row["run_id"], row["stage"], row["attempt"]) for row in rows}
    return [(end.run_id, str(end.stage), end.attempt) in stored for end in ends]


class Totals(NamedTuple):
    """The total usage of all calls of a run or job: tokens read and written, and dollars."""

    tokens: int
    cost_usd: Decimal


async def totals_of(tx: Connection, run_ids: Sequence[str]) -> dict[str, Totals]:
    """Return the usage of these runs or jobs, of those with any."""
    rows = await tx.fetch(QUERIES["totals_of_calls"], run_ids) if run_ids else []
    return {row["run_id"]: Totals(row["tokens"], row["cost_usd"]) for row in rows}


async def erase_calls(tx: Connection, run_ids: Sequence[str]) -> None:
    """Delete the calls for these runs or jobs."""
    await tx.execute(QUERIES["erase_calls"], run_ids)


async def erase_answers(tx: Connection, run_ids: Sequence[str]) -> None:
    """Delete the answers to calls for these runs or jobs, which have ended."""
    if run_ids:
        await tx.execute(QUERIES["erase_answers"], run_ids)
