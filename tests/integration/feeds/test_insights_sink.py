"""The sink of insights on real parts: dense numbers from concurrent writers, repeats without effect, retractions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.schemas.feeds import CHANNEL_ADVANCED, INSIGHT_CONFLICTED, INSIGHT_INGESTED, INSIGHT_RETRACTED
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.telemetry import INSIGHT_CONFLICTS
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_outbox, in_transaction, running, send, until

NOTHING = dict.fromkeys(("text", "url", "embedding", "embedding_model"))


def sink(context: ProcessContext) -> InsightsSink:
    """A sink with a cache of its own."""
    return InsightsSink(context.codec, context.clock, context.pool, dimensions=384)


def ingested(channel: str, insight: str, *, partition: int = 0, offset: int = 0, **more: Any) -> Event:
    """An insight as the sink is given it."""
    value = {**NOTHING, "insight_id": insight, "channel_id": channel, "ts": 1_000, **more}
    return event(INSIGHT_INGESTED, value, partition=partition, offset=offset, arrived_ms=5_000 + offset)


def retracted(channel: str, insight: str) -> Event:
    """A retraction."""
    return event(INSIGHT_RETRACTED, {"insight_id": insight, "channel_id": channel, "ts": 1})


async def rows(context: ProcessContext, channel: str) -> dict[str, Any]:
    """Stored insights of a channel by id."""
    found = await context.pool.fetch("SELECT * FROM insights WHERE channel_id = $1 ORDER BY seq", channel)
    return {row["insight_id"]: row for row in found}


@pytest.mark.requirement("R0.14")
async def test_two_sinks_and_foreign_partitions_number_densely(stack: Stack, context: ProcessContext):
    """Channels spread over all partitions, two sinks running, the file sent twice: every seq from 1 on, each once."""
    channels = [fresh("dense") for _ in range(4)]
    events = [(channels[n % 4], f"{channels[0]}-{n}") for n in range(1_200)]
    records = [
        (
            None,
            context.codec.encode(INSIGHT_INGESTED, {**NOTHING, "insight_id": i, "channel_id": c, "ts": n}),
            None,
            n % 8,
        )
        for n, (c, i) in enumerate(events)
    ]
    query = "SELECT count(*) FROM insights WHERE channel_id = ANY ($1::text[])"
    async with running(BatchConsumer(sink(context), context), BatchConsumer(sink(context), context)):
        await asyncio.to_thread(send, stack.kafka, INSIGHT_INGESTED, records + records)

        async def stored() -> bool:
            return bool(await context.pool.fetchval(query, channels) == 1_200)

        await until(stored, "all are stored")
    for channel in channels:
        found = await rows(context, channel)
        assert list(range(1, 301)) == [row["seq"] for row in found.values()]
        head = await context.pool.fetchval("SELECT current_seq FROM channels WHERE channel_id = $1", channel)
        assert head == 300


async def test_numbers_follow_partition_and_offset(context: ProcessContext):
    """However a batch was fetched, a channel's numbers go by (partition, offset)."""
    channel = fresh("order")
    batch = [
        ingested(channel, f"{channel}-{p}-{o}", partition=p, offset=o) for p, o in [(3, 1), (1, 7), (3, 0), (1, 2)]
    ]
    await in_transaction(context, sink(context), batch)
    assert [f"{channel}-1-2", f"{channel}-1-7", f"{channel}-3-0", f"{channel}-3-1"] == list(
        await rows(context, channel)
    )


async def test_what_is_new_among_repeats_is_stored_as_it_is(context: ProcessContext):
    """Rows are made before it is known which are repeats: those that stay keep their own content, and numbers without a gap."""
    channel = fresh("among")
    texts = {f"{channel}-{n}": f"word{n} of a text" * (n + 1) for n in range(9)}
    batch = [ingested(channel, insight, offset=n, text=text) for n, (insight, text) in enumerate(texts.items())]
    await in_transaction(context, sink(context), batch[1::3])
    assert await in_transaction(context, sink(context), [*batch, *batch[:2]]) == []
    found = await rows(context, channel)
    assert list(found) == list(texts)[1::3] + [insight for n, insight in enumerate(texts) if n % 3 != 1]
    assert [row["seq"] for row in found.values()] == list(range(1, 10))
    vectors = TextEmbedder().embed(list(texts.values())).astype("<f4")
    expected = {i: (t, v.tobytes(), n) for n, ((i, t), v) in enumerate(zip(texts.items(), vectors, strict=True))}
    assert {i: (row["text"], row["embedding"], row["source_offset"]) for i, row in found.items()} == expected


async def test_a_batch_tells_each_channel_once(context: ProcessContext):
    """One `channel-advanced` per channel and batch, with the new head; a repeat of the batch publishes nothing."""
    channel = fresh("told")
    batch = [ingested(channel, f"{channel}-{n}", offset=n, ts=10 * n) for n in range(50)]
    for _ in range(2):
        assert await in_transaction(context, sink(context), batch) == []
    query = "SELECT value FROM outbox WHERE topic = 'feeds.channel-advanced' AND key = $1"
    values = [
        context.codec.decode("feeds.channel-advanced", v["value"])
        for v in await context.pool.fetch(query, channel.encode())
    ]
    assert [{"channel_id": channel, "head": 50, "arrived_at": 5_049, "retractions": 0}] == values
    row = await context.pool.fetchrow("SELECT * FROM channels WHERE channel_id = $1", channel)
    assert (row["current_seq"], row["last_insight_ts"].timestamp()) == (50, 0.49)


async def test_a_repeat_with_other_content_is_told(context: ProcessContext):
    """One `insight-conflicted` for each, in one batch and over batches, in another channel too; the stored one stays."""
    channel, other = fresh("twice"), fresh("other")
    first = ingested(channel, channel, offset=1, text="one", url="https://x")
    before = INSIGHT_CONFLICTS._value.get()
    batch = [first, ingested(channel, channel, offset=2, text="two", url="https://x")]
    assert await in_transaction(context, sink(context), batch) == []
    again = [
        ingested(channel, channel, offset=3, text="one", url="https://x"),
        ingested(channel, channel, offset=4, ts=2_000),
        ingested(other, channel, partition=1, text="one", url="https://x"),
    ]
    refused = await in_transaction(context, sink(context), again)
    assert [letter.reason for letter in refused] == ["insight_id_in_other_channel"]
    told = [
        *await in_outbox(context, INSIGHT_CONFLICTED, channel),
        *await in_outbox(context, INSIGHT_CONFLICTED, other),
    ]
    place = "feeds.insight-ingested"
    assert [(one["position"], one["first_position"], one["fields"]) for one in told] == [
        (f"{place}/0/2", f"{place}/0/1", ["text"]),
        (f"{place}/0/4", f"{place}/0/1", ["ts", "url", "text"]),
        (f"{place}/1/0", f"{place}/0/1", ["channel_id"]),
    ]
    assert INSIGHT_CONFLICTS._value.get() - before == 3
    assert (await rows(context, channel))[channel]["text"] == "one"


async def test_vectors_are_made_or_kept(context: ProcessContext):
    """The built-in embedder fills what came without, in the active basis; a vector that came is kept with its model."""
    channel, own = fresh("vec"), b"\x00\x00\x80?" * 384
    await in_transaction(context, sink(context), [
        ingested(channel, channel + "a", text="rebalance protocol"),
        ingested(channel, channel + "b", offset=1, embedding=own, embedding_model="mine"),
    ])  # fmt: skip
    found = await rows(context, channel)
    made = TextEmbedder().embed(["rebalance protocol"])[0].astype("<f4").tobytes()
    assert [made, own] == [row["embedding"] for row in found.values()]
    assert [row["embedding_model"] for row in found.values()] == ["hashed-text-384.v1", "mine"]
    assert {row["next_model"] for row in found.values()} == {None}


@pytest.mark.parametrize("order", ["late", "early", "together"])
async def test_a_retraction_counts_in_any_order(context: ProcessContext, order: str):
    """Before, after or with its insight: the insight keeps its number and is marked."""
    channel = fresh("gone")
    batches = {
        "late": [[ingested(channel, channel)], [retracted(channel, channel)]],
        "early": [[retracted(channel, channel)], [ingested(channel, channel)]],
        "together": [[retracted(channel, channel), ingested(channel, channel)]],
    }[order]
    for batch in batches:
        await in_transaction(context, sink(context), batch)
    found = await rows(context, channel)
    assert (found[channel]["seq"], found[channel]["retracted_at"] is not None) == (1, True)
    assert await context.pool.fetchval("SELECT count(*) FROM early_retractions WHERE insight_id = $1", channel) == 0


async def test_a_retraction_is_told_of_its_channel_once(context: ProcessContext):
    """It is counted densely and published, so that users who show it are due; a repeat, and one of an unshown insight, publish
    nothing.
    """
    channel = fresh("told")
    await in_transaction(context, sink(context), [retracted(channel, f"{channel}-0")])
    await in_transaction(context, sink(context), [ingested(channel, f"{channel}-{n}", offset=n) for n in range(4)])
    for insights in ([1, 3], [1], [2]):
        await in_transaction(context, sink(context), [retracted(channel, f"{channel}-{n}") for n in insights])
    told = await in_outbox(context, CHANNEL_ADVANCED, channel)
    assert [(event["head"], event["retractions"]) for event in told] == [(4, 0), (4, 2), (4, 3)]
    assert [row["retraction"] for row in (await rows(context, channel)).values()] == [None, 1, 3, 2]


async def test_a_retraction_of_another_channel_does_nothing(context: ProcessContext):
    """Only the channel that an insight belongs to can retract it."""
    channel = fresh("kept")
    await in_transaction(context, sink(context), [ingested(channel, channel)])
    await in_transaction(context, sink(context), [retracted("other-" + channel, channel)])
    assert (await rows(context, channel))[channel]["retracted_at"] is None


async def test_an_insight_and_its_retraction_at_the_same_moment(context: ProcessContext):
    """Two sinks store an insight and its retraction concurrently: in either order, the insight is marked."""
    channel = fresh("race")
    one = sink(context)
    prepared = await one.prepare([ingested(channel, channel)])
    async with context.pool.acquire() as tx:
        open_tx = tx.transaction()
        await open_tx.start()
        await one.apply(tx, [], prepared)
        other = asyncio.create_task(in_transaction(context, sink(context), [retracted(channel, channel)]))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

        async def blocked_or_done() -> bool:
            return other.done() or bool(await context.pool.fetchval(waiting))

        await until(blocked_or_done, "the other waits, or is done")
        await open_tx.commit()
    await other
    assert (await rows(context, channel))[channel]["retracted_at"] is not None
