"""Wires the connectors of users and organizations."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.identity.sink_organizations import OrganizationsSink
from highwater.connectors.identity.sink_tokens import TokensSink
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.wiring import Connector, Slice, Wiring
from highwater.streams.identity.plans import load_plans


def slice_of(erasure: Sequence[ErasureStep]) -> Slice:
    """Return what this slice adds; `erasure` are the other slices' steps for an erased user."""

    async def users(w: Wiring) -> Connector:
        sink = UsersSink(w.context.codec, w.context.clock, erasure, dimensions=w.settings.embedding_dimensions)
        return BatchConsumer(sink, w.context)

    return Slice(sinks={"users": users, "organizations": _organizations, "tokens": _tokens})


async def _organizations(w: Wiring) -> Connector:
    sink = OrganizationsSink(w.context, await w.redis(), load_plans(w.settings.plans_file))
    return BatchConsumer(sink, w.context)


async def _tokens(w: Wiring) -> Connector:
    return BatchConsumer(TokensSink(w.context), w.context)
