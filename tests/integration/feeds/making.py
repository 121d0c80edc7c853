"""A user, a channel and a rebuild worker, on a clock that stands still."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.worker_rebuild import RebuildWorker
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.slices import ERASURE
from highwater.schemas.feeds import CLUSTERS_CURATED, REBUILD_FINISHED, REBUILD_REQUESTED
from highwater.schemas.positions import parse_position
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.policy import load_policy
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_outbox, in_transaction
from tests.integration.records import record_at

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000
TOPICS_OF_TEXTS = ("fix consumer rebalance protocol timeout", "add css colours to dashboard theme button")


@dataclass
class Case:
    """A user subscribed to a channel, and a worker."""

    stack: Stack
    context: ProcessContext
    redis: RedisLink
    pool: ClusterPool
    user: str = field(default_factory=lambda: fresh("u"))
    channel: str = field(default_factory=lambda: fresh("c"))
    offset: int = 0
    now_ms: int = NOW_MS
    enqueued_ms: int | None = None  # when the request before the next one was made
    basis_id: str | None = None  # of the configured model

    def worker(self, **settings: Any) -> RebuildWorker:
        """A worker; `settings` as in the environment."""
        told = self.stack.settings(**settings)
        return RebuildWorker(self.context, told, load_policy(), self.redis, self.pool, basis_id=self.basis_id)

    async def user_is(self, **columns: Any) -> None:
        """An active user of the plan free, subscribed to the channel."""
        await self.sql(
            "INSERT INTO user_stats (user_id, last_active_at) VALUES ($1, $2)", self.user, to_datetime(NOW_MS)
        )
        await self.sql("INSERT INTO subscriptions VALUES ($1, $2, true, 1)", self.user, self.channel)
        for name, value in columns.items():
            await self.sql(f"UPDATE user_stats SET {name} = $2 WHERE user_id = $1", self.user, value)

    async def subscribes(self, channel: str, *, subscribed: bool = True) -> None:
        """The user joins a channel, or leaves it."""
        await self.sql(
            "INSERT INTO subscriptions VALUES ($1, $2, $3, 1) ON CONFLICT (user_id, channel_id) DO UPDATE"
            " SET subscribed = excluded.subscribed", self.user, channel, subscribed,
        )  # fmt: skip

    async def retracts(self, number: int) -> None:
        """An insight of the channel is retracted, as the sink stores it."""
        event = await self.sql(
            QUERIES["retract_insights"], [f"{self.channel}-{number}"], [self.channel], [to_datetime(1)]
        )
        assert event == self.channel

    def at(self, now_ms: int) -> Case:
        """The same user at another time."""
        return replace(self, context=replace(self.context, clock=lambda: now_ms), now_ms=now_ms)

    async def insights(
        self, count: int, *, age_days: float = 1.0, embedded: bool = True, channel: str | None = None
    ) -> None:
        """More insights in a channel, of two subjects."""
        channel = channel or self.channel
        head = await self.sql("SELECT current_seq FROM channels WHERE channel_id = $1", channel) or 0
        texts = [f"{TOPICS_OF_TEXTS[n % 2]} {n % 7}" for n in range(head, head + count)]
        vectors = TextEmbedder().embed(texts)
        moment = to_datetime(int(self.now_ms - age_days * DAY_MS))
        await self.context.pool.executemany(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, embedding, embedding_model,"
            " source_partition, source_offset) VALUES ($1, $2, $3, $4, $4, $5, $6, $7, 0, 0)",
            [
                (
                    f"{channel}-{head + n + 1}", channel, head + n + 1, moment, text,
                    vectors[n].tobytes() if embedded else None, UNFITTED_ID if embedded else None,
                )
                for n, text in enumerate(texts)
            ],
        )  # fmt: skip
        await self.sql(
            "INSERT INTO channels (channel_id, current_seq) VALUES ($1, $2) ON CONFLICT (channel_id) DO UPDATE"
            " SET current_seq = excluded.current_seq", channel, head + count,
        )  # fmt: skip

    async def model_reads(self, basis_id: str, upto: int | None = None) -> None:
        """The model has read the insights of the channel, up to a number; its vectors are those of the built-in embedder."""
        await self.sql(
            "UPDATE insights SET next_embedding = embedding, next_model = $2 WHERE channel_id = $1 AND seq <= $3",
            self.channel, basis_id, 10**9 if upto is None else upto,
        )  # fmt: skip

    def request(
        self, trigger: str = "manual", *, offset: int | None = None, forced: bool = True, revision: int = 0
    ) -> Any:
        """A request at the next position, which serves the demands up to a revision."""
        self.offset += 1
        value = {
            "user_id": self.user, "trigger": trigger, "planned_at": self.now_ms, "forced": forced,
            "demanded_revision": revision, "last_enqueued_at": self.enqueued_ms,
        }  # fmt: skip
        return event(REBUILD_REQUESTED, value, offset=self.offset if offset is None else offset)

    async def rebuild(self, trigger: str = "manual", *, forced: bool = True, **settings: Any) -> dict[str, Any]:
        """One request through a worker; its answer."""
        await in_transaction(self.context, self.worker(**settings), [self.request(trigger, forced=forced)])
        return (await self.answers())[-1]

    async def answers(self, topic: str = REBUILD_FINISHED) -> list[dict[str, Any]]:
        """The events of the user in the outbox."""
        return await in_outbox(self.context, topic, self.user)

    async def state(self) -> tuple[int, int | None, int]:
        """Version, high-water mark of the channel, stored versions."""
        return (
            await self.sql("SELECT cluster_version FROM user_stats WHERE user_id = $1", self.user),
            await self.sql("SELECT last_seq FROM user_cluster_hwm WHERE user_id = $1", self.user),
            await self.sql("SELECT count(*) FROM user_clusters WHERE user_id = $1", self.user),
        )

    async def members(self) -> set[int]:
        """Numbers of the insights in the newest version."""
        clusters = json.loads(
            await self.sql(
                "SELECT clusters FROM user_clusters WHERE user_id = $1 ORDER BY cluster_version DESC", self.user
            )
        )
        return {int(i.rsplit("-", 1)[1]) for one in clusters for i in one["insight_ids"]}

    async def sql(self, query: str, *values: Any) -> Any:
        """One value."""
        return await self.context.pool.fetchval(query, *values)


async def store_curation(stack: Stack, context: ProcessContext, position: str) -> None:
    """The sink of users stores the curation that was published at a position."""
    record, place = record_at(stack, position), parse_position(position)
    value = context.codec.decode(CLUSTERS_CURATED, record.value())
    said = event(
        CLUSTERS_CURATED, value, partition=place.partition, offset=place.offset, arrived_ms=record.timestamp()[1]
    )
    sink = UsersSink(context.codec, context.clock, ERASURE, dimensions=384)
    assert await in_transaction(context, sink, [said]) == []
