"""Refuses writes while the product catches up: the backlog is measured in the background, and a write only reads the
measurement.

Invariant: no write queries PostgreSQL or Kafka for this. Without a measurement nothing is refused: an unavailable
service is reported separately.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import asyncpg

from highwater.api.core.errors import TooManyRequestsError
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.backlog import outbox_backlog
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.postgres.pool import fetched
from highwater.schemas.errors import UnavailableError
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds
from highwater.streams.overload import RETRY_AFTER_SECONDS, Bounds, Load, Reason, Shed, judge
from highwater.streams.settings import Settings
from highwater.streams.telemetry import WRITES_SHED, get_log

# Between two measurements the API accepts at most what it can process in that time.
LOOK_SECONDS = 2.0
# A measurement older than this no longer counts: without one, writes are accepted.
LOAD_SECONDS_MAX = 30.0
# After this long without a write nothing is measured. The next write is accepted and starts measuring again; before the
# first measurement the API again accepts at most what it can process in that time.
_REST_AFTER_SECONDS = LOAD_SECONDS_MAX
# A measurement must not add to what it measures.
_READ_SECONDS_MAX = 2.0

# The sinks of the topics that callers write, with those topics: their lag counts.
SINKS: Mapping[str, list[str]] = {
    sink: [topic.name for topic in TOPICS.values() if topic.outsider and topic.consumers[:1] == (sink,)]
    for sink in sorted({topic.consumers[0] for topic in TOPICS.values() if topic.outsider})
}

_log = get_log("api")


def bounds_of(settings: Settings) -> Bounds:
    """Return the configured backlog at which writes are refused."""
    return Bounds(settings.shed_outbox_rows, settings.shed_outbox_seconds, settings.shed_lag_events)


class Overload:
    """Judges writes by the last measurement."""

    def __init__(self, bounds: Bounds, pool: Callable[[], asyncpg.Pool[asyncpg.Record]], admin: Admin) -> None:
        self._bounds = bounds
        self._pool = pool
        self._admin = admin
        self._load = Load()
        self._measured_at = float("-inf")
        self._written_at = float("-inf")
        self._write = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._was: Reason | None = None

    def start(self) -> None:
        """Start measuring."""
        self._note_write()
        self._task = asyncio.create_task(self._watch(), name="overload")

    async def close(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def admit(self, topic: str) -> None:
        """Admit a write to a topic.

        Raises:
            TooManyRequestsError: the backlog is too large; says how long to wait.
        """
        self._note_write()
        shed = self._judged(topic)
        if shed is None:
            return
        WRITES_SHED.labels(shed.reason.value).inc()
        raise TooManyRequestsError(
            f"{shed.detail}; nothing in this request was accepted", headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            reason=shed.reason.value,
        )  # fmt: skip

    def _note_write(self) -> None:
        self._written_at = monotonic_seconds()
        self._write.set()

    def _judged(self, topic: str) -> Shed | None:
        if monotonic_seconds() - self._measured_at > LOAD_SECONDS_MAX:
            return None
        return judge(self._load, self._bounds, topic, TOPICS[topic].consumers[0])

    async def _watch(self) -> None:
        while True:
            if monotonic_seconds() - self._written_at > _REST_AFTER_SECONDS:
                self._write.clear()
                await self._write.wait()
            with contextlib.suppress(UnavailableError, asyncpg.PostgresError):  # `/readyz` reports it
                self._load = await self.measure()
                self._measured_at = monotonic_seconds()
                self._say()
            await asyncio.sleep(LOOK_SECONDS)

    async def measure(self) -> Load:
        """Measure the current backlog.

        Raises:
            UnavailableError: PostgreSQL or Kafka does not answer.
        """
        pool = self._pool()
        waiting = await outbox_backlog(pool, rows_max=self._bounds.outbox_rows + 1, seconds_max=_READ_SECONDS_MAX)
        rows = await fetched(pool, QUERIES["positions_of_groups"], list(SINKS), seconds_max=_READ_SECONDS_MAX)
        ends = await self._admin.log_ends((row["topic"], row["partition"]) for row in rows)
        behind: dict[str, int] = {}
        for row in rows:
            left = max(0, ends[row["topic"], row["partition"]] - row["next"])
            behind[row["group"]] = behind.get(row["group"], 0) + left
        return Load(waiting.rows, waiting.age_seconds, behind)

    def _say(self) -> None:
        found = next((shed for sink in SINKS if (shed := self._judged(SINKS[sink][0])) is not None), None)
        reason = None if found is None else found.reason
        if reason is not None and self._was is None and found is not None:
            _log.warning("writes_shed", reason=found.detail, effect="writes are refused with 429")
        elif reason is None and self._was is not None:
            _log.info("writes_accepted_again")
        self._was = reason
