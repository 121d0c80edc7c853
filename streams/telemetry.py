"""Every metric name with its meaning, and the one way to log.

Metrics are declared here and nowhere else; logs are structured, one event a line, on standard error.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from highwater.streams.log_lines import LimitLibraries, LimitOwn, RepeatLimit, of_library

# Seconds; a rebuild spans 10 ms (few insights) to minutes (20,000 at the limit).
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)
# From one hop (some 10 ms) to a consumer that was stopped for an hour.
_CHAIN_SECONDS = (0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
_ROWS = (0, 10, 100, 500, 1_000, 2_500, 5_000, 10_000, 20_000)
# Tokens; a context is at most 8,000 (R1.22), and most of the price of an answer.
_CHARACTERS = (0, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000)

EVENTS_CONSUMED = Counter(
    "highwater_events_consumed", "Events accounted for, by consumer group and topic.", ["group", "topic"]
)
EVENTS_DEAD_LETTERED = Counter(
    "highwater_events_dead_lettered",
    "Events sent to a dead-letter topic; look at `highwater dlq`.",
    ["group", "topic", "reason"],
)
BATCH_SECONDS = Histogram(
    "highwater_batch_seconds", "Time to process one batch, its transaction included.", ["group"], buckets=_SECONDS
)
BATCHES_FENCED = Counter(
    "highwater_batches_fenced", "Batches thrown away since another consumer had moved the position.", ["group"]
)
BATCH_RETRIES = Counter("highwater_batch_retries", "Attempts repeated while a part was away.", ["group"])
CONSUMER_UP = Gauge("highwater_consumer_up", "1 while a consumer makes progress, else 0.", ["group"])
PARTITIONS_STOPPED = Gauge(
    "highwater_partitions_stopped",
    "Partitions that a consumer does not read since too many of their events are bad; `highwater status` has the command.",
    ["group", "topic"],
)
LAG_EVENTS = Gauge(
    "highwater_lag_events",
    "Records that a consumer of this process has not accounted for, in the partitions it holds.",
    ["group", "topic"],
)
LAG_SECONDS = Gauge(
    "highwater_lag_seconds",
    "How long the oldest unread record of the partitions that this process holds has waited.",
    ["group", "topic"],
)
FRESHNESS_SECONDS = Histogram(
    "highwater_freshness_seconds",
    "From the publication of a chain's first event to the commit that lets readers see its effect; of each batch the oldest.",
    ["group"],
    buckets=_CHAIN_SECONDS,
)
OUTBOX_ROWS = Gauge(
    "highwater_outbox_rows",
    "Events in the outbox that no relay has published, counted up to 100,000; NaN while unknown.",
)
OUTBOX_AGE_SECONDS = Gauge(
    "highwater_outbox_age_seconds",
    "How long the oldest event in the outbox has waited for its relay; NaN while unknown.",
)
DEAD_LETTERS_OPEN = Gauge(
    "highwater_dead_letters_open",
    "Dead letters that nobody has sent again, edited or dropped, by the topic they came from; `highwater dlq list`.",
    ["topic"],
)
OUTBOX_PUBLISHED = Counter("highwater_outbox_published", "Outbox rows acknowledged by the broker.", ["topic"])
OUTBOX_SHARDS = Gauge("highwater_outbox_shards", "Outbox shards held by this relay.")
OUTBOX_SHARDS_LOST = Counter("highwater_outbox_shards_lost", "Outbox shards lost to another relay since this one hung.")
RECORDS_OVERTAKEN = Counter(
    "highwater_records_overtaken", "Records passed over: published by a relay whose shard another had taken.", ["group"]
)
REBUILDS = Counter("highwater_rebuilds", "Ended rebuild tasks (R0.39).", ["outcome"])
REBUILD_SECONDS = Histogram("highwater_rebuild_seconds", "Duration of a rebuild (R0.39).", buckets=_SECONDS)
REBUILD_INSIGHTS = Histogram("highwater_rebuild_insights", "Data set size of a rebuild (R0.39).", buckets=_ROWS)
REBUILD_RETRIES = Counter("highwater_rebuild_retries", "Repeated attempts of a rebuild (R0.39).")
PENDING_CLAMPED = Counter("highwater_pending_clamped", "Negative pending values taken as 0 (R0.12).")
DECISIONS = Counter("highwater_decisions", "Decisions of the planner, by kind.", ["kind"])
TICKS = Counter("highwater_ticks", "Ticks applied by this worker.")
TICKS_REFUSED = Counter(
    "highwater_ticks_refused",
    "Ticks refused because their time lies too far after the broker's; see `clock` in /readyz.",
)
CLOCK_ERROR_SECONDS = Gauge(
    "highwater_clock_error_seconds", "How far this worker's clock is ahead of the broker's; 0 within the bound."
)
TICK_LAG_SECONDS = Gauge("highwater_tick_lag_seconds", "Age of the newest applied tick; a hung worker shows here.")
FEEDS_BUILT = Counter("highwater_feeds_built", "Feed documents built, by outcome.", ["outcome"])
CONDITIONAL_GETS = Counter(
    "highwater_conditional_gets", "Conditional reads, by resource kind and answer.", ["kind", "answer"]
)
HTTP_SECONDS = Histogram(
    "highwater_http_seconds", "Time to answer, by route.", ["route", "method", "status"], buckets=_SECONDS
)
REDIS_UP = Gauge("highwater_redis_up", "1 while Redis answers; at 0 reads and rebuilds go on from PostgreSQL (R0.42).")
MODEL_CALLS = Counter(
    "highwater_model_calls", "Calls of the embedding service, and of the LLM for feeds and titles.", ["kind", "outcome"]
)
INSIGHTS_REEMBEDDED = Counter(
    "highwater_insights_reembedded", "Insights given a vector in the basis that is rolled out."
)
VECTORS_WAITING = Gauge(
    "highwater_vectors_waiting", "Insights or chunks that a service or the local model has still to read.", ["of"]
)
VECTORS_SECONDS_LEFT = Gauge(
    "highwater_vectors_seconds_left", "How long that will take at the pace of the last minutes; 0: unknown.", ["of"]
)
LOCAL_TEXTS = Counter(
    "highwater_local_texts", "Texts given a vector by the local model, or unread by the built-in embedder.", ["outcome"]
)
CHUNKS_EMBEDDED = Counter(
    "highwater_chunks_embedded",
    "Vectors of chunks: stored, reused in the same document, or late (R3.13, R3.14).",
    ["outcome"],
)
CLUSTER_TITLES = Counter(
    "highwater_cluster_titles", "Clusters of rebuilt versions whose title was kept, written or failed.", ["outcome"]
)
DOCUMENT_READS = Counter(
    "highwater_document_reads", "Reads of league documents, by kind and what they were served from.", ["kind", "source"]
)
DOCUMENT_LOADS = Counter(
    "highwater_document_loads", "League documents computed, by kind and what became of it.", ["kind", "outcome"]
)
BUMP_ACKNOWLEDGED_SECONDS = Histogram(
    "highwater_bump_acknowledged_seconds",
    "From the announcement of a version until no process serves an older copy.",
    buckets=_SECONDS,
)
LEASE_HELD = Gauge("highwater_lease_held", "1 while this process may serve copies from its memory without asking.")
REDIS_HIT_RATIO = Gauge("highwater_redis_hit_ratio", "Share of reads of Redis that hit, over five minutes (R4.40).")
REDIS_EVICTED_KEYS = Gauge("highwater_redis_evicted_keys", "Keys that Redis evicted for want of memory since it began.")
REDIS_MEMORY_BYTES = Gauge("highwater_redis_memory_bytes", "Memory that Redis uses.")
REDIS_CLIENTS = Gauge("highwater_redis_clients", "Connections to Redis.")
DATABASE_CONNECTIONS = Gauge(
    "highwater_database_connections", "Connections of this process to PostgreSQL: in use or idle.", ["state"]
)
DATABASE_WAITS = Gauge(
    "highwater_database_waits",
    "Who waits: connections for a lock, or looks at a pool with none left, in five minutes.",
    ["kind"],
)
DATABASE_TRANSACTIONS = Gauge("highwater_database_transactions", "Transactions of this database as it counts them.")
DATABASE_SLOW_STATEMENTS = Gauge(
    "highwater_database_slow_statements",
    "Statements of over a second on average; NaN where PostgreSQL does not measure.",
)
HTTP_QUANTILE_SECONDS = Gauge(
    "highwater_http_quantile_seconds", "Time to answer of this process over five minutes, by quantile.", ["quantile"]
)
HTTP_ERROR_RATIO = Gauge("highwater_http_error_ratio", "Share of answers of this process above 499, over five minutes.")
UPGRADE_ADVISED = Gauge("highwater_upgrade_advised", "1 while the last five minutes ask for a larger Redis (R4.41).")
LLM_CALLS = Counter(
    "highwater_llm_calls", "Calls for queries and jobs, by stage and what became of them (R1.41).", ["stage", "outcome"]
)
LLM_TOKENS = Counter(
    "highwater_llm_tokens",
    "Tokens of calls for queries and jobs: prompt or completion (R1.41).",
    ["model", "direction"],
)
LLM_COST_USD = Counter(
    "highwater_llm_cost_usd", "What calls for queries and jobs cost by HIGHWATER_LLM_PRICES (R1.41).", ["model"]
)
QUERY_RUNS = Counter("highwater_query_runs", "Runs that came to their end, by status (R1.38).", ["status"])
QUERY_STAGE_SECONDS = Histogram(
    "highwater_query_stage_seconds", "From the capture of a stage to its end (R1.39).", ["stage"], buckets=_SECONDS
)
QUERY_CONTEXT_CHARACTERS = Histogram(
    "highwater_query_context_characters", "Size of what the Assembler gives the responder (R1.39).", buckets=_CHARACTERS
)
QUERY_CONTEXT_FOUND = Counter(
    "highwater_query_context_found", "Analyses, by whether they found context (R1.39).", ["found"]
)
QUERIES_FENCED = Counter(
    "highwater_queries_fenced", "Captures and stores that found the run elsewhere and changed nothing (R1.6)."
)
RAW_LOG_FAILURES = Counter("highwater_raw_log_failures", "Lines of raw_logs that could not be written (R1.13).")
QUERY_BACKLOG = Gauge("highwater_query_backlog", "Runs that nobody has begun to work on; NaN while unknown (R1.38).")
QUERY_STORE_BYTES = Gauge(
    "highwater_query_store_bytes",
    "Size of a table of the queries with its indexes, as last seen (R1.40).",
    ["table"],
)
ALERTS = Counter(
    "highwater_alerts", "Alerts on failed runs, by channel and what became of them (R1.35).", ["channel", "outcome"]
)
HTTP_REFUSED = Counter(
    "highwater_http_refused",
    "Requests refused before they were routed, by status: of another site, of another type, too slow, too large.",
    ["status"],
)
CONNECTIONS_REFUSED = Counter(
    "highwater_connections_refused", "Connections to the API beyond the limit, by whose: address or all.", ["whose"]
)
KEYS_REFUSED = Counter(
    "highwater_keys_refused", "Keys that were not looked at, since their address had sent too many wrong ones."
)
INSIGHT_CONFLICTS = Counter(
    "highwater_insight_conflicts",
    "Insights that came again under a known id with other content and changed nothing; correct their producer.",
)
DEMANDS_SKIPPED = Counter(
    "highwater_rebuild_demands_skipped", "Demands of a rebuild for a user whom no event has told of; nothing was made."
)
LIVE_REFUSED = Counter("highwater_live_refused", "Requests to live pages refused with 429 (R4.36).")
RATE_LIMITED = Counter(
    "highwater_rate_limited",
    "Requests refused with 429, by whose limit was reached: key, user or address (R2.29, R4.36).",
    ["whose"],
)
WRITES_SHED = Counter(
    "highwater_writes_shed",
    "Writes refused with 429 while the product catches up, by what passed its bound: outbox_rows, outbox_age or lag.",
    ["reason"],
)
SPANS = Counter(
    "highwater_spans",
    "Spans of traces by outcome: exported, dropped (the queue was full) or failed (the collector did not take them).",
    ["outcome"],
)
CALLS_METERED = Counter(
    "highwater_calls_metered",
    "Calls of the API that are limited, each counted as what it costs, by limit (plan, caller, address) and household.",
    ["limit", "household"],
)
RATE_LIMIT_OPEN = Counter(
    "highwater_rate_limit_open", "Requests allowed without counting, since Redis was away (R2.31)."
)

JOBS_ENDED = Counter(
    "highwater_jobs_ended", "Jobs that a worker brought to their end, by kind and status.", ["kind", "status"]
)
JOBS_WAITING = Gauge(
    "highwater_jobs_waiting", "Jobs of a kind that wait for a slot, in all organizations (R2.39).", ["kind"]
)
JOBS_FENCED = Counter(
    "highwater_jobs_fenced", "Stores that found the job elsewhere or revoked and changed nothing (R2.15).", ["kind"]
)
JOB_STEP_SECONDS = Histogram(
    "highwater_job_step_seconds", "From the end of one step of a job to the next.", ["kind"], buckets=_SECONDS
)
SEMANTIC_CACHE = Counter(
    "highwater_semantic_cache",
    "Lookups and stores of decks by query: hit, miss, stored or failed (R2.25).",
    ["outcome"],
)
JOB_LISTENERS = Gauge("highwater_job_listeners", "Streams and sockets of this process on which jobs are watched.")
SECURITY_ACTIONS = Counter(
    "highwater_security_actions",
    "Records on security.action-recorded by outcome; lost: neither Kafka nor PostgreSQL took them.",
    ["outcome"],
)

METRIC_NAMES = frozenset(name for name in (m.name for m in REGISTRY.collect()) if name.startswith("highwater_"))

Log = Any  # structlog's bound logger; its methods take an event name and key-value pairs


def configure_logging(level: str, log_format: str) -> None:
    """Send structured logs to standard error; the logs of libraries follow at warning and above, each on one line."""
    renderer = structlog.dev.ConsoleRenderer() if log_format == "console" else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
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
    """The log of one module or part."""
    return structlog.get_logger(owner=owner)
