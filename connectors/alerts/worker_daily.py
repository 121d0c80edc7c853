"""Sends the digests of feeds once a day: by mail or webhook, each from where the last one ended.

Invariants. Every partition has each tick, and only those of the first one count, so one process sends. What was delivered
is stored at once, with the version that it reached: a restart neither repeats a day nor leaves out what arrived between
two (a kill between delivery and storing repeats one message under the same id). An address that cannot be reached is
tried again at the next tick, and delays the others by the time limit of a message; one that refuses the message gets
the next one at its next time, from the same version on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, TypeAlias

import asyncpg

from highwater.connectors.alerts.channels import Channel, ChannelError, MailChannel, Message, WebhookChannel
from highwater.connectors.alerts.statements import QUERIES
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.schemas.errors import ConfigurationError
from highwater.schemas.streams import TICK, Tick
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.daily_rules import MAIL, DailyRule, DailySent, due_day
from highwater.streams.settings import Settings
from highwater.streams.telemetry import ALERTS, get_log
from highwater.streams.ticks import is_of_the_future

SETTING = "HIGHWATER_DIGESTS"
# A worker that was stopped reads old ticks first; what they would send is sent at the first tick that is newer than this.
_LATE_MS_MAX = 600_000

_log = get_log("alerts")


class Notice(Protocol):
    """What is sent of a user: up to which version (0: the user has none), and for people and for programs."""

    @property
    def version(self) -> int:
        """Return the version that it reaches; the next one begins there."""

    @property
    def is_empty(self) -> bool:
        """Return whether it says that nothing is new."""

    @property
    def subject(self) -> str:
        """Return the subject of a mail."""

    @property
    def text(self) -> str:
        """Return the text of a mail."""

    @property
    def document(self) -> Mapping[str, Any]:
        """Return the same for a program."""


Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
# Reads what is new of a user since a version (None: the version 24 hours before the time), at a time in ms since 1970.
ReadNotice: TypeAlias = Callable[[Pool, str, int | None, int], Awaitable[Notice]]
_Key: TypeAlias = tuple[str, str]


class _Due(NamedTuple):
    """A rule that is due for a day, and the version that its reader knows."""

    rule: DailyRule
    day: int
    since: int | None


class DailyWorker(Handler[Tick, None]):
    """Sends what is due at each tick."""

    group = "digests"
    topics = (TICK,)
    # A day of ticks that were missed is read in a few batches.
    batch_max = 1_000

    def __init__(self, context: ProcessContext, channels: Mapping[DailyRule, Channel], read: ReadNotice) -> None:
        self._context = context
        self._channels = channels
        self._read = read
        # Delivered while PostgreSQL was unavailable: kept here until they can be stored.
        self._unstored: dict[_Key, DailySent] = {}

    async def prepare(self, events: Sequence[Event[Tick]]) -> None:
        """Send what is due at the newest tick, and store what was delivered.

        Raises:
            UnavailableError: PostgreSQL is unavailable; nothing is sent before the earlier deliveries are known.
        """
        now_ms = _newest_ms(events)
        if now_ms is None or now_ms < self._context.clock() - _LATE_MS_MAX or not self._channels:
            return
        await self._store()
        sent = await self._sent()
        for rule in self._channels:
            last = sent.get((rule.user_id, rule.name))
            day = due_day(rule, last, now_ms)
            if day is not None:
                await self._carry_out(_Due(rule, day, None if last is None else last.version), now_ms)

    async def apply(self, _tx: Connection, _events: Sequence[Event[Tick]], _prepared: None) -> Sequence[DeadLetter]:
        """Do nothing: deliveries are stored one by one."""
        return []

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()

    async def _carry_out(self, due: _Due, now_ms: int) -> None:
        """Send one digest and store its version; without clusters, or news that the rule wants, nothing is sent."""
        rule = due.rule
        notice = await self._read(self._context.pool, rule.user_id, due.since, now_ms)
        if notice.version == 0:
            return
        reached = notice.version
        if not notice.is_empty or rule.sends_empty:
            channel = self._channels[rule]
            message = message_of_day(due.rule, due.day, notice)
            try:
                await channel.send(message)
            except ChannelError as error:
                ALERTS.labels(channel.name, "failed" if error.is_final else "attempt_failed").inc()
                _log.warning("digest_not_delivered", channel=rule.name, user_id=rule.user_id, reason=str(error))
                if not error.is_final:
                    return
                # The next one begins where the last delivered one ended, or 24 hours before this one if there is none.
                reached = notice.document["since"]
            else:
                ALERTS.labels(channel.name, "sent").inc()
        self._unstored[rule.user_id, rule.name] = DailySent(due.day, reached)
        await self._store()

    async def _sent(self) -> dict[_Key, DailySent]:
        async with transaction(self._context.pool) as tx:
            rows = await tx.fetch(QUERIES["digests_sent_of"], [rule.user_id for rule in self._channels])
        return {(row["user_id"], row["channel"]): DailySent(row["day"], row["cluster_version"]) for row in rows}

    async def _store(self) -> None:
        for (user_id, name), sent in list(self._unstored.items()):
            values = (user_id, name, sent.day, sent.version, to_datetime(self._context.clock()))
            async with transaction(self._context.pool) as tx:
                await tx.execute(QUERIES["store_digest_sent"], *values)
            del self._unstored[user_id, name]


def _newest_ms(events: Sequence[Event[Tick]]) -> int | None:
    """Return the time of the newest tick of the first partition; None: there is none."""
    times = (
        event.value["now"]
        for event in events
        if event.record.position.partition == 0 and not is_of_the_future(event.value, event.record.arrived_ms)
    )
    return max(times, default=None)


def message_of_day(rule: DailyRule, day: int, notice: Notice) -> Message:
    """Return the message of a rule for a day; its key names the version that it reaches."""
    whose = sha256(f"{rule.user_id}\n{rule.name}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    body = {"event": "digest", "subject": notice.subject, "text": notice.text, **notice.document}
    return Message(f"digest.{whose}.{day}.{notice.version}", f"[highwater] {notice.subject}", notice.text, body)


def open_daily(
    context: ProcessContext, settings: Settings, rules: Sequence[DailyRule], read: ReadNotice
) -> DailyWorker:
    """Open the worker with a channel for each rule.

    Raises:
        ConfigurationError: an address is wrong, or the settings of the mail server are missing.
    """
    return DailyWorker(context, {rule: open_channel(rule, settings, context.clock) for rule in rules}, read)


def open_channel(rule: DailyRule, settings: Settings, clock: Clock) -> Channel:
    """Open the channel of a rule.

    Raises:
        ConfigurationError: the address is wrong, or the settings of the mail server are missing.
    """
    if rule.channel != MAIL:
        return WebhookChannel(rule.to, SETTING)
    server, sender = settings.alert_smtp_url, settings.alert_email_from
    if server is None or sender is None:
        raise ConfigurationError(
            f"{SETTING}: {settings.digests_file}: mail needs HIGHWATER_ALERT_SMTP_URL and HIGHWATER_ALERT_EMAIL_FROM"
        )
    return MailChannel(server, sender, [rule.to], clock, SETTING)
