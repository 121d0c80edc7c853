"""What waits, measured: how far the consumers of this process are behind, and what the outbox holds.

Invariant: measuring costs the broker one request and PostgreSQL one statement in `LOOK_SECONDS`, however many consumers run,
and holds up none of them. While a part is unavailable the lag goes on growing by the last known ends; the outbox is unknown
(NaN).
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

# Prometheus collects every 15 s by default; a look takes some milliseconds.
LOOK_SECONDS = 5.0
# Where nothing comes, the ends are known: the doorbell wakes a consumer that rests. They are asked for all the same at each sixth
# look, in case it does not: each partition that is asked for costs processor time, here and at the broker.
RESTING_LOOKS = 6
# Rows that are counted at most: some 20 ms. Beyond it the age says more than the number.
ROWS_COUNTED_MAX = 100_000
# A look that takes longer than this shows PostgreSQL to be busy, and must not add to that.
_READ_SECONDS_MAX = 2.0

_log = get_log("backlog")


class Reading(NamedTuple):
    """Where a consumer stands in a partition: the offset it reads next, and the arrival of a record that it is at work on.

    `is_resting`: it does not fetch, since nothing came for a while (`resting.py`).
    """

    following: int
    in_hand_ms: int | None = None
    is_resting: bool = False


class Reader(Protocol):
    """A consumer that says where it stands."""

    group: str

    @property
    def readings(self) -> Mapping[Place, Reading]:
        """By partition held now."""


class OutboxBacklog(NamedTuple):
    """What the outbox holds: rows, counted up to a bound, and the wait of the oldest in seconds."""

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
    """Measures the consumers of a process."""

    def __init__(self, admin: Admin, clock: Callable[[], int] | None = None) -> None:
        self._admin = admin
        # The broker stamps records by its own clock, so the product's, which may be moved, is not asked.
        self._clock = clock or ProductClock()
        self._marks: dict[tuple[str, Place], Marks] = {}
        self._told: set[tuple[str, str]] = set()
        self._ends: dict[Place, int] = {}  # as last known
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
        for labels in self._told - told:  # another process has them now, and reports them
            LAG_EVENTS.remove(*labels)
            LAG_SECONDS.remove(*labels)
        self._told = told

    async def _find_ends(self, standing: Mapping[str, Mapping[Place, Reading]]) -> Mapping[Place, int]:
        """Where the logs end; of those whose reader rests mostly as last known, and no others while the broker is unavailable."""
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
    """Measure until `stop` is set; the outbox only where this process relays it."""
    lags = LagWatch(admin)
    while not stop.is_set():
        try:
            await lags.look(readers())
            if has_outbox:
                await _note_outbox(pool)
        except Exception as error:  # noqa: BLE001 - what is measured must go on without being measured
            _log.error("backlog_not_measured", error=repr(error)[:300])
        await pause(stop, LOOK_SECONDS)


async def _note_outbox(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    try:
        found = await outbox_backlog(pool)
    except UnavailableError:
        found = OutboxBacklog(-1, math.nan)
    OUTBOX_ROWS.set(math.nan if found.rows < 0 else found.rows)
    OUTBOX_AGE_SECONDS.set(found.age_seconds)
