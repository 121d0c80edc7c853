"""Vectors for a run or a job: their cost is stored beside its other calls, so that its end counts it.

Invariant. All vectors for one run or job are one call of the stage `embedding`, whose tokens and sends add up.
"""

from __future__ import annotations

from typing import NamedTuple

import asyncpg

from highwater.connectors.models.embeddings import Embedder
from highwater.connectors.models.statements import QUERIES
from highwater.connectors.postgres.pool import reading
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.models.costs import Prices


class Work(NamedTuple):
    """A run or a job that needs a vector; `user_key` of a query's user, None for a job."""

    id: str
    user_key: str | None


class CountedEmbedder:
    """An embedder whose tokens are recorded for the work that uses them."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], embedder: Embedder, prices: Prices, clock: Clock) -> None:
        self._pool = pool
        self._embedder = embedder
        self._prices = prices
        self._clock = clock
        self.basis_id = embedder.basis_id

    async def embed(self, text: str, work: Work) -> bytes:
        """Return the vector of a text, after storing its cost.

        Raises:
            UnavailableError: the service does not answer, or PostgreSQL is unavailable.
            EmbeddingError: its answer is not a vector.
        """
        made = await self._embedder.embed_counted([text])
        if made.tokens:
            model = self._embedder.model
            cost_usd = self._prices.cost_usd(model, made.tokens, 0)
            async with reading(self._pool) as connection:
                await connection.execute(
                    QUERIES["count_embedding"], *work, model, to_datetime(self._clock()), made.tokens, cost_usd
                )
        return made.vectors[0]
