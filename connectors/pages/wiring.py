"""Wires the connector that all versioned pages share."""

from __future__ import annotations

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.pages.cache import CacheVersions
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.connectors.wiring import Connector, Slice, Wiring


async def _cache(w: Wiring) -> Connector:
    return BatchConsumer(CacheVersions(ResourceCache(await w.redis_of_cache())), w.context)


SLICE = Slice(materializers={"cache": _cache})
