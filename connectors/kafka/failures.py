"""What follows from a batch that could not be stored: a decision about the error, apart from how it is carried out.

Invariant: no event is dead-lettered for a fault of PostgreSQL or of another service; such a batch is repeated without end.
"""

from __future__ import annotations

from enum import Enum, auto

import asyncpg

from highwater.connectors.postgres.pool import AWAY, is_of_the_store
from highwater.schemas.errors import UnavailableError

# A row that another transaction has just written passes; one that stays this often is the data's fault. A statement that
# PostgreSQL refuses this often is tried with fewer events, for it may be their number (one row twice in a statement).
REFUSALS_MAX = 8
# Of what passes, what may come of the size of a batch: a statement that was cancelled or timed out, and one without memory.
_OF_ITS_SIZE = (asyncpg.QueryCanceledError, asyncpg.OutOfMemoryError, asyncpg.ConfigurationLimitExceededError)


class Following(Enum):
    """What is done with a batch that failed."""

    REPEAT = auto()
    SPLIT = auto()
    DEAD_LETTER = auto()


def after_failure(error: Exception, *, events: int, refusals: int) -> Following:
    """What to do after `error`.

    Args:
        error: what the handler, or the transaction, raised.
        events: how many the batch holds.
        refusals: how often this batch has failed in a way that `is_refusal`, this time included.
    """
    if isinstance(error, (UnavailableError, *AWAY)):
        is_too_large = is_refusal(error) and refusals > REFUSALS_MAX and events > 1
        return Following.SPLIT if is_too_large else Following.REPEAT
    is_retried = is_of_the_store(error)
    if refusals <= REFUSALS_MAX and (is_retried or isinstance(error, asyncpg.UniqueViolationError)):
        return Following.REPEAT
    if events > 1:
        return Following.SPLIT
    return Following.REPEAT if is_retried else Following.DEAD_LETTER


def is_refusal(error: Exception) -> bool:
    """Whether PostgreSQL was there and did not take the batch, so that fewer events may be taken."""
    if isinstance(error, (UnavailableError, *AWAY)):
        return isinstance(error, _OF_ITS_SIZE) or isinstance(error.__cause__, _OF_ITS_SIZE)
    return True
