"""Decides what follows from a batch that could not be stored; the consumer carries it out.

Invariant: no event is dead-lettered for a fault of PostgreSQL or of another service; such a batch is repeated without
end.
"""

from __future__ import annotations

from enum import Enum, auto

import asyncpg

from highwater.connectors.postgres.pool import AWAY, StatementTimeoutError, is_of_the_store
from highwater.schemas.errors import UnavailableError

# A conflict with another transaction passes; one that remains after this many attempts is the data's fault. A statement
# that PostgreSQL refuses this often is tried with fewer events, since their number may be the cause (one row twice in a
# statement).
REFUSALS_MAX = 8
# A statement without an answer has already used its minute: the second time fewer events are tried.
TIMEOUTS_MAX = 1
# Temporary errors that the size of a batch may cause: a cancelled or timed-out statement, and out of memory.
_OF_ITS_SIZE = (
    asyncpg.QueryCanceledError,
    asyncpg.OutOfMemoryError,
    asyncpg.ConfigurationLimitExceededError,
    StatementTimeoutError,
)


class Following(Enum):
    """What to do with a failed batch."""

    REPEAT = auto()
    SPLIT = auto()
    DEAD_LETTER = auto()


def after_failure(error: Exception, *, events: int, refusals: int) -> Following:
    """Return what to do after `error`.

    Args:
        error: raised by the handler, or the transaction.
        events: the number of events in the batch.
        refusals: how often this batch has failed with `is_refusal`, including this time.
    """
    if isinstance(error, (UnavailableError, *AWAY)):
        most = TIMEOUTS_MAX if _is_one_of(error, StatementTimeoutError) else REFUSALS_MAX
        is_too_large = is_refusal(error) and refusals > most and events > 1
        return Following.SPLIT if is_too_large else Following.REPEAT
    is_retried = is_of_the_store(error)
    if refusals <= REFUSALS_MAX and (is_retried or isinstance(error, asyncpg.UniqueViolationError)):
        return Following.REPEAT
    if events > 1:
        return Following.SPLIT
    return Following.REPEAT if is_retried else Following.DEAD_LETTER


def is_refusal(error: Exception) -> bool:
    """Return whether PostgreSQL answered and refused the batch, so that fewer events may be accepted."""
    if isinstance(error, (UnavailableError, *AWAY)):
        return _is_one_of(error, _OF_ITS_SIZE)
    return True


def _is_one_of(error: Exception, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)
