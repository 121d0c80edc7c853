"""The services of the routes of feeds, beside the shared ones: the builder of feeds, their heads, and the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from highwater.api.core.services import Services
from highwater.connectors.feeds.documents import FeedBuilder
from highwater.connectors.feeds.items import FeedWriter
from highwater.connectors.models.chat import open_chat_model
from highwater.connectors.postgres.shared_reads import SharedReads
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.streams.feeds.policy import Policy, load_policy


@dataclass(frozen=True)
class FeedServices:
    """What the routes of feeds use."""

    policy: Policy
    cache: ResourceCache
    builder: FeedBuilder
    clusters_heads: SharedReads[Head]

    async def close(self) -> None:
        """Cancel what is being built."""
        await self.builder.close()


def make_feeds(core: Services) -> FeedServices:
    """Wire the services.

    Raises:
        ConfigurationError: the policy, or the language model, cannot be used.
    """
    settings, cache = core.settings, ResourceCache(core.cache_link)
    return FeedServices(
        policy=load_policy(settings.policy_file),
        cache=cache,
        builder=FeedBuilder(
            pool=core.database.require,
            codec=core.registry.require,
            cache=cache,
            writer=FeedWriter(open_chat_model(settings)),
            clock=core.clock,
            ttl_seconds=settings.feed_ttl_seconds,
            database_url=settings.database,
        ),
        clusters_heads=SharedReads(),
    )


async def feeds_of(request: Request) -> FeedServices:
    """Return the services of the application that a request came to."""
    feeds: FeedServices = request.app.state.feeds
    return feeds


WiredFeeds = Annotated[FeedServices, Depends(feeds_of)]
