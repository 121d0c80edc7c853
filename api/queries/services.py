"""The services of the routes of queries, besides the common ones: the sockets on which users receive their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from highwater.api.core.services import Services
from highwater.api.queries.deltas import DeltaHub
from highwater.api.queries.stream import QueryHub
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.queries import read_model as query_reads
from highwater.connectors.queries.deltas import DeltaReader
from highwater.schemas.codec import Codec


@dataclass(frozen=True)
class QueryServices:
    """The services of the socket of queries; the other routes need none of their own."""

    sockets: QueryHub
    deltas: DeltaHub

    async def end(self) -> None:
        """Close every socket, which has no end of its own."""
        await self.sockets.end()

    async def close(self) -> None:
        """Stop reading the log."""
        await self.sockets.close()
        await self.deltas.close()


def make_queries(core: Services) -> QueryServices:
    """Create them."""

    async def learn(codec: Codec, schema_id: int) -> None:
        codec.teach(schema_id, await Registry(core.settings.registry_access()).text_of(schema_id))

    async def read_answers(request_ids: Sequence[str]) -> Mapping[str, query_reads.Answer]:
        return await query_reads.answers(core.database.require(), request_ids)

    return QueryServices(
        sockets=QueryHub(core.settings.kafka_client(), core.admin, core.registry.require, learn, read_answers),
        deltas=DeltaHub(DeltaReader(core.link)),
    )
