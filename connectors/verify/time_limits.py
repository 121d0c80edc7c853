"""Time limits of a verification's parts: a verification ends even if a part of it hangs.

Invariant: every wait names its subject beforehand, so that a timeout can report it. Loops without await check the time
themselves; awaiting code is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds

# Nine million events at the 5,000 per second that the slowest part, the sinks, stores on two cores; for a longer log
# the caller passes more.
PART_SECONDS_MAX = 1_800.0


class TimeLimit:
    """The time limit of each part.

    Args:
        seconds: for each part.
        now: seconds of a monotonic clock.
        unfinished: the message about a part that timed out.
    """

    def __init__(
        self,
        seconds: float = PART_SECONDS_MAX,
        now: Callable[[], float] = monotonic_seconds,
        *,
        unfinished: str = "were not compared",
    ) -> None:
        self._seconds = seconds
        self._unfinished = unfinished
        self._now = now
        self._until: float | None = None
        self._part = ""
        self._at = ""

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Limit the time of a part.

        Raises:
            UnavailableError: it timed out; the message says where.
        """
        self._part, self._at, self._until = name, "its beginning", self._now() + self._seconds
        try:
            async with asyncio.timeout(self._seconds) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise self._overdue() from None
            raise
        finally:
            self._until = None

    def at(self, what: str) -> None:
        """Note what is awaited from now on.

        Raises:
            UnavailableError: the time has run out.
        """
        self.check()
        self._at = what

    def check(self) -> None:
        """Check the time, in code without await.

        Raises:
            UnavailableError: it has run out.
        """
        if self._until is not None and self._now() > self._until:
            raise self._overdue()

    def _overdue(self) -> UnavailableError:
        return UnavailableError(
            f"{self._part} {self._unfinished} within {self._seconds:g} s (--timeout gives more); waiting for {self._at}"
        )
