"""Partitions whose log lost its tail: the API neither writes to them nor confirms positions that they no longer have.

Invariant: nothing is published before this process has compared the positions of all groups with the ends of the log,
after its start and after each time that Kafka was unavailable. What it knows is at most `SECONDS` old, and PostgreSQL is queried
once in that time. While PostgreSQL is unavailable the last answer holds: writes go to the log then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import asyncpg

from highwater.api.core.errors import GoneError
from highwater.api.core.problems import POSITION_LOST
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.truncation import LogTruncatedError, Truncation, all_truncations, look, of_place
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.telemetry import get_log

SECONDS = 1.0
# A server that hangs must not hang the write that asks.
_READ_SECONDS_MAX = 1.0
_FOUND_BY = "api"

_log = get_log("api")


class LostPositionError(GoneError):
    """The record at this position was lost with the tail of the log. Read without the position, or write it again."""

    kind = POSITION_LOST


class LogState:
    """The losses of the log that this process knows."""

    def __init__(self, pool: Callable[[], asyncpg.Pool[asyncpg.Record]], admin: Admin, clock: Clock) -> None:
        self._pool = pool
        self._admin = admin
        self._clock = clock
        self._found: Sequence[Truncation] = ()
        self._read_at = float("-inf")
        self._is_compared = False
        self._is_away = False
        self._given_again: dict[Place, LogRange] = {}  # offsets that the log gave to this process a second time
        self._given: Mapping[Place, int] = {}  # one past the highest offset that it gave to this process then
        self._reading: asyncio.Task[None] | None = None

    def note_given_again(self, place: Place, again: LogRange, given: Mapping[Place, int]) -> None:
        """Store before the next write that a log gave offsets a second time: it lost its tail. And what it lost of other
        partitions that this process wrote to (`given`: one past the highest offset of each).
        """
        self._given = given
        known = self._given_again.get(place, again)
        self._given_again[place] = LogRange(min(known.low, again.low), max(known.high, again.high))
        self.compare_again()

    def compare_again(self) -> None:
        """Compare positions with the log before the next write: Kafka was unavailable."""
        self._is_compared = False
        self._read_at = float("-inf")

    async def losses(self) -> Sequence[Truncation]:
        """Return all losses, the repaired ones included."""
        if monotonic_seconds() - self._read_at >= SECONDS:
            if self._reading is None or self._reading.done():
                self._read_at = monotonic_seconds()
                self._reading = asyncio.create_task(self._read(), name="log-state")
            if not self._is_away:
                await asyncio.wait({self._reading}, timeout=_READ_SECONDS_MAX)
        return self._found

    async def _read(self) -> None:
        try:
            if not self._is_compared:
                self._is_compared = True  # a loss of Kafka meanwhile sets it again
                await self._compare()
            self._found = await all_truncations(self._pool(), seconds_max=_READ_SECONDS_MAX)
            self._is_away = False
        except asyncpg.UndefinedTableError:  # before `highwater init` there is no log to compare with
            self._found = ()
        except (UnavailableError, asyncpg.PostgresError) as error:
            self._is_away = True
            _log.debug("losses of the log are not read", reason=str(error))

    async def _compare(self) -> None:
        noted, self._given_again = self._given_again, {}
        given, self._given = self._given, {}
        try:
            await look(self._admin, self._pool(), _FOUND_BY, self._clock(), given, given_again=noted)
        except (UnavailableError, asyncpg.PostgresError):
            self._is_compared = False
            self._given_again = noted | self._given_again
            self._given = {**given, **self._given}
            raise

    async def refuse_writes(self, topic: str, keys: Iterable[str]) -> None:
        """Refuse a write if one of its keys is in a partition that lost its tail.

        Raises:
            LogTruncatedError: one is; nothing was written.
        """
        lost = {one.partition: one for one in await self.losses() if one.topic == topic and one.is_open}
        if not lost:
            return
        count = TOPICS[topic].partitions
        for key in keys:
            one = lost.get(murmur2_partition(key.encode(), count))
            if one is not None:
                raise LogTruncatedError(one.text)

    async def refuse_reads(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Refuse positions whose records were lost.

        Raises:
            LogTruncatedError: the partition of one waits for its repair.
            LostPositionError: the partition was repaired, and the record of one is not at its position any more.
        """
        for (topic, partition), offset in positions.items():
            one = of_place(await self.losses(), (topic, partition), offset)
            if one is None:
                continue
            if one.is_open:
                raise LogTruncatedError(one.text)
            raise LostPositionError(
                f"{one.fact}; the record of {topic}/{partition}/{offset} is one of them. What was stored of them was published"
                " again at later positions: read without the position, or write it again"
            )
