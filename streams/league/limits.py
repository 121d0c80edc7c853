"""How many requests an address may make to live pages (R4.36).

The law: in no span of `window_ms`, wherever it begins, are more than `requests_max` requests admitted. What is refused does not
count, so that an address that waits as it is told gets in. `[t, t + window_ms)` is a span: a request is forgotten exactly
`window_ms` after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LIVE_WINDOW_MS = 10_000


class Admission(NamedTuple):
    """The verdict, when a refused one may come again (0 = now), and the times that count from now on, oldest first."""

    is_admitted: bool
    retry_after_ms: int
    times: tuple[int, ...]

    @property
    def retry_after_seconds(self) -> int:
        """The same in whole seconds, as `Retry-After` says it: rounded up, or a client would come too early."""
        return -(-self.retry_after_ms // 1000)


def admit(times_ms: Sequence[int], now_ms: int, requests_max: int, window_ms: int = LIVE_WINDOW_MS) -> Admission:
    """Whether one more request is admitted at `now_ms`.

    Args:
        times_ms: when earlier ones were admitted, in any order. Those after now (a clock was moved back) count as made now:
            they bound what is admitted and are forgotten a window from now, not at a time that may be years away.
        now_ms: now.
        requests_max: admitted in a window, at least 1.
        window_ms: length of the window.

    Raises:
        ValueError: `requests_max` is below 1.
    """
    if requests_max < 1:
        raise ValueError(f"requests_max is {requests_max}; it must be at least 1")
    known = sorted(min(at_ms, now_ms) for at_ms in times_ms)
    # Never more than the limit is kept, so what is stored of an address is bounded, also after the limit was lowered.
    counted = tuple(at_ms for at_ms in known if at_ms > now_ms - window_ms)[-requests_max:]
    if len(counted) < requests_max:
        return Admission(is_admitted=True, retry_after_ms=0, times=(*counted, now_ms))
    return Admission(is_admitted=False, retry_after_ms=counted[0] + window_ms - now_ms, times=counted)
