"""The message log (R1.9): one line per query, one per answer.

Invariant: it is optional: no run fails or waits long because a line cannot be written (R1.13, R1.25); missing lines are
counted. Call it last in a transaction, since nothing after it waits long for locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import asyncpg

from highwater.connectors.postgres.pool import AWAY, Connection
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.telemetry import RAW_LOG_FAILURES, get_log

# A process that locks the log for longer (an operator's ALTER, for example) gets no lines.
_LOCK_WAIT = "2s"

_log = get_log("queries")


class Answer(NamedTuple):
    """A line of an answer, in the order of `log_answers`."""

    user_key: str
    content: str
    run_id: str
    ordinal: int
    at: datetime


async def log_queries(tx: Connection, run_ids: Sequence[str]) -> None:
    """Log the queries of stored runs."""
    if run_ids:
        await _written(tx, len(run_ids), QUERIES["log_queries"], run_ids)


async def log_answers(tx: Connection, answers: Sequence[Answer]) -> None:
    """Log the answers of runs."""
    if answers:
        await _written(tx, len(answers), QUERIES["log_answers"], *map(list, zip(*answers, strict=True)))


async def _written(tx: Connection, lines: int, statement: str, *columns: Sequence[object]) -> None:
    try:
        async with tx.transaction():
            await tx.execute(QUERIES["wait_for_locks_at_most"], _LOCK_WAIT)
            await tx.execute(statement, *columns)
    except (asyncpg.PostgresError, *AWAY) as error:
        if isinstance(error, AWAY) and not isinstance(error, asyncpg.LockNotAvailableError):
            raise  # the whole transaction has failed, or is to be repeated
        RAW_LOG_FAILURES.inc(lines)
        _log.warning("not_logged", lines=lines, reason=str(error))
