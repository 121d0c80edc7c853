"""Wires the connectors of queries."""

from __future__ import annotations

from highwater.connectors.engines.lease_clock import LeaseClock
from highwater.connectors.engines.watch import Watch
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.models.call_rows import Calls
from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.opening import context_windows, open_chat_port, open_embedder
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.queries.deltas import DeltaWriter
from highwater.connectors.queries.engine import QueryEngine
from highwater.connectors.queries.erasure import ERASURE
from highwater.connectors.queries.remade import REMAKES
from highwater.connectors.queries.sink_controls import RunControlsSink
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.queries.stages import Stages, answered_locally
from highwater.connectors.queries.store import CHANNEL, Runs
from highwater.connectors.queries.timeline import Timeline
from highwater.connectors.queries.worker_stages import StageCommands
from highwater.connectors.wiring import Connector, Slice, Wiring, WithWatch
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import fresh_number
from highwater.streams.identity.plans import load_plans
from highwater.streams.models.costs import parse_prices


async def _queries(w: Wiring) -> Connector:
    return BatchConsumer(QueriesSink(w.context, load_plans(w.settings.plans_file)), w.context)


async def _controls(w: Wiring) -> Connector:
    return BatchConsumer(RunControlsSink(w.context), w.context)


async def _stages(w: Wiring) -> Connector:
    s, context = w.settings, w.context
    if s.query_lease_seconds <= s.llm_timeout_seconds:
        raise ConfigurationError("HIGHWATER_QUERY_LEASE_SECONDS must be above HIGHWATER_LLM_TIMEOUT_SECONDS")
    pool = await w.pool_of_engine()
    runs = Runs(pool, context.codec, begun_max=s.query_concurrency_per_organization)
    clock = LeaseClock(context.clock)
    prices = parse_prices(s.llm_prices)
    windows = context_windows(s)
    stages = Stages(
        pool,
        model=s.llm_model,
        strong_model=s.llm_strong_model,
        embedder=CountedEmbedder(pool, open_embedder(s), prices, context.clock),
        windows=windows,
    )
    engine = QueryEngine(
        runs,
        stages,
        ModelCalls(Calls(pool), open_chat_port(s, answered_locally, windows), prices, clock),
        clock,
        worker=fresh_number(),
        lease_ms=int(s.query_lease_seconds * 1000),
        slots=s.query_concurrency,
        deltas=DeltaWriter(await w.redis()),
    )
    watch = Watch(w.database(), runs, engine, clock, channel=CHANNEL)
    return WithWatch(BatchConsumer(StageCommands(engine), context), watch.run)


async def _timeline(w: Wiring) -> Connector:
    return BatchConsumer(Timeline(), w.context)


SLICE = Slice(
    sinks={"queries": _queries, "controls": _controls},
    workers={"stages": _stages},
    materializers={"timeline": _timeline},
    erasure=ERASURE,
    remakes=REMAKES,
)
