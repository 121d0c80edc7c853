"""The materializer of timelines on real parts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.queries.timeline import Timeline
from tests.integration.api_server import Seeds
from tests.integration.connecting import event, in_transaction, running, until
from tests.integration.databases import own_database
from tests.integration.queries.pipeline import (
    ARCHIVED_TOPIC,
    STAGE_TOPIC,
    archived_event,
    new_id,
    publish,
    stage_event,
    store_run,
)

WAY = ("NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED")


async def _rows(context: Any, run: str) -> list[Any]:
    query = "SELECT * FROM run_events WHERE run_id = $1 ORDER BY revision NULLS LAST, position"
    return list(await context.pool.fetch(query, run))


def _seeds(context: Any) -> Seeds:
    seeds = Seeds("")
    seeds.run = context.pool.fetch  # type: ignore[method-assign]
    return seeds


async def test_each_step_is_stored_once_with_its_place(stack):
    """From the log, by the consumer: a row an event, and the same batch again adds none."""
    async with own_database(stack) as context:
        user = new_id()
        run = await store_run(_seeds(context), user)
        steps = [
            stage_event(run, user, status, revision=place + 1, operation="UPDATE" if place else "INSERT", attempt=place)
            for place, status in enumerate(WAY)
        ]
        async with running(BatchConsumer(Timeline(), context)):
            places = await asyncio.to_thread(publish, stack.kafka, context.codec, STAGE_TOPIC, *steps)
            gone = archived_event(run, user, archive_status="FAILED", error="no prompt")
            last = (await asyncio.to_thread(publish, stack.kafka, context.codec, ARCHIVED_TOPIC, gone))[0]

            async def look() -> bool:
                return len(await _rows(context, run)) == 8

            await until(look, "all steps are stored")
        again = [
            event(STAGE_TOPIC, step, partition=p.partition, offset=p.offset)
            for p, step in zip(places, steps, strict=True)
        ]
        await in_transaction(context, Timeline(), again)
        rows = await _rows(context, run)
        assert [(row["status"], row["position"]) for row in rows[:7]] == [
            (status, str(place)) for status, place in zip(WAY, places, strict=True)
        ]
        assert [row["operation"] for row in rows] == ["INSERT", *["UPDATE"] * 6, "ARCHIVE"]
        told = rows[7]
        assert (told["status"], told["archive_status"], told["error"]) == ("COMPLETED", "FAILED", "no prompt")
        assert (told["position"], told["revision"]) == (str(last), None)


async def test_of_an_erased_run_nothing_is_written(stack):
    """An event that outlives its run leaves no row; those of others in the batch do."""
    async with own_database(stack) as context:
        user = new_id()
        run = await store_run(_seeds(context), user)
        erased = new_id()
        batch = [
            event(STAGE_TOPIC, stage_event(one, user, "NEW", revision=1), offset=offset)
            for offset, one in enumerate((erased, run))
        ]
        await in_transaction(context, Timeline(), batch)
        assert (len(await _rows(context, erased)), len(await _rows(context, run))) == (0, 1)


async def test_an_erasure_under_way_is_waited_for(stack):
    """A run that is being erased while its events are stored leaves no row either."""
    async with own_database(stack) as context:
        user = new_id()
        run = await store_run(_seeds(context), user)
        async with context.pool.acquire() as eraser:
            erasing = eraser.transaction()
            await erasing.start()
            await eraser.execute("DELETE FROM run_events WHERE run_id = $1", run)
            await eraser.execute("DELETE FROM pipeline_runs WHERE id = $1", run)
            batch = [event(STAGE_TOPIC, stage_event(run, user, "NEW", revision=1))]
            storing = asyncio.create_task(in_transaction(context, Timeline(), batch))

            async def waits() -> bool:
                query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                return bool(await context.pool.fetchval(query))

            await until(waits, "the batch waits for the erasure")
            await erasing.commit()
        await storing
        assert await _rows(context, run) == []


async def test_thousands_a_second(stack):
    """A full batch of 250 runs, eight events each, is stored in well under a second."""
    async with own_database(stack) as context:
        seeds, user = _seeds(context), new_id()
        runs = [await store_run(seeds, user, ordinal=number + 1) for number in range(250)]
        batch = [
            event(STAGE_TOPIC, stage_event(run, user, "ANALYZING", revision=place), offset=number * 8 + place)
            for number, run in enumerate(runs)
            for place in range(8)
        ]
        began = time.perf_counter()
        await in_transaction(context, Timeline(), batch)
        seconds = time.perf_counter() - began
        print(f"2,000 events in {seconds * 1000:.0f} ms")
        assert await context.pool.fetchval("SELECT count(*) FROM run_events") == 2_000
        assert seconds < 1
