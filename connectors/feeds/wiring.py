"""Wires the connectors of feeds."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.feeds.erasure import ERASURE
from highwater.connectors.feeds.mirror import Mirror
from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.feeds.remade import REMAKES
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.feeds.titles import ClusterTitles
from highwater.connectors.feeds.worker_embed import EmbedWorker
from highwater.connectors.feeds.worker_fanout import Fanout
from highwater.connectors.feeds.worker_rebuild import RebuildWorker
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.models.chat import open_chat_model
from highwater.connectors.models.opening import model_basis_id, open_local_embedder, open_remote_embedder
from highwater.connectors.redaction import RedactionStep
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.connectors.wiring import Connector, Slice, Wiring, WithWatch
from highwater.streams.feeds.policy import load_policy


async def _fanout(w: Wiring) -> Connector:
    return BatchConsumer(Fanout(w.context.pool, await w.producer(), w.context.codec, w.context.clock), w.context)


def titles_of(w: Wiring) -> ClusterTitles:
    """Return the titles by the configured model, whose connections are closed at the end."""
    titles = ClusterTitles(open_chat_model(w.settings))
    w.close_at_end(titles.close)
    return titles


async def _rebuild(w: Wiring) -> Connector:
    pool = await w.keep(
        ClusterPool(processes=w.settings.rebuild_processes or 1, processor_seconds_max=w.settings.rebuild_seconds_max)
    )
    policy, redis = load_policy(w.settings.policy_file), await w.redis()
    basis_id = model_basis_id(w.settings)
    worker = RebuildWorker(w.context, w.settings, policy, redis, pool, titles_of(w), basis_id=basis_id)
    return BatchConsumer(worker, w.context)


async def _embed(w: Wiring) -> Connector:
    return EmbedWorker(
        w.context,
        open_remote_embedder(w.settings),
        local=open_local_embedder(w.settings, in_background=True),
        wait_seconds=w.settings.embed_wait_seconds,
        lease_seconds=w.settings.lease_seconds,
    )


async def _mirror(w: Wiring) -> Connector:
    cache = ResourceCache(await w.redis_of_cache())
    mirror = Mirror(w.context.pool, await w.redis(), cache, w.context.clock, tick_seconds=w.settings.tick_seconds)
    return WithWatch(BatchConsumer(mirror, w.context), mirror.watch)


def slice_of(redaction: Sequence[RedactionStep]) -> Slice:
    """Return what this slice adds; `redaction` removes a retracted insight from the documents of every slice."""

    async def insights(w: Wiring) -> Connector:
        context, dimensions = w.context, w.settings.embedding_dimensions
        sink = InsightsSink(context.codec, context.clock, context.pool, dimensions=dimensions, redaction=redaction)
        return BatchConsumer(sink, context)

    return Slice(
        sinks={"insights": insights},
        workers={"fanout": _fanout, "rebuild": _rebuild, "embed": _embed},
        materializers={"mirror": _mirror},
        erasure=ERASURE,
        remakes=REMAKES,
    )
