"""The panels of the Grafana dashboard: an operator's questions, in the order in which trouble shows, as PromQL.

Each metric is in the catalogue (`streams/telemetry.py`); a contract test checks that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; `queries` are pairs of PromQL and legend, `unit` is Grafana's name."""

    title: str
    about: str
    unit: str
    queries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """The panels of one question."""

    title: str
    panels: Sequence[Panel]


ROWS = (
    Row("Are readers served, and is it fresh?", (
        Panel("Requests", "Responses per second, by status.", "reqps",
              [("sum by (status) (rate(highwater_http_seconds_count[5m]))", "{{status}}")]),
        Panel("Time to answer", "99 and 50 of 100 responses take no longer.", "s",
              [("histogram_quantile(0.99, sum by (le) (rate(highwater_http_seconds_bucket[5m])))", "p99"),
               ("histogram_quantile(0.5, sum by (le) (rate(highwater_http_seconds_bucket[5m])))", "p50")]),
        Panel("Freshness", "Time from the first event of a chain until readers see its effect; 99 of 100 batches.", "s",
              [("histogram_quantile(0.99, sum by (group, le) (rate(highwater_freshness_seconds_bucket[10m])))", "{{group}}")]),
    )),
    Row("Is anything waiting?", (
        Panel("Lag, events", "Unprocessed events, by consumer.", "short",
              [("sum by (group) (highwater_lag_events)", "{{group}}")]),
        Panel("Lag, seconds", "Age of the oldest unread record.", "s",
              [("max by (group) (highwater_lag_seconds)", "{{group}}")]),
        Panel("Outbox", "Events that no relay has published, and the age of the oldest.", "short",
              [("max(highwater_outbox_rows)", "events"), ("max(highwater_outbox_age_seconds)", "oldest, seconds")]),
        Panel("Dead letters", "Open ones, by topic.", "short",
              [("max by (topic) (highwater_dead_letters_open)", "{{topic}}")]),
        Panel("Refused", "Writes rejected because of overload, and requests over a limit, per second.", "reqps",
              [("sum by (reason) (rate(highwater_writes_shed_total[5m]))", "shed: {{reason}}"),
               ("sum by (whose) (rate(highwater_rate_limited_total[5m]))", "limited: {{whose}}")]),
        Panel("Waiting jobs and queries", "Jobs and queries that wait for a slot.", "short",
              [("max by (kind) (highwater_jobs_waiting)", "{{kind}}"), ("max(highwater_query_backlog)", "queries")]),
    )),
    Row("Is everything working?", (
        Panel("Events", "Events processed per second, by consumer.", "ops",
              [("sum by (group) (rate(highwater_events_consumed_total[5m]))", "{{group}}")]),
        Panel("Batches", "99 of 100 batches or rebuilds take no longer.", "s",
              [("histogram_quantile(0.99, sum by (group, le) (rate(highwater_batch_seconds_bucket[5m])))", "{{group}}")]),
        Panel("Repeats", "Batches repeated or fenced, per second.", "ops",
              [("sum by (group) (rate(highwater_batch_retries_total[5m]))", "repeated: {{group}}"),
               ("sum by (group) (rate(highwater_batches_fenced_total[5m]))", "fenced: {{group}}")]),
        Panel("Consumers", "1 while each consumer makes progress.", "short",
              [("min by (group) (highwater_consumer_up)", "{{group}}")]),
        Panel("Ticks", "Age of the newest tick, and how far the clock is off.", "s",
              [("max(highwater_tick_lag_seconds)", "age"), ("max(abs(highwater_clock_error_seconds))", "clock error")]),
        Panel("Outbox relays", "Shards held (of 16), and events published per second.", "short",
              [("sum(highwater_outbox_shards)", "shards"), ("sum(rate(highwater_outbox_published_total[5m]))", "published")]),
    )),
    Row("Feeds, pages, models", (
        Panel("Rebuilds", "Rebuilds per minute, by outcome.", "opm",
              [("sum by (outcome) (rate(highwater_rebuilds_total[5m])) * 60", "{{outcome}}")]),
        Panel("Time of a rebuild", "99 of 100 batches or rebuilds take no longer.", "s",
              [("histogram_quantile(0.99, sum by (le) (rate(highwater_rebuild_seconds_bucket[15m])))", "p99")]),
        Panel("Pages", "Reads per second, by where they were served from.", "reqps",
              [("sum by (source) (rate(highwater_document_reads_total[5m]))", "{{source}}")]),
        Panel("Conditional reads", "Conditional reads per second, by answer.", "reqps",
              [("sum by (answer) (rate(highwater_conditional_gets_total[5m]))", "{{answer}}")]),
        Panel("Model calls", "Model calls per second, by outcome.", "ops",
              [("sum by (kind, outcome) (rate(highwater_model_calls_total[5m]))", "{{kind}} {{outcome}}"),
               ("sum by (stage, outcome) (rate(highwater_llm_calls_total[5m]))", "{{stage}} {{outcome}}")]),
        Panel("Cost of models", "US dollars per hour.", "currencyUSD",
              [("sum by (model) (rate(highwater_llm_cost_usd_total[1h])) * 3600", "{{model}}")]),
    )),
    Row("Stores", (
        Panel("PostgreSQL", "Connections of each API process, and connections that wait.", "short",
              [("sum by (state) (highwater_database_connections)", "{{state}}"),
               ("sum by (kind) (highwater_database_waits)", "waiting: {{kind}}")]),
        Panel("Redis", "1 while each process reaches Redis; share of reads that hit.", "short",
              [("min by (instance) (highwater_redis_up)", "{{instance}}"), ("min(highwater_redis_hit_ratio)", "hits")]),
        Panel("Redis, memory", "Memory in use.", "bytes", [("max(highwater_redis_memory_bytes)", "used")]),
    )),
)  # fmt: skip
