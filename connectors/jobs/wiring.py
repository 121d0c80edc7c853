"""Wires the connectors of jobs."""

from __future__ import annotations

from highwater.connectors.engines.lease_clock import LeaseClock
from highwater.connectors.engines.watch import Watch
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.erasure import ERASURE
from highwater.connectors.jobs.export import ExportSteps
from highwater.connectors.jobs.generation import GenerationSteps, answered_locally
from highwater.connectors.jobs.ingestion import IngestionSteps
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.jobs.remade import REMAKES
from highwater.connectors.jobs.semantic_cache import SemanticCache
from highwater.connectors.jobs.sink_controls import JobControlsSink
from highwater.connectors.jobs.sink_jobs import JobsSink
from highwater.connectors.jobs.sink_usage import UsageSink
from highwater.connectors.jobs.sink_views import ViewsSink
from highwater.connectors.jobs.steps import Steps
from highwater.connectors.jobs.store import Jobs
from highwater.connectors.jobs.turns import Turns
from highwater.connectors.jobs.views import ViewCounts
from highwater.connectors.jobs.worker_jobs import JobCommands
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.models.call_rows import Calls
from highwater.connectors.models.calls import BUILT_IN
from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.opening import context_windows, open_chat_port, open_embedder
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.wiring import Connector, Pool, Slice, Wiring, WithWatch
from highwater.streams.clock import fresh_number
from highwater.streams.identity.plans import load_plans
from highwater.streams.jobs.states import Kind
from highwater.streams.models.costs import parse_prices


async def _jobs(w: Wiring) -> Connector:
    return BatchConsumer(JobsSink(w.context, load_plans(w.settings.plans_file)), w.context)


async def _job_controls(w: Wiring) -> Connector:
    return BatchConsumer(JobControlsSink(w.context, load_plans(w.settings.plans_file)), w.context)


async def _usage(w: Wiring) -> Connector:
    return BatchConsumer(UsageSink(), w.context)


async def _views(w: Wiring) -> Connector:
    sink = ViewsSink(ViewCounts(await w.redis()), window_seconds=w.settings.view_window_seconds)
    return BatchConsumer(sink, w.context)


async def _generation(w: Wiring) -> Connector:
    s, clock = w.settings, w.context.clock
    s.check_job_lease()
    pool = await w.pool_of_engine()
    prices = parse_prices(s.llm_prices)
    counted = CountedEmbedder(pool, open_embedder(s), prices, clock)
    cache = SemanticCache(pool, await w.redis_of_cache(), counted)
    model = s.llm_model if s.llm_url else BUILT_IN
    windows = context_windows(s)
    steps = GenerationSteps(pool, cache, clock, model=model, embedder=counted, windows=windows)
    calls = ModelCalls(Calls(pool), open_chat_port(s, answered_locally, windows), prices, clock)
    return _worker(w, Kind.GENERATION, pool, steps, calls)


async def _ingestion(w: Wiring) -> Connector:
    pool = await w.pool_of_engine()
    return _worker(w, Kind.INGESTION, pool, IngestionSteps(pool, w.context.clock))


async def _export(w: Wiring) -> Connector:
    pool = await w.pool_of_engine()
    google = None
    if w.settings.google_credentials_file is not None or w.settings.google_access_token is not None:
        from highwater.connectors.jobs.google_slides import GoogleSlides  # noqa: PLC0415 - it brings cryptography, 15 MB

        google = GoogleSlides.of(w.settings)
    if google is not None:
        w.close_at_end(google.close)
    return _worker(w, Kind.EXPORT, pool, ExportSteps(pool, w.context.clock, google))


def _worker(w: Wiring, kind: Kind, pool: Pool, steps: Steps, calls: ModelCalls | None = None) -> Connector:
    """Return the consumer of one kind of job with its engine and watch."""
    s, context = w.settings, w.context
    jobs = Jobs(pool, context.codec, kind, begun_max=s.job_concurrency_per_organization)
    lease_ms = int(s.job_lease_seconds * 1000)
    clock = LeaseClock(context.clock)
    slots = s.job_concurrency
    engine = JobEngine(jobs, steps, calls, clock, worker=fresh_number(), lease_ms=lease_ms, slots=slots, turns=_TURNS)
    watch = Watch(w.database(), jobs, engine, clock)
    return WithWatch(BatchConsumer(JobCommands(engine, kind), context), watch.run)


# A step that ends the process ends the engines of all kinds in it.
_TURNS = Turns()


async def _progress(w: Wiring) -> Connector:
    return BatchConsumer(Progress(w.context.pool, await w.redis()), w.context)


SLICE = Slice(
    sinks={"jobs": _jobs, "jobcontrols": _job_controls, "usage": _usage, "views": _views},
    workers={"generation": _generation, "ingestion": _ingestion, "export": _export},
    materializers={"progress": _progress},
    erasure=ERASURE,
    remakes=REMAKES,
)
