"""What the routes of chunks stand on, beside what all routes share: passports, vectors of questions, the count of searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from highwater.api.chunks.query_vectors import QueryVectors
from highwater.api.chunks.served import ServedSearches
from highwater.api.core.services import Services
from highwater.connectors.models.opening import open_embedder
from highwater.schemas.chunks import QUERIES_SERVED
from highwater.streams.chunks.passports import Passports


@dataclass(frozen=True)
class ChunkServices:
    """What the routes of chunks use."""

    passports: Passports
    query_vectors: QueryVectors
    served: ServedSearches

    async def close(self) -> None:
        """Tell what was counted."""
        await self.served.close()


def make_chunks(core: Services) -> ChunkServices:
    """Wire them.

    Raises:
        ConfigurationError: the embedder cannot be used.
    """

    async def publish_served(events: Sequence[Mapping[str, Any]]) -> None:
        await core.publisher.commands(QUERIES_SERVED, events, sink_wait_ms=0)

    return ChunkServices(
        passports=core.passports,
        query_vectors=QueryVectors(open_embedder(core.settings)),
        served=ServedSearches(core.clock, publish_served),
    )


async def chunks_of(request: Request) -> ChunkServices:
    """Those of the application that a request came to."""
    chunks: ChunkServices = request.app.state.chunks
    return chunks


WiredChunks = Annotated[ChunkServices, Depends(chunks_of)]
