"""Measures the backlog: the lag of this process's consumers, and the rows in the outbox.

Invariant: a measurement costs the broker one request and PostgreSQL one statement per `LOOK_SECONDS`, however many
consumers run, and delays none of them. While a service is unavailable the lag continues to grow by the last known ends;
the outbox is unknown (NaN).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.patience import pause
from highwater.connectors.postgres.pool import fetched
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import ProductClock
from highwater.streams.lag import Lag, Mark, Marks, by_topic
from highwater.streams.telemetry import LAG_EVENTS, LAG_SECONDS, OUTBOX_AGE_SECONDS, OUTBOX_ROWS, get_log

# Prometheus scrapes every 15 s by default; a measurement takes some milliseconds.
LOOK_SECONDS = 5.0
# For a resting consumer the ends are known: the doorbell wakes it. Every sixth measurement still queries them, in case
# it does not; not more often, since each queried partition costs processor time, here and at the broker.
RESTING_LOOKS = 6
# Limit of counted rows: some 20 ms. Beyond it the age matters more than the number.
ROWS_COUNTED_MAX = 100_000
# A measurement that takes longer shows that PostgreSQL is busy, and must not add to its load.
_READ_SECONDS_MAX = 2.0

_log = get_log("backlog")


class Reading(NamedTuple):
    """The place of a consumer in a partition: the next offset it reads, and the arrival of a record that it is
    processing.

    `is_resting`: it does not fetch, since nothing came for a while (`resting.py`).
    """

    following: int
    in_hand_ms: int | None = None
    is_resting: bool = False


class Reader(Protocol):
    """A consumer that reports its place."""

    group: str

    @property
    def readings(self) -> Mapping[Place, Reading]:
        """Return the places by partition held now."""


class OutboxBacklog(NamedTuple):
    """The outbox's rows, counted up to a limit, and the age of the oldest in seconds."""

    rows: int
    age_seconds: float


async def outbox_backlog(
    pool: asyncpg.Pool[asyncpg.Record], *, rows_max: int = ROWS_COUNTED_MAX, seconds_max: float = _READ_SECONDS_MAX
) -> OutboxBacklog:
    """Return the backlog of the outbox.

    Raises:
        UnavailableError: PostgreSQL is unavailable, or does not answer in time.
    """
    (row,) = await fetched(pool, QUERIES["outbox_backlog"], rows_max, seconds_max=seconds_max)
    return OutboxBacklog(row["rows"], max(0.0, float(row["age_seconds"] or 0.0)))


class LagWatch:
    """Measures the lag of a process's consumers."""

    def __init__(self, admin: Admin, clock: Callable[[], int] | None = None) -> None:
        self._admin = admin
        # The broker stamps records by its own clock, so the product's clock, which may be moved, is not used.
        self._clock = clock or ProductClock()
        self._marks: dict[tuple[str, Place], Marks] = {}
        self._told: set[tuple[str, str]] = set()
        self._ends: dict[Place, int] = {}  # last known ends
        self._looks = 0

    async def look(self, readers: Sequence[Reader]) -> None:
        """Measure once."""
        standing = {reader.group: dict(reader.readings) for reader in readers}
        ends = await self._find_ends(standing)
        now_ms = self._clock()
        self._marks = {
            (group, place): self._marks.get((group, place), Marks())
            for group, readings in standing.items()
            for place in readings
        }
        told: set[tuple[str, str]] = set()
        for group, readings in standing.items():
            for topic, lag in by_topic(self._lags(group, readings, ends, now_ms)).items():
                LAG_EVENTS.labels(group, topic).set(lag.events)
                LAG_SECONDS.labels(group, topic).set(lag.seconds)
                told.add((group, topic))
        for labels in self._told - told:  # another process holds them now, and reports them
            LAG_EVENTS.remove(*labels)
            LAG_SECONDS.remove(*labels)
        self._told = told

    async def _find_ends(self, standing: Mapping[str, Mapping[Place, Reading]]) -> Mapping[Place, int]:
        """Return the ends of the logs; for resting readers usually the last known ones, and for all while the broker is
        unavailable.
        """
        is_all = self._looks % RESTING_LOOKS == 0
        self._looks += 1
        following, awake = dict[Place, int](), set[Place]()
        for readings in standing.values():
            for place, reading in readings.items():
                following[place] = max(reading.following, following.get(place, 0))
                if is_all or not reading.is_resting or place not in self._ends:
                    awake.add(place)
        ends = {place: max(self._ends[place], next_) for place, next_ in following.items() if place not in awake}
        with contextlib.suppress(UnavailableError):  # each consumer reports that itself
            ends |= await self._admin.log_ends(sorted(awake)) if awake else {}
        self._ends = {place: ends.get(place, self._ends.get(place, 0)) for place in following}
        return ends

    def _lags(
        self, group: str, readings: Mapping[Place, Reading], ends: Mapping[Place, int], now_ms: int
    ) -> dict[Place, Lag]:
        found = {}
        for place, reading in readings.items():
            marks = self._marks[group, place]
            if place in ends:
                marks.note(Mark(now_ms, ends[place]), reading.following)
            found[place] = marks.lag(reading.following, now_ms, reading.in_hand_ms)
        return found


async def watch_backlog(
    admin: Admin,
    pool: asyncpg.Pool[asyncpg.Record],
    readers: Callable[[], Sequence[Reader]],
    stop: asyncio.Event,
    *,
    has_outbox: bool,
) -> None:
    """Measure until `stop` is set; the outbox only if this process relays it."""
    lags = LagWatch(admin)
    while not stop.is_set():
        try:
            await lags.look(readers())
            if has_outbox:
                await _note_outbox(pool)
        except Exception as error:  # noqa: BLE001 - the consumers must continue even if they are not measured
            _log.error("backlog_not_measured", error=repr(error)[:300])
        await pause(stop, LOOK_SECONDS)


async def _note_outbox(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    try:
        found = await outbox_backlog(pool)
    except UnavailableError:
        found = OutboxBacklog(-1, math.nan)
    OUTBOX_ROWS.set(math.nan if found.rows < 0 else found.rows)
    OUTBOX_AGE_SECONDS.set(found.age_seconds)
