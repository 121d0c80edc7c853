"""Tells somebody of failed runs (R1.35): by every configured channel, once an event and channel.

Laws. The position moves after an alert was delivered or given up, so a worker that is killed leaves nobody untold; what was
delivered is stored at once, so a redelivery tells nobody twice (a kill between the two repeats one message under the same id). A
channel that is down costs the others a bounded wait, and what it was not given is in the dead-letter topic. A storm is summed up.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from highwater.connectors.alerts.channels import Alert, Channel, ChannelError, alert_of
from highwater.connectors.alerts.opening import open_channels
from highwater.connectors.alerts.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.records import DeadLetter, Event, dead_letter_row
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.queries import RUN_FAILED, RunFailed
from highwater.streams.clock import monotonic_seconds, to_datetime
from highwater.streams.retry import RetryPolicy
from highwater.streams.settings import Settings
from highwater.streams.telemetry import ALERTS, EVENTS_DEAD_LETTERED, get_log

NOT_DELIVERED = "alert_not_delivered"
# Waits of 1, 2, 4, 8 and 15 s: a mail server that restarts is back by then, and one that hangs holds the batch 90 s (webhook) or
# 210 s (mail). A channel that gave up has one attempt a message until it delivers again.
DELIVERY = RetryPolicy(first_ms=1_000, most_ms=15_000, attempts_max=6)
# Five at once and one each 12 s: at most 10 messages in any minute, which a person can still read.
BURST, REFILL_SECONDS = 5, 12.0
# A redelivery from the beginning of what the topic keeps; the table stays as small as alerts of a quarter are.
_KEPT_MS = 90 * 86_400_000

_log = get_log("alerts")


class Pace:
    """How many messages may be sent now: `burst` at once, and one more each `refill_seconds`."""

    def __init__(
        self,
        burst: int = BURST,
        refill_seconds: float = REFILL_SECONDS,
        seconds: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._burst = burst
        self._refill_seconds = refill_seconds
        self._seconds = seconds
        self._left = float(burst)
        self._at = seconds()

    def left(self) -> int:
        """How many messages may be sent now."""
        now = self._seconds()
        self._left = min(self._burst, self._left + (now - self._at) / self._refill_seconds)
        self._at = now
        return int(self._left)

    def take(self, count: int) -> None:
        """So many are sent."""
        self._left -= count

    async def some(self) -> int:
        """The same as `left`, once it is one at least."""
        if self.left() < 1:
            await asyncio.sleep((1 - self._left) * self._refill_seconds)
        return max(1, self.left())


def plan_messages(alerts: Sequence[Alert], count_max: int) -> list[Sequence[Alert]]:
    """The alerts in at most `count_max` messages: one each, and all that are too many in the last."""
    if len(alerts) <= count_max:
        return [[alert] for alert in alerts]
    alone = count_max - 1
    return [*([alert] for alert in alerts[:alone]), alerts[alone:]]


class AlertsWorker(Handler[RunFailed, Mapping[str, list[str]]]):
    """Tells of `queries.run-failed` where somebody is to be told."""

    group = "alerts"
    topics = (RUN_FAILED,)
    # What one summing-up lists at most.
    batch_max = 200

    def __init__(
        self,
        around: Surroundings,
        channels: Sequence[Channel],
        *,
        policy: RetryPolicy = DELIVERY,
        pace: Callable[[], Pace] = Pace,
    ) -> None:
        self._around = around
        self._channels = channels
        self._policy = policy
        self._paces = {channel.name: pace() for channel in channels}
        self._down: set[str] = set()
        # Delivered while PostgreSQL was away: known here until it can be stored.
        self._unstored: dict[str, set[str]] = defaultdict(set)

    async def prepare(self, events: Sequence[Event[RunFailed]]) -> Mapping[str, list[str]]:
        """Tell what is untold; what could not be told, by position with its reasons.

        Raises:
            UnavailableError: PostgreSQL is away; nothing is told before it is known who was told.
        """
        alerts = [alert_of(event) for event in events if event.value["is_alert"]]
        if not alerts:
            return {}
        for channel in self._channels:
            await self._store(channel.name)
        told = await self._told(alerts)
        untold = [
            (channel, [alert for alert in alerts if (alert.position, channel.name) not in told])
            for channel in self._channels
        ]
        # All are heard to the end, also when one fails: a message that is cut off may have been delivered.
        found = await asyncio.gather(
            *(self._tell(channel, missing) for channel, missing in untold if missing), return_exceptions=True
        )
        failed: dict[str, list[str]] = defaultdict(list)
        for reasons in found:
            if isinstance(reasons, BaseException):
                raise reasons
            for position, reason in reasons.items():
                failed[position].append(reason)
        return failed

    async def apply(
        self, tx: Connection, events: Sequence[Event[RunFailed]], prepared: Mapping[str, list[str]]
    ) -> Sequence[DeadLetter]:
        """Dead-letter what was not told.

        Not by way of the consumer, whose breaker stops it when most events are bad: here the channel is, and the next alert
        may be delivered.
        """
        now_ms = self._around.clock()
        letters = [
            DeadLetter(event.record, NOT_DELIVERED, "; ".join(prepared[position]))
            for event in events
            if (position := str(event.record.position)) in prepared
        ]
        await outbox.add(tx, [dead_letter_row(letter, group=self.group, now_ms=now_ms) for letter in letters])
        EVENTS_DEAD_LETTERED.labels(self.group, RUN_FAILED, NOT_DELIVERED).inc(len(letters))
        await tx.execute(QUERIES["trim_alerts_sent"], to_datetime(now_ms - _KEPT_MS))
        return []

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close()

    async def _told(self, alerts: Sequence[Alert]) -> set[tuple[str, str]]:
        async with transaction(self._around.pool) as tx:
            rows = await tx.fetch(QUERIES["alerts_sent_of"], [alert.position for alert in alerts])
        return {(row["position"], row["channel"]) for row in rows}

    async def _tell(self, channel: Channel, alerts: Sequence[Alert]) -> dict[str, str]:
        """Tell of alerts in as few messages as the pace allows; the reason of each that was not told."""
        pace = self._paces[channel.name]
        messages = plan_messages(alerts, await pace.some() if channel.is_paced else len(alerts))
        failed: dict[str, str] = {}
        for message in messages:
            pace.take(1)
            reason = await self._deliver(channel, message)
            if reason is not None:
                failed.update({alert.position: f"{channel.name}: {reason}" for alert in message})
        return failed

    async def _deliver(self, channel: Channel, message: Sequence[Alert]) -> str | None:
        """One message, as often as it takes or the policy allows; why it was given up, or None."""
        attempt = 0
        while True:
            attempt += 1
            try:
                await channel.send(message)
            except ChannelError as error:
                ALERTS.labels(channel.name, "attempt_failed").inc()
                wait_ms = None if channel.name in self._down or error.is_final else self._policy.wait_ms(attempt)
                if wait_ms is not None:
                    _log.warning("alert_delayed", channel=channel.name, attempt=attempt, reason=str(error))
                    await asyncio.sleep(wait_ms / 1000)
                    continue
                self._given_up(channel, message, error)
                return str(error)
            self._down.discard(channel.name)
            self._unstored[channel.name].update(alert.position for alert in message)
            ALERTS.labels(channel.name, "sent" if len(message) == 1 else "summed_up").inc(len(message))
            await self._store(channel.name)
            return None

    def _given_up(self, channel: Channel, message: Sequence[Alert], error: ChannelError) -> None:
        if not error.is_final:
            self._down.add(channel.name)
        ALERTS.labels(channel.name, "failed").inc(len(message))
        positions = [alert.position for alert in message]
        _log.error(NOT_DELIVERED, channel=channel.name, positions=positions, reason=str(error))

    async def _store(self, channel: str) -> None:
        positions = sorted(self._unstored[channel])
        if not positions:
            return
        async with transaction(self._around.pool) as tx:
            await tx.execute(QUERIES["store_alerts_sent"], positions, channel, to_datetime(self._around.clock()))
        self._unstored[channel].clear()


def open_alerts(around: Surroundings, settings: Settings) -> AlertsWorker:
    """The worker with the configured channels.

    Raises:
        ConfigurationError: a channel's settings are wrong or incomplete.
    """
    return AlertsWorker(around, open_channels(settings, around.clock))
