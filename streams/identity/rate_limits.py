"""How many requests of an API key or a user a minute has room for (R2.27 to R2.31).

Laws. A minute is one of the clock, in UTC, and not the last sixty seconds: whoever counts by the same minute needs one number and
no lock. Every request counts, a refused one too; the count alone decides, so all processes decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater.streams.clock import to_datetime

WINDOW_SECONDS = 60
# The number of a minute is read for a minute; the second one covers clocks of processes that differ (R2.27).
COUNTER_SECONDS = 120
_WINDOW_MS = WINDOW_SECONDS * 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request is allowed, how many more are in this minute, and in how many seconds (1 to 60) the next begins."""

    is_allowed: bool
    remaining: int
    reset_seconds: int


def minute_of(now_ms: int) -> str:
    """The minute of a time, `YYYYmmddHHMM` in UTC (R2.27)."""
    return to_datetime(now_ms).strftime("%Y%m%d%H%M")


def decide(count: int, limit: int, now_ms: int) -> Verdict:
    """Judge the request that was counted as number `count` (from 1) of its minute (R2.27, R2.29).

    Args:
        count: requests of the minute, this one among them.
        limit: how many of a minute are allowed.
        now_ms: the time by which it was counted.
    """
    left_ms = _WINDOW_MS - now_ms % _WINDOW_MS
    # Rounded up: who comes a part of a second too early is refused again.
    return Verdict(count <= limit, max(0, limit - count), -(-left_ms // 1000))
