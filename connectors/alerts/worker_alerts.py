"""Sends alerts of failed runs (R1.35): by every configured channel, once per event and channel.

Invariants. The position moves after an alert was delivered or given up, so a killed worker loses no alert; a delivery
is stored at once, so a redelivery sends nothing twice (a kill between the two repeats one message under the same id). A
failing channel delays the others by a limited time, and its undelivered alerts are in the dead-letter topic. A storm is
summarized.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from highwater.connectors.alerts.channels import Alert, Channel, ChannelError, alert_of, message_of
from highwater.connectors.alerts.opening import open_channels
from highwater.connectors.alerts.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event, dead_letter_row
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.queries import RUN_FAILED, RunFailed
from highwater.streams.clock import monotonic_seconds, to_datetime
from highwater.streams.retry import RetryPolicy
from highwater.streams.settings import Settings
from highwater.streams.telemetry import ALERTS, EVENTS_DEAD_LETTERED, get_log

NOT_DELIVERED = "alert_not_delivered"
# Waits of 1, 2, 4, 8 and 15 s: a mail server that restarts is available by then, and one that hangs delays the batch by
# 90 s (webhook) or 210 s (mail). A channel that gave up has one attempt per message until it delivers again.
DELIVERY = RetryPolicy(first_ms=1_000, most_ms=15_000, attempts_max=6)
# Five at once and one every 12 s: at most 10 messages per minute, which a person can still read.
BURST, REFILL_SECONDS = 5, 12.0
# A redelivery starts at most at the beginning of the topic's retention; the table stays as small as the alerts of a
# quarter.
_KEPT_MS = 90 * 86_400_000

_log = get_log("alerts")


class Pace:
    """Limits the rate of messages: `burst` at once, and one more each `refill_seconds`."""

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
        """Return how many messages may be sent now."""
        now = self._seconds()
        self._left = min(self._burst, self._left + (now - self._at) / self._refill_seconds)
        self._at = now
        return int(self._left)

    def take(self, count: int) -> None:
        """Count sent messages."""
        self._left -= count

    async def some(self) -> int:
        """Wait until at least one message may be sent; return how many."""
        if self.left() < 1:
            await asyncio.sleep((1 - self._left) * self._refill_seconds)
        return max(1, self.left())


def plan_messages(alerts: Sequence[Alert], count_max: int) -> list[Sequence[Alert]]:
    """Distribute the alerts over at most `count_max` messages: one each, and all excess ones in the last."""
    if len(alerts) <= count_max:
        return [[alert] for alert in alerts]
    alone = count_max - 1
    return [*([alert] for alert in alerts[:alone]), alerts[alone:]]


class AlertsWorker(Handler[RunFailed, Mapping[str, list[str]]]):
    """Sends an alert for each `queries.run-failed`."""

    group = "alerts"
    topics = (RUN_FAILED,)
    # Alerts listed in one summary.
    batch_max = 200

    def __init__(
        self,
        context: ProcessContext,
        channels: Sequence[Channel],
        *,
        policy: RetryPolicy = DELIVERY,
        pace: Callable[[], Pace] = Pace,
    ) -> None:
        self._context = context
        self._channels = channels
        self._policy = policy
        self._paces = {channel.name: pace() for channel in channels}
        self._down: set[str] = set()
        # Delivered while PostgreSQL was unavailable: kept here until they can be stored.
        self._unstored: dict[str, set[str]] = defaultdict(set)

    async def prepare(self, events: Sequence[Event[RunFailed]]) -> Mapping[str, list[str]]:
        """Send the alerts that were not sent; return the undelivered ones by position with the reasons.

        Raises:
            UnavailableError: PostgreSQL is unavailable; nothing is sent before the earlier deliveries are known.
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
        # Wait for all of them, also if one fails: an interrupted message may have been delivered.
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
        """Dead-letter the undelivered alerts.

        Not by the consumer, whose breaker stops it when most events are bad: here the channel is bad, and the next
        alert may be delivered.
        """
        now_ms = self._context.clock()
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
        async with transaction(self._context.pool) as tx:
            rows = await tx.fetch(QUERIES["alerts_sent_of"], [alert.position for alert in alerts])
        return {(row["position"], row["channel"]) for row in rows}

    async def _tell(self, channel: Channel, alerts: Sequence[Alert]) -> dict[str, str]:
        """Send alerts in as few messages as the pace allows; return the reason of each undelivered one."""
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
        """Send one message, with retries by the policy; return why it was given up, or None."""
        attempt = 0
        while True:
            attempt += 1
            try:
                await channel.send(message_of(message))
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
        async with transaction(self._context.pool) as tx:
            await tx.execute(QUERIES["store_alerts_sent"], positions, channel, to_datetime(self._context.clock()))
        self._unstored[channel].clear()


def open_alerts(context: ProcessContext, settings: Settings) -> AlertsWorker:
    """Open the worker with the configured channels.

    Raises:
        ConfigurationError: a channel's settings are wrong or incomplete.
    """
    return AlertsWorker(context, open_channels(settings, context.clock))
