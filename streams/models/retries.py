"""What follows a call of the language model without a usable answer (R1.31 to R1.37).

Invariant: one count of three calls per stage, for all kinds of failures; an unusable answer is requested once more. A
wait is a time at which the next attempt is due, never a sleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# R1.32: three calls in all, not four.
ATTEMPTS_MAX = 3
# R1.34: an unusable answer is requested once more.
UNUSABLE_MAX = 1
# R1.32: 2^n seconds after attempt n.
_TIMEOUT_BASE_SECONDS = 2
# R1.33.
RATE_LIMIT_MS = 60_000
# A longer wait requested by the service is respected (a service that loads a model says how long, too), up to ten minutes: a
# run that waits longer should rather fail.
RETRY_AFTER_MS_MAX = 600_000
EXHAUSTED = "Max retries exceeded"


class Failure(StrEnum):
    """Why a call gave no usable answer."""

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"  # a server error or a closed connection: handled like a timeout
    UNUSABLE = "unusable"  # an answer of another form than requested
    TOO_LONG = "too_long"  # more than the model reads, which is known now: less is sent
    REFUSED = "refused"  # the service refuses, however often it is called


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt, due after `wait_ms`; 0 = at once."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run fails with this message; `is_alert`: an operator is alerted (R1.35)."""

    message: str
    is_alert: bool


def after_failure(
    failure: Failure, detail: str, *, attempt: int, unusable: int, retry_after_ms: int | None
) -> Again | GiveUp:
    """Decide what follows.

    Args:
        failure: the kind of failure.
        detail: the same in words.
        attempt: the number of this call in its stage, from 1.
        unusable: unusable answers of the stage before this one.
        retry_after_ms: the wait that the service requested.
    """
    if failure is Failure.REFUSED:
        return GiveUp(detail, is_alert=True)
    if failure is Failure.UNUSABLE and unusable >= UNUSABLE_MAX:
        return GiveUp(f"{EXHAUSTED}: {detail}", is_alert=False)
    if attempt >= ATTEMPTS_MAX:
        return GiveUp(f"{EXHAUSTED}: {detail}", is_alert=False)
    if failure in {Failure.UNUSABLE, Failure.TOO_LONG}:
        return Again(0)
    wait_ms = RATE_LIMIT_MS if failure is Failure.RATE_LIMITED else _TIMEOUT_BASE_SECONDS**attempt * 1000
    return Again(min(max(wait_ms, retry_after_ms or 0), RETRY_AFTER_MS_MAX))
