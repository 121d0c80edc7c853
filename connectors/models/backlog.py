"""The backlog of an embedder, and the estimated time to clear it: for `/metrics`, and once a minute for the log.

Invariant: an estimate is based on the pace of the last minutes; there is none before the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from highwater.streams.clock import monotonic_seconds
from highwater.streams.models.pace import Pace
from highwater.streams.telemetry import VECTORS_SECONDS_LEFT, VECTORS_WAITING, get_log

# Counting this many takes some 0.2 s; beyond it the number is a lower bound.
BACKLOG_COUNTED_MAX = 1_000_000
_SHOWN_SECONDS = 10.0
_TOLD_SECONDS = 60.0


class Backlog:
    """The texts that wait for vectors: `of` names them in the metrics, `role` in the log."""

    def __init__(self, of: str, role: str) -> None:
        self._of = of
        self._log = get_log(role)
        self._pace = Pace()
        self._is_behind = False
        self._shown_at = self._told_at = float("-inf")

    @contextmanager
    def making(self, texts: int) -> Iterator[None]:
        """Time a batch; a failed one does not count for the pace."""
        began = monotonic_seconds()
        yield
        self._pace = self._pace.after(texts, monotonic_seconds() - began)

    def seconds_for(self, texts: int) -> int | None:
        """Return how long this many texts will take; None before the first batch."""
        return self._pace.seconds_for(texts)

    def is_due(self) -> bool:
        """Return whether it was not shown recently."""
        return monotonic_seconds() - self._shown_at >= _SHOWN_SECONDS

    def show(self, waiting: int) -> None:
        """Set the gauges, and log the backlog once a minute while something waits."""
        now = self._shown_at = monotonic_seconds()
        seconds_left = self._pace.seconds_for(waiting)
        self._is_behind = waiting > 0
        VECTORS_WAITING.labels(self._of).set(waiting)
        VECTORS_SECONDS_LEFT.labels(self._of).set(seconds_left or 0)
        if waiting and now - self._told_at >= _TOLD_SECONDS:
            self._told_at = now
            self._log.info("vectors_wait", of=self._of, waiting=waiting, seconds_left=seconds_left)

    def clear(self) -> None:
        """Nothing waits."""
        if self._is_behind:
            self.show(0)
