"""The counters of a replay.

Invariant: a record counted as written was passed to the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """The progress of a replay. `first_failure` is why the condition had no result for the first of `unanswered`."""

    read: int = 0
    written: int = 0
    undecodable: int = 0
    unanswered: int = 0
    first_failure: str | None = None

    def become_sum_of(self, parts: Iterable[Counts]) -> None:
        """Set the counters to the sums of the parts."""
        parts = list(parts)
        self.read = sum(part.read for part in parts)
        self.written = sum(part.written for part in parts)
        self.undecodable = sum(part.undecodable for part in parts)
        self.unanswered = sum(part.unanswered for part in parts)
        self.first_failure = next((part.first_failure for part in parts if part.first_failure), None)
