"""Retry policies: the wait before an attempt, as a pure function of the attempt's number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential waits: `first_ms`, then twice as long each time up to `most_ms`; `attempts_max` None = unlimited."""

    first_ms: int
    most_ms: int
    attempts_max: int | None = None

    def wait_ms(self, attempt: int) -> int | None:
        """Return the wait after failed attempt number `attempt` (from 1); None if no further attempt is due."""
        if self.attempts_max is not None and attempt >= self.attempts_max:
            return None
        # 30 doublings exceed any limit in use; more would only make large integers.
        return int(min(self.most_ms, self.first_ms * 2 ** min(attempt - 1, 30)))


# An unavailable store or broker: tried without end, at most 5 s apart, so that recovery is noticed within that.
UNAVAILABLE = RetryPolicy(first_ms=200, most_ms=5_000)
# A failed rebuild: a limited number of attempts (R0.38), then its failure is reported.
REBUILD = RetryPolicy(first_ms=500, most_ms=5_000, attempts_max=3)
# An LLM or embedding call.
MODEL_CALL = RetryPolicy(first_ms=1_000, most_ms=4_000, attempts_max=3)


def unavailable_seconds(attempt: int) -> float:
    """Return the wait after failed attempt number `attempt` (from 1) for an unavailable service; there is always a next one."""
    wait_ms = UNAVAILABLE.wait_ms(attempt)
    assert wait_ms is not None  # the policy has no last attempt
    return wait_ms / 1000
