"""The services of the routes of chunks, beside the shared ones: passports, vectors of questions, counts of searches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from fastapi import Depends, Request

from highwater.api.chunks.query_vectors import QueryVectors
from highwater.api.chunks.served import ServedSearches
from highwater.api.chunks.tokens_used import UsedTokens
from highwater.api.core.services import Services
from highwater.connectors.models.opening import open_question_embedders, open_reranker
from highwater.connectors.models.reranker import Reranker
from highwater.schemas.chunks import QUERIES_SERVED
from highwater.schemas.jobs import TOKENS_USED
from highwater.streams.chunks.passports import Passports
from highwater.streams.jobs.jobs import cents
from highwater.streams.models.costs import parse_prices


@dataclass(frozen=True)
class ChunkServices:
    """What the routes of chunks use."""

    passports: Passports
    query_vectors: QueryVectors
    served: ServedSearches
    used_tokens: UsedTokens
    reranker: Reranker | None = None

    async def close(self) -> None:
        """Publish the counts and used tokens; concurrently, since without Kafka each waits for a record's timeout."""
        await asyncio.gather(self.served.close(), self.used_tokens.close())
        if self.reranker is not None:
            await self.reranker.close()


def make_chunks(core: Services) -> ChunkServices:
    """Wire the services.

    Raises:
        ConfigurationError: the embedder or the reranker cannot be used.
    """

    async def publish_served(events: Sequence[Mapping[str, Any]]) -> None:
        await core.publisher.commands(QUERIES_SERVED, events, sink_wait_ms=0)

    embedder, *older = open_question_embedders(core.settings)
    prices = parse_prices(core.settings.llm_prices)

    async def publish_used(events: Sequence[Mapping[str, Any]]) -> None:
        await core.publisher.commands(TOKENS_USED, events, sink_wait_ms=0)

    used_tokens = UsedTokens(core.clock, publish_used)

    def note_tokens(organization_id: str, tokens: int) -> None:
        cost_usd = prices.cost_usd(embedder.model, tokens, 0) or Decimal(0)
        used_tokens.note(organization_id, tokens, cents(cost_usd))

    return ChunkServices(
        passports=core.passports,
        query_vectors=QueryVectors([embedder, *older], note_tokens),
        served=ServedSearches(core.clock, publish_served),
        used_tokens=used_tokens,
        reranker=open_reranker(core.settings),
    )


async def chunks_of(request: Request) -> ChunkServices:
    """Return the services of the application that a request came to."""
    chunks: ChunkServices = request.app.state.chunks
    return chunks


WiredChunks = Annotated[ChunkServices, Depends(chunks_of)]
