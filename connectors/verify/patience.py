"""How long a part of a verification may take, and what it is at: a verification ends, whatever stops inside it.

Invariant: whatever waits says before what it waits for, so that the end of patience names it. Loops that never give way look at
the time themselves; what awaits is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds

# Nine million events at the 5,000 a second that the slowest part, the sinks, stores on two cores; a log that is longer is given
# more by whoever starts it.
PART_SECONDS_MAX = 1_800.0


class Patience:
    """The time that each part has.

    Args:
        seconds: of each part.
        now: seconds of a clock that only goes forward.
        unfinished: what is said of a part whose time ran out.
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
        """Within it the part's time runs.

        Raises:
            UnavailableError: it ran out; the message says at what.
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
        """Say what is waited for from now on.

        Raises:
            UnavailableError: the time has run out.
        """
        self.check()
        self._at = what

    def check(self) -> None:
        """Look at the time, where nothing gives way.

        Raises:
            UnavailableError: it has run out.
        """
        if self._until is not None and self._now() > self._until:
            raise self._overdue()

    def _overdue(self) -> UnavailableError:
        return UnavailableError(
            f"{self._part} {self._unfinished} within {self._seconds:g} s (--timeout gives more); waiting for {self._at}"
        )
