"""Wires the connectors of leagues."""

from __future__ import annotations

import asyncio

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.league.documents import builders
from highwater.connectors.league.erasure import ERASURE
from highwater.connectors.league.refreshing import renew_former_pages
from highwater.connectors.league.remade import REMAKES
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_posts import PostsSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.league.worker_ratings import RatingsWorker
from highwater.connectors.pages.maker import DocumentMaker
from highwater.connectors.pages.refreshes import Refreshes
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.objects import open_objects
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.connectors.wiring import Connector, Slice, Wiring, WithWatch
from highwater.streams.league.resources import LEAGUE_RULES
from highwater.streams.league.windows import window_options


async def _fixtures(w: Wiring) -> Connector:
    return BatchConsumer(FixturesSink(w.context.codec, w.context.clock), w.context)


async def _results(w: Wiring) -> Connector:
    return BatchConsumer(ResultsSink(w.context), w.context)


async def _votes(w: Wiring) -> Connector:
    return BatchConsumer(VotesSink(w.context, window_seconds=w.settings.vote_window_seconds), w.context)


async def _posts(w: Wiring) -> Connector:
    return BatchConsumer(PostsSink(w.context), w.context)


async def _ratings(w: Wiring) -> Connector:
    return BatchConsumer(RatingsWorker(w.context.codec, w.context.clock), w.context)


async def _documents(w: Wiring) -> Connector:
    cache = ResourceCache(await w.redis_of_cache(), DOCUMENT, open_objects(w.settings))
    made = builders(window_options(w.settings))
    maker = DocumentMaker(LEAGUE_RULES, made, lambda: w.context.codec, cache, w.context.clock)
    refreshes = BatchConsumer(Refreshes(maker, w.context.pool), w.context)

    async def renew(_stop: asyncio.Event) -> None:
        async with transaction(w.context.pool) as tx:
            await renew_former_pages(tx, w.context.codec, now_ms=w.context.clock())

    return WithWatch(refreshes, renew)


SLICE = Slice(
    sinks={"fixtures": _fixtures, "results": _results, "votes": _votes, "posts": _posts},
    workers={"ratings": _ratings},
    materializers={"documents": _documents},
    erasure=ERASURE,
    remakes=REMAKES,
)
