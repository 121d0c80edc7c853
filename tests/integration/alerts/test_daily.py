"""Daily digests, by a real mail server and a real webhook, over ticks: each begins where the last one ended."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from highwater.connectors.alerts.channels import Channel, MailChannel, WebhookChannel
from highwater.connectors.alerts.erasure import ERASURE
from highwater.connectors.alerts.worker_daily import DailyWorker
from highwater.connectors.feeds.digests import read_notice
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.pool import open_pool, transaction
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_datetime
from highwater.streams.daily_rules import MAIL, WEBHOOK, DailyRule
from tests.integration.alerts.test_alerts import FROM, Hook, Mails, hook, mail_server
from tests.integration.api_server import Seeds, cluster
from tests.integration.connecting import event, fresh, in_transaction

__all__ = ["hook"]
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
# A day at 08:00: half an hour after the digests of these tests are due.
MORNING_MS = 20_000 * DAY_MS + 8 * HOUR_MS


@dataclass
class Reader:
    """A user, whose feed grows, and the digests that are sent of it."""

    context: ProcessContext
    seeds: Seeds
    user: str = field(default_factory=lambda: fresh("reader"))
    now_ms: int = MORNING_MS
    ids: list[str] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)

    async def reads(self, *texts: str) -> None:
        """A version with one more insight for each text."""
        self.ids = await self.seeds.channel(self.user, len(self.ids) + len(texts))
        version = max(self.arrived, default=0) + 1
        for insight_id, text in zip(self.ids[len(self.arrived) :], texts, strict=True):
            await self.seeds.change("insights", "insight_id", insight_id, text=text)
            self.arrived.append(version)
        at = to_datetime(self.now_ms - HOUR_MS)
        await self.seeds.rebuild(self.user, [cluster("a", self.ids, since=self.arrived, changed=version)], at)

    def rule(self, to: str, *, channel: str = WEBHOOK, sends_empty: bool = True) -> DailyRule:
        """A digest of this user at half past seven."""
        return DailyRule(self.user, 450, channel, to, sends_empty=sends_empty)

    async def tick(self, channels: dict[DailyRule, Channel], *, partition: int = 0, age_ms: int = 0) -> None:
        """A tick, in a process of its own."""
        worker = DailyWorker(replace(self.context, clock=lambda: self.now_ms), channels, read_notice)
        value = {"number": 1, "now": self.now_ms - age_ms, "clock_offset_ms": 0}
        ticked = event("streams.tick", value, offset=1, partition=partition, arrived_ms=self.now_ms)
        await in_transaction(self.context, worker, [ticked])

    async def sent(self) -> list[tuple[int, int]]:
        """Day and version of what was delivered."""
        rows = await self.context.pool.fetch("SELECT * FROM digests_sent WHERE user_id = $1", self.user)
        return [(row["day"], row["cluster_version"]) for row in rows]


@pytest.fixture
async def reader(context: ProcessContext, seeds: Seeds) -> AsyncIterator[Reader]:
    """A user in the database of the module."""
    async with await open_pool(seeds.url, size_max=3) as pool:
        yield Reader(replace(context, pool=pool), seeds)


@contextlib.asynccontextmanager
async def posting(reader: Reader, hook: Hook, **more: Any) -> AsyncIterator[dict[DailyRule, Channel]]:
    """The channel of one rule."""
    channel = WebhookChannel(hook.url)
    yield {reader.rule(hook.url, **more): channel}
    await channel.close()


async def test_a_digest_is_sent_once_a_day_from_where_the_last_one_ended(reader: Reader, hook: Hook) -> None:
    """Also by another process each time: no day is repeated, and nothing that arrived between two is left out."""
    async with posting(reader, hook) as channels:
        await reader.reads("add quotas")
        for _ in range(2):
            await reader.tick(channels)
        await reader.reads("drop the lock file")
        await reader.tick(channels)
        reader.now_ms += DAY_MS
        await reader.reads("bound the cache")
        await reader.tick(channels)
    told = [[one["text"] for one in body["sections"][0]["examples"]] for _, body in hook.taken]
    assert told == [["add quotas"], ["drop the lock file", "bound the cache"]]
    (headers, first), (_, second) = hook.taken
    assert (first["event"], first["subject"]) == ("digest", "What is new: about a")
    assert (first["cluster_version"], second["since"], second["cluster_version"]) == (1, 1, 3)
    assert second["position"] == "feeds.rebuild-requested/0/3"
    assert "version 3 (feeds.rebuild-requested/0/3). The next digest begins there." in second["text"]
    assert headers["idempotency-key"].endswith(".20000.1")
    assert await reader.sent() == [(20_001, 3)]


async def test_a_digest_is_a_mail_with_its_position(reader: Reader) -> None:
    """Its subject names the clusters with news, and its text is that of the command."""
    mails = Mails()
    await reader.reads("add quotas", "Bump attrs from 1 to 2")
    with mail_server(mails) as port:
        to = "ada@example.org"
        channel = MailChannel(f"smtp://localhost:{port}", FROM, [to], reader.context.clock)
        await reader.tick({reader.rule(to, channel=MAIL): channel})
    (mail,) = mails.taken
    assert (mail["Subject"], mail["To"]) == ("[highwater] What is new: about a", to)
    text = mail.get_content().replace("\r\n", "\n")
    assert "- add quotas\n- 1 version bump: attrs\n" in text
    assert "version 1 (feeds.rebuild-requested/0/1)" in text


@pytest.mark.parametrize("sends_empty", [True, False])
async def test_a_day_without_news_says_so_or_is_left_out(reader: Reader, hook: Hook, *, sends_empty: bool) -> None:
    """By the rule; either way the next one begins where the last one ended."""
    async with posting(reader, hook, sends_empty=sends_empty) as channels:
        await reader.reads("add quotas")
        await reader.tick(channels)
        reader.now_ms += DAY_MS
        await reader.tick(channels)
    said = [body["text"].partition("\n")[0] for _, body in hook.taken[1:]]
    assert [one.startswith("Nothing new since ") for one in said] == [True] * sends_empty
    assert await reader.sent() == [(20_001, 1)]


async def test_an_address_that_cannot_be_reached_is_tried_again(reader: Reader, hook: Hook) -> None:
    """At the next tick, with what is new by then; one that refuses gets the same news the next day."""
    async with posting(reader, hook) as channels:
        await reader.reads("add quotas")
        hook.script = [503]
        await reader.tick(channels)
        assert await reader.sent() == []
        await reader.tick(channels)
        assert await reader.sent() == [(20_000, 1)]
        await reader.reads("bound the cache")
        reader.now_ms += DAY_MS
        hook.script = [400]
        await reader.tick(channels)
        await reader.tick(channels)
        assert hook.asked == 3
        reader.now_ms += DAY_MS
        await reader.tick(channels)
    assert [(body["since"], body["cluster_version"]) for _, body in hook.taken] == [(0, 1), (1, 2)]


async def test_only_current_ticks_of_the_first_partition_count(reader: Reader, hook: Hook) -> None:
    """Others would send a digest once more in each process, or for a day that has ended."""
    async with posting(reader, hook) as channels:
        await reader.reads("add quotas")
        await reader.tick(channels, partition=1)
        await reader.tick(channels, age_ms=DAY_MS)
        assert hook.asked == 0
        await reader.tick(channels)
        assert hook.asked == 1


async def test_a_user_without_clusters_is_sent_nothing(reader: Reader, hook: Hook) -> None:
    """Not even that nothing is new; the first digest follows the first version."""
    async with posting(reader, hook) as channels:
        await reader.tick(channels)
        assert (hook.asked, await reader.sent()) == (0, [])


async def test_an_erased_user_has_no_digest(reader: Reader, hook: Hook) -> None:
    """The erasure removes what is stored of those that were sent."""
    async with posting(reader, hook) as channels:
        await reader.reads("add quotas")
        await reader.tick(channels)
    cause = Cause(1, "users.user-erased/0/1")
    async with transaction(reader.context.pool) as tx:
        await ERASURE.erase(tx, reader.context.codec, {reader.user: cause}, 1)
    assert await reader.sent() == []
