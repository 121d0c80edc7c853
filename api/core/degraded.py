"""What works only in part, according to PostgreSQL: partitions that consumers stopped because of bad events, a restore
in progress.

Invariant: the answer is at most `SECONDS` old, and PostgreSQL is queried once in that time, however many probes ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg

from highwater.api.core.log_state import LogState
from highwater.connectors.kafka.stopped import Stopped, all_stopped
from highwater.connectors.postgres.pool import fetched
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

# Probes come every few seconds; anyone may send them, since they carry no key.
SECONDS = 1.0
# A server that hangs must not hang the probe that reports it.
_READ_SECONDS_MAX = 1.0

_log = get_log("api")


class Degraded:
    """Reads the stopped partitions of all consumers, and whether a restore is in progress."""

    def __init__(self, pool: Callable[[], asyncpg.Pool[asyncpg.Record]], log_state: LogState) -> None:
        self._pool = pool
        self._log_state = log_state
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._found: list[Stopped] = []
        self._restored_from: str | None = None

    async def stopped(self) -> list[Stopped]:
        """Return the stopped partitions; the last known ones while PostgreSQL is unavailable, which readiness reports
        separately.
        """
        now = monotonic_seconds()
        if self._read_at is not None and now - self._read_at < SECONDS:
            return self._found
        self._read_at = now
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="stopped-partitions")
        await asyncio.wait(
            {self._reading}, timeout=_READ_SECONDS_MAX
        )  # do not wait for a pool without a free connection
        return self._found

    async def _read(self) -> None:
        try:
            self._found = await all_stopped(self._pool(), seconds_max=_READ_SECONDS_MAX)
            rows = await fetched(self._pool(), QUERIES["restore_in_progress"], seconds_max=_READ_SECONDS_MAX)
            self._restored_from = rows[0]["source"] if rows else None
        except asyncpg.UndefinedTableError:  # before `highwater init` no consumer has run and nothing was restored
            self._found, self._restored_from = [], None
        except (UnavailableError, asyncpg.PostgresError) as error:
            _log.debug("stopped partitions are not read", reason=str(error))

    async def by_name(self) -> dict[str, str]:
        """Return, for each consumer with stopped partitions, what happened and the commands that resume them; also
        `restore` while one runs, and `log` if a partition lost its tail.
        """
        found: dict[str, str] = {}
        for stop in await self.stopped():
            found[stop.group] = f"{found[stop.group]}; {stop.text}" if stop.group in found else stop.text
        losses = [one.text for one in await self._log_state.losses() if one.is_open]
        if losses:
            found["log"] = "; ".join(losses)
        if self._restored_from is not None:
            found["restore"] = (
                f"a restore from {self._restored_from} is in progress or was interrupted: answers may be older than the log;"
                " wait until it ends, or run it again with --force"
            )
        return found
