"""The speed of some work, and so how long the rest will take."""

from __future__ import annotations

from dataclasses import dataclass

# A batch counts half after this many seconds of work: an estimate follows a busier machine or longer texts within
# minutes.
_HALF_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Pieces and the seconds that they took, with decreasing weight of earlier ones."""

    pieces: float = 0.0
    seconds: float = 0.0

    def after(self, pieces: int, seconds: float) -> Pace:
        """Return the pace including these pieces."""
        kept = 0.5 ** (seconds / _HALF_SECONDS)
        return Pace(self.pieces * kept + pieces, self.seconds * kept + seconds)

    def seconds_for(self, pieces: int) -> int | None:
        """Return how long this many will take; None before the first."""
        if not self.pieces:
            return None
        return round(pieces * self.seconds / self.pieces)
