"""Every metric with its meaning, and the way to log.

Metrics are declared only here; logs are structured, one event per line, on standard error.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from highwater.streams.log_lines import LimitLibraries, LimitOwn, RepeatLimit, escaped, of_library

# Seconds; a rebuild spans 10 ms (few insights) to minutes (20,000 at the limit).
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)
# From one hop (some 10 ms) to a consumer that was stopped for an hour.
_CHAIN_SECONDS = (0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
_ROWS = (0, 10, 100, 500, 1_000, 2_500, 5_000, 10_000, 20_000)
# Tokens; a context is at most 8,000 (R1.22), and most of an answer's price.
_CHARACTERS = (0, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000)

EVENTS_CONSUMED = Counter(
    "highwater_events_consumed", "Events processed, by consumer group and topic.", ["group", "topic"]
)
EVENTS_DEAD_LETTERED = Counter(
    "highwater_events_dead_lettered",
    "Events sent to a dead-letter topic; see `highwater dlq`.",
    ["group", "topic", "reason"],
)
BATCH_SECONDS = Histogram(
    "highwater_batch_seconds", "Time to process one batch, its transaction included.", ["group"], buckets=_SECONDS
)
BATCHES_FENCED = Counter(
    "highwater_batches_fenced", "Batches discarded because another consumer had moved the position.", ["group"]
)
BATCH_RETRIES = Counter("highwater_batch_retries", "Batches retried while a service was unavailable.", ["group"])
CONSUMER_UP = Gauge("highwater_consumer_up", "1 while a consumer makes progress, else 0.", ["group"])
PARTITIONS_STOPPED = Gauge(
    "highwater_partitions_stopped",
    "Partitions that a consumer has stopped because of bad events; `highwater status` prints the command that resumes it.",
    ["group", "topic"],
)
LAG_EVENTS = Gauge(
    "highwater_lag_events",
    "Unprocessed records in the partitions assigned to this process, by consumer.",
    ["group", "topic"],
)
LAG_SECONDS = Gauge(
    "highwater_lag_seconds",
    "Age of the oldest unread record in the partitions assigned to this process.",
    ["group", "topic"],
)
FRESHNESS_SECONDS = Histogram(
    "highwater_freshness_seconds",
    "Time from the first event of a chain to the commit that makes its effect visible; the oldest of each batch.",
    ["group"],
    buckets=_CHAIN_SECONDS,
)
OUTBOX_ROWS = Gauge(
    "highwater_outbox_rows",
    "Unpublished events in the outbox, counted up to 100,000; NaN while unknown.",
)
OUTBOX_AGE_SECONDS = Gauge(
    "highwater_outbox_age_seconds",
    "Age of the oldest unpublished event in the outbox; NaN while unknown.",
)
DEAD_LETTERS_OPEN = Gauge(
    "highwater_dead_letters_open",
    "Dead letters not yet redriven, edited or dropped, by original topic; see `highwater dlq list`.",
    ["topic"],
)
OUTBOX_PUBLISHED = Counter("highwater_outbox_published", "Outbox rows acknowledged by the broker.", ["topic"])
OUTBOX_SHARDS = Gauge("highwater_outbox_shards", "Outbox shards held by this relay.")
OUTBOX_SHARDS_LOST = Counter("highwater_outbox_shards_lost", "Outbox shards lost to another relay after a hang.")
RECORDS_OVERTAKEN = Counter(
    "highwater_records_overtaken",
    "Records ignored because they were published by a relay that had lost its shard.",
    ["group"],
)
REBUILDS = Counter("highwater_rebuilds", "Ended rebuilds, by outcome.", ["outcome"])
REBUILD_SECONDS = Histogram("highwater_rebuild_seconds", "Duration of a rebuild.", buckets=_SECONDS)
REBUILD_INSIGHTS = Histogram("highwater_rebuild_insights", "Number of insights of a rebuild.", buckets=_ROWS)
REBUILD_RETRIES = Counter("highwater_rebuild_retries", "Repeated attempts of rebuilds.")
PENDING_CLAMPED = Counter("highwater_pending_clamped", "Negative pending values replaced by 0.")
DECISIONS = Counter("highwater_decisions", "Decisions of the planner, by kind.", ["kind"])
TICKS = Counter("highwater_ticks", "Ticks applied by this worker.")
TICKS_REFUSED = Counter(
    "highwater_ticks_refused",
    "Ticks rejected because their time is too far ahead of the broker's; see `clock` in /readyz.",
)
CLOCK_ERROR_SECONDS = Gauge(
    "highwater_clock_error_seconds", "How far this worker's clock is ahead of the broker's; 0 within the bound."
)
TICK_LAG_SECONDS = Gauge(
    "highwater_tick_lag_seconds", "Age of the newest applied tick; it grows while the worker hangs."
)
FEEDS_BUILT = Counter("highwater_feeds_built", "Feed documents built, by outcome.", ["outcome"])
CONDITIONAL_GETS = Counter(
    "highwater_conditional_gets", "Conditional reads, by resource kind and answer.", ["kind", "answer"]
)
HTTP_SECONDS = Histogram(
    "highwater_http_seconds", "Time to answer, by route.", ["route", "method", "status"], buckets=_SECONDS
)
REDIS_UP = Gauge("highwater_redis_up", "1 while Redis answers; at 0 reads and rebuilds use PostgreSQL.")
MODEL_CALLS = Counter(
    "highwater_model_calls",
    "Calls to the embedding and reranking services, and to the LLM for feeds and titles.",
    ["kind", "outcome"],
)
INSIGHTS_REEMBEDDED = Counter(
    "highwater_insights_reembedded", "Insights re-embedded with the new embedding model version."
)
VECTORS_WAITING = Gauge("highwater_vectors_waiting", "Insights or chunks that still have to be embedded.", ["of"])
VECTORS_SECONDS_LEFT = Gauge(
    "highwater_vectors_seconds_left", "Estimated time until all of them are embedded; 0 if unknown.", ["of"]
)
LOCAL_TEXTS = Counter(
    "highwater_local_texts", "Texts embedded by the local model, or left to the built-in embedder.", ["outcome"]
)
CHUNKS_EMBEDDED = Counter(
    "highwater_chunks_embedded",
    "Vectors of chunks by outcome: stored, reused from the same document, or late.",
    ["outcome"],
)
CLUSTER_TITLES = Counter(
    "highwater_cluster_titles",
    "Titles of clusters by outcome: kept, written, unfounded (or a name of a theme) or failed.",
    ["outcome"],
)
DOCUMENT_READS = Counter("highwater_document_reads", "Reads of league pages, by kind and source.", ["kind", "source"])
DOCUMENT_LOADS = Counter("highwater_document_loads", "League pages computed, by kind and outcome.", ["kind", "outcome"])
BUMP_ACKNOWLEDGED_SECONDS = Histogram(
    "highwater_bump_acknowledged_seconds",
    "Time from the announcement of a version until no process serves an older copy.",
    buckets=_SECONDS,
)
LEASE_HELD = Gauge("highwater_lease_held", "1 while this process may serve copies from memory without asking Redis.")
REDIS_HIT_RATIO = Gauge("highwater_redis_hit_ratio", "Share of Redis reads that hit, over five minutes.")
REDIS_EVICTED_KEYS = Gauge(
    "highwater_redis_evicted_keys", "Keys that Redis evicted for lack of memory since its start."
)
REDIS_MEMORY_BYTES = Gauge("highwater_redis_memory_bytes", "Memory used by Redis.")
REDIS_CLIENTS = Gauge("highwater_redis_clients", "Connections to Redis.")
DATABASE_CONNECTIONS = Gauge(
    "highwater_database_connections", "Connections of this process to PostgreSQL: in use or idle.", ["state"]
)
DATABASE_WAITS = Gauge(
    "highwater_database_waits",
    "Database connections waiting for a lock; samples with an exhausted pool, over five minutes.",
    ["kind"],
)
DATABASE_TRANSACTIONS = Gauge(
    "highwater_database_transactions", "Transactions of the database, as counted by PostgreSQL."
)
DATABASE_SLOW_STATEMENTS = Gauge(
    "highwater_database_slow_statements",
    "Statements that take over a second on average; NaN if PostgreSQL does not measure.",
)
HTTP_QUANTILE_SECONDS = Gauge(
    "highwater_http_quantile_seconds", "Response time of this process over five minutes, by quantile.", ["quantile"]
)
HTTP_ERROR_RATIO = Gauge("highwater_http_error_ratio", "Share of 5xx responses of this process, over five minutes.")
UPGRADE_ADVISED = Gauge("highwater_upgrade_advised", "1 while the last five minutes suggest a larger Redis.")
LLM_CALLS = Counter(
    "highwater_llm_calls", "Model calls for queries and jobs, by stage and outcome.", ["stage", "outcome"]
)
LLM_TOKENS = Counter(
    "highwater_llm_tokens",
    "Tokens of model calls for queries, jobs and titles: prompt or completion.",
    ["model", "direction"],
)
LLM_COST_USD = Counter(
    "highwater_llm_cost_usd", "Cost of model calls for queries, jobs and titles, by HIGHWATER_LLM_PRICES.", ["model"]
)
QUERY_RUNS = Counter("highwater_query_runs", "Ended query runs, by status.", ["status"])
QUERY_STAGE_SECONDS = Histogram(
    "highwater_query_stage_seconds", "Duration of a stage, from its capture to its end.", ["stage"], buckets=_SECONDS
)
QUERY_CONTEXT_CHARACTERS = Histogram(
    "highwater_query_context_characters",
    "Size of the context that the Assembler gives to the Responder.",
    buckets=_CHARACTERS,
)
QUERY_CONTEXT_FOUND = Counter("highwater_query_context_found", "Analyses, by whether they found context.", ["found"])
QUERIES_FENCED = Counter(
    "highwater_queries_fenced", "Captures and writes rejected because another worker holds the run."
)
RAW_LOG_FAILURES = Counter("highwater_raw_log_failures", "Rows of raw_logs that could not be written.")
QUERY_BACKLOG = Gauge("highwater_query_backlog", "Query runs that have not started; NaN while unknown.")
QUERY_STORE_BYTES = Gauge(
    "highwater_query_store_bytes",
    "Size of a query table with its indexes, as last measured.",
    ["table"],
)
ALERTS = Counter(
    "highwater_alerts", "Alerts on failed runs and daily digests, by channel and outcome.", ["channel", "outcome"]
)
HTTP_REFUSED = Counter(
    "highwater_http_refused",
    "Requests rejected before routing, by status: from another site, of another type, too slow, too large.",
    ["status"],
)
CONNECTIONS_REFUSED = Counter(
    "highwater_connections_refused", "Connections to the API above a limit, by limit: address or all.", ["whose"]
)
KEYS_REFUSED = Counter(
    "highwater_keys_refused", "Keys rejected unchecked because their address had sent too many wrong ones."
)
INSIGHT_CONFLICTS = Counter(
    "highwater_insight_conflicts",
    "Insights ignored because their id is known with other content; correct the producer.",
)
DEMANDS_SKIPPED = Counter(
    "highwater_rebuild_demands_skipped", "Requested rebuilds ignored because the user is unknown."
)
LIVE_REFUSED = Counter("highwater_live_refused", "Requests to live pages rejected with 429.")
RATE_LIMITED = Counter(
    "highwater_rate_limited",
    "Requests rejected with 429, by limit: key, user or address.",
    ["whose"],
)
WRITES_SHED = Counter(
    "highwater_writes_shed",
    "Writes rejected with 429 because of overload, by limit: outbox_rows, outbox_age or lag.",
    ["reason"],
)
SPANS = Counter(
    "highwater_spans",
    "Trace spans by outcome: exported, dropped (queue full) or failed (rejected by the collector).",
    ["outcome"],
)
CALLS_METERED = Counter(
    "highwater_calls_metered",
    "Rate-limited API calls weighted by cost, by limit (plan, caller, address) and subsystem.",
    ["limit", "subsystem"],
)
RATE_LIMIT_OPEN = Counter(
    "highwater_rate_limit_open", "Requests allowed without counting because Redis was unavailable."
)

JOBS_ENDED = Counter("highwater_jobs_ended", "Ended jobs, by kind and status.", ["kind", "status"])
JOBS_WAITING = Gauge("highwater_jobs_waiting", "Jobs that wait for a slot, by kind, in all organizations.", ["kind"])
JOBS_FENCED = Counter(
    "highwater_jobs_fenced", "Writes rejected because another worker holds the job or it was revoked.", ["kind"]
)
JOB_STEP_SECONDS = Histogram(
    "highwater_job_step_seconds",
    "Time from the end of one job step to the end of the next.",
    ["kind"],
    buckets=_SECONDS,
)
SEMANTIC_CACHE = Counter(
    "highwater_semantic_cache",
    "Semantic cache operations by outcome: hit, miss, stored or failed.",
    ["outcome"],
)
JOB_LISTENERS = Gauge("highwater_job_listeners", "Open streams and sockets that watch jobs in this process.")
SECURITY_ACTIONS = Counter(
    "highwater_security_actions",
    "Records on security.action-recorded by outcome; lost: neither Kafka nor PostgreSQL stored them.",
    ["outcome"],
)

METRIC_NAMES = frozenset(name for name in (m.name for m in REGISTRY.collect()) if name.startswith("highwater_"))

Log = Any  # structlog's bound logger; its methods take an event name and key-value pairs


def configure_logging(level: str, log_format: str) -> None:
    """Send structured logs to standard error; the logs of libraries at warning and above, each on one line."""
    is_console = log_format == "console"
    renderer = structlog.dev.ConsoleRenderer() if is_console else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        *([escaped] if is_console else []),
    ]
    limit = RepeatLimit()
    structlog.configure(
        processors=[LimitOwn(limit), *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(LimitLibraries(limit))
    chain = [of_library, *shared]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=chain))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def get_log(owner: str) -> Log:
    """Return the log of one module or component."""
    return structlog.get_logger(owner=owner)
