"""Wires the connectors of chunks."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.chunks.sink_chunks import ChunksSink
from highwater.connectors.chunks.sink_ingests import IngestsSink
from highwater.connectors.chunks.sink_namespaces import NamespacesSink, align
from highwater.connectors.chunks.worker_backfill import Backfill
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.models.opening import open_embedders
from highwater.connectors.redaction import RedactionStep
from highwater.connectors.wiring import Connector, Slice, Wiring
from highwater.streams.chunks.passports import load_passports


async def _chunks(w: Wiring) -> Connector:
    return BatchConsumer(ChunksSink(w.context, load_passports(w.settings.namespaces_file)), w.context)


async def _namespaces(w: Wiring) -> Connector:
    context = w.context
    await align(context.pool, context.codec, load_passports(w.settings.namespaces_file), context.clock())
    return BatchConsumer(NamespacesSink(context), context)


async def _backfill(w: Wiring) -> Connector:
    return Backfill(w.database(), w.context, *open_embedders(w.settings, in_background=True))


def slice_of(redaction: Sequence[RedactionStep]) -> Slice:
    """Return what this slice adds; `redaction` removes a deleted chunk from the documents of every slice."""

    async def ingests(w: Wiring) -> Connector:
        return BatchConsumer(IngestsSink(w.context, redaction), w.context)

    return Slice(
        sinks={"chunks": _chunks, "ingests": ingests, "namespaces": _namespaces}, workers={"backfill": _backfill}
    )
