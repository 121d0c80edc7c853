"""How often an operation may be called: the kinds of limits, and whether one more call is within one (R2.27 to R2.31,
R4.36).

Invariants. Each operation names one of these kinds and the cost of a call (`api/core/access.py`). A minute is one of
the clock, in UTC, and not the last sixty seconds: processes that count by the same minute need one number and no lock.
Every call of a minute counts, a refused one too. The window of an address slides: no span of `window_ms`, wherever it
begins, admits more than `calls_max`, and refused calls do not count, so that an address that waits as instructed is
admitted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from highwater.streams.clock import to_datetime

WINDOW_SECONDS = 60
# The number of a minute is read for a minute; the second one covers differing clocks of processes (R2.27).
COUNTER_SECONDS = 120
_WINDOW_MS = WINDOW_SECONDS * 1000
LIVE_WINDOW_MS = 10_000


class RateLimit(StrEnum):
    """The limit on the calls of an operation."""

    NONE = "none"
    CALLER = "caller"
    PLAN = "plan"
    ADDRESS = "address"

    @property
    def meaning(self) -> str:
        """Return the limit in words, for the docs."""
        return _MEANINGS[self]


_MEANINGS = {
    RateLimit.NONE: "not limited: a page that is made already, or a word about this process",
    RateLimit.CALLER: "`HIGHWATER_CALLER_REQUESTS_PER_MINUTE` of a user, or of a key that is bound to an organization alone",
    RateLimit.PLAN: "requests a minute of the API key and of the user, by the plan",
    RateLimit.ADDRESS: f"`HIGHWATER_LIVE_REQUESTS_MAX` calls of an IP address in {LIVE_WINDOW_MS // 1000} s",
}


# -- by the minute ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request is allowed, how many more are in this minute, and in how many seconds (1 to 60) the next begins."""

    is_allowed: bool
    remaining: int
    reset_seconds: int


def minute_of(now_ms: int) -> str:
    """Return the minute of a time, `YYYYmmddHHMM` in UTC (R2.27)."""
    return to_datetime(now_ms).strftime("%Y%m%d%H%M")


def decide(count: int, limit: int, now_ms: int) -> Verdict:
    """Judge the request that was counted as number `count` (from 1) of its minute (R2.27, R2.29).

    Args:
        count: requests of the minute, including this one; the last number of one with a higher cost.
        limit: the calls allowed per minute.
        now_ms: the time by which it was counted.
    """
    left_ms = _WINDOW_MS - now_ms % _WINDOW_MS
    # Rounded up: a client that retries a fraction of a second too early is refused again.
    return Verdict(count <= limit, max(0, limit - count), -(-left_ms // 1000))


# -- in a sliding window
# ----------------------------------------------------------------------------------------------------


class Admission(NamedTuple):
    """The verdict, when a refused call may be repeated (0 = now), and the times that count from now on, oldest first."""

    is_admitted: bool
    retry_after_ms: int
    times: tuple[int, ...]

    @property
    def retry_after_seconds(self) -> int:
        """Return the same in whole seconds, for `Retry-After`: rounded up, or a client would come too early."""
        return -(-self.retry_after_ms // 1000)


def admit(times_ms: Sequence[int], now_ms: int, calls_max: int, window_ms: int = LIVE_WINDOW_MS) -> Admission:
    """Decide whether one more request is admitted at `now_ms`.

    Args:
        times_ms: when earlier ones were admitted, in any order. Those after now (a clock was moved back) count as now:
            they limit further calls and are forgotten a window from now, not at a time that may be years away.
        now_ms: the current time.
        calls_max: admitted per window, at least 1.
        window_ms: length of the window.

    Raises:
        ValueError: `calls_max` is below 1.
    """
    if calls_max < 1:
        raise ValueError(f"calls_max is {calls_max}; it must be at least 1")
    known = sorted(min(at_ms, now_ms) for at_ms in times_ms)
    # At most the limit is stored, so the memory of an address is bounded, also after the limit was lowered.
    counted = tuple(at_ms for at_ms in known if at_ms > now_ms - window_ms)[-calls_max:]
    if len(counted) < calls_max:
        return Admission(is_admitted=True, retry_after_ms=0, times=(*counted, now_ms))
    return Admission(is_admitted=False, retry_after_ms=counted[0] + window_ms - now_ms, times=counted)


class RecentCalls:
    """Sliding windows of many callers, in the memory of one process; the least recent caller is forgotten."""

    def __init__(self, calls_max: int, window_ms: int, callers_max: int) -> None:
        self._calls_max = calls_max
        self._window_ms = window_ms
        self._callers_max = callers_max
        self._times: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def judge(self, caller: str, now_ms: int) -> Admission:
        """Return whether one more call would be admitted; it is not counted."""
        return admit(self._times.get(caller, ()), now_ms, self._calls_max, self._window_ms)

    def count(self, caller: str, now_ms: int) -> Admission:
        """Return whether a call is admitted; if so, it is counted."""
        admission = self.judge(caller, now_ms)
        self._times[caller] = admission.times
        self._times.move_to_end(caller)
        if len(self._times) > self._callers_max:
            self._times.popitem(last=False)
        return admission
