"""A process that stores insights, for `bench ingest`: says `ready` when it has joined its group, begins to store at `go`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

import uvloop

from highwater.connectors.feeds.sink_insights import InsightEvent, InsightsSink, Prepared
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.records import Event
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import open_pool
from highwater.streams.clock import ProductClock
from highwater.streams.heap import settle_heap
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging

DIMENSIONS = 384


class GatedSink(InsightsSink):
    """The sink, whose first batch waits for a signal: joining the group is not ingest."""

    go: asyncio.Event

    async def prepare(self, events: Sequence[Event[InsightEvent]]) -> Prepared:
        """Prepare as soon as all may begin."""
        await self.go.wait()
        return await super().prepare(events)


async def main() -> None:
    """Store until the end of standard input."""
    settings = read_settings(os.environ)
    client = settings.kafka_client()
    registry = Registry(settings.registry_access())
    async with await open_pool(settings.database) as pool:
        context = ProcessContext(pool, client, Admin(client), registry, await registry.codec(), ProductClock())
        sink = GatedSink(context.codec, context.clock, context.pool, dimensions=DIMENSIONS)
        sink.go, stop = asyncio.Event(), asyncio.Event()
        consumer = BatchConsumer(sink, context)
        settle_heap()  # as a role does
        running = asyncio.create_task(consumer.run(stop))
        while not consumer.readings and not running.done():  # noqa: ASYNC110 (the consumer has no signal for it)
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        sink.go.set()
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
        await running


if __name__ == "__main__":
    configure_logging("error", "console")
    logging.getLogger("librdkafka").setLevel(logging.ERROR)
    uvloop.run(main())
