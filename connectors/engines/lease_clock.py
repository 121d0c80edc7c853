"""The clock of leases: the product's time by PostgreSQL's clock, so that all lease holders agree on the time.

Invariant: a process with a wrong clock neither claims work that others hold, nor holds its own for longer than a lease.
"""

from __future__ import annotations

from highwater.connectors.engines.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.streams.clock import Clock, ProductClock
from highwater.streams.telemetry import get_log

# A larger error means a wrong clock; a smaller one is the round trip to the server, and leases last minutes.
ERROR_MS_MAX = 5_000

_log = get_log("lease-clock")


class LeaseClock:
    """A clock that is corrected by the server's while it is wrong. Any clock but the product's (in a test) is left alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._error_ms = 0

    def __call__(self) -> int:
        """Return the current time, in milliseconds since 1970."""
        return self._clock() - self._error_ms

    async def measure(self, connection: Connection) -> None:
        """Compare the clock with the server's."""
        clock = self._clock
        if not isinstance(clock, ProductClock):
            return
        before_ms = clock() - clock.offset_ms
        server_ms = await connection.fetchval(QUERIES["server_time_ms"])
        error_ms = clock_error_ms(before_ms, clock() - clock.offset_ms, server_ms)
        if bool(error_ms) != bool(self._error_ms):
            _log.warning("clock_differs" if error_ms else "clock_agrees", ahead_of_postgresql_ms=error_ms)
        self._error_ms = error_ms


def clock_error_ms(before_ms: int, after_ms: int, server_ms: int) -> int:
    """Return how far a clock is ahead of the server's, at least; below 0: behind; 0 if that is within `ERROR_MS_MAX`.

    Args:
        before_ms: our time before the server was queried, without the offset of the product's clock.
        after_ms: our time after the answer; the process may have been stopped in between.
        server_ms: the answer.
    """
    error_ms = max(before_ms - server_ms, 0) or min(after_ms - server_ms, 0)
    return error_ms if abs(error_ms) > ERROR_MS_MAX else 0
