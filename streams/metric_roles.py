"""Which role reports which metric, so that `/metrics` of a process shows what it does and no zeros of other roles.

Invariant: a metric that has changed is shown by the process that changed it; this list only leaves out metrics that
cannot change there.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Role(StrEnum):
    """A kind of process, by its command name."""

    API = "api"
    CONNECT = "connect"
    WORKER = "worker"


_API = """
conditional_gets http_seconds http_quantile_seconds http_error_ratio http_refused connections_refused keys_refused live_refused
rate_limited calls_metered rate_limit_open job_listeners redis_hit_ratio redis_evicted_keys redis_memory_bytes redis_clients
database_connections database_waits database_transactions database_slow_statements upgrade_advised query_backlog query_store_bytes
security_actions writes_shed dead_letters_open document_reads lease_held
"""
_CONNECT = """
batch_seconds batches_fenced batch_retries partitions_stopped outbox_published outbox_shards outbox_shards_lost
outbox_rows outbox_age_seconds rebuilds rebuild_seconds rebuild_insights rebuild_retries insights_reembedded
chunks_embedded cluster_titles query_runs query_stage_seconds query_context_characters query_context_found
queries_fenced raw_log_failures alerts insight_conflicts rebuild_demands_skipped jobs_ended jobs_waiting jobs_fenced
vectors_waiting vectors_seconds_left job_step_seconds llm_calls llm_tokens llm_cost_usd freshness_seconds
"""
_WORKER = "decisions ticks ticks_refused clock_error_seconds tick_lag_seconds"
# The API builds a missing page or feed when it is requested, and computes vectors of questions.
_API_AND_CONNECT = (
    "redis_up model_calls feeds_built document_loads bump_acknowledged_seconds semantic_cache local_texts"
)
_CONSUMERS = "events_consumed events_dead_lettered consumer_up records_overtaken lag_events lag_seconds"
_API_AND_WORKER = "pending_clamped"


def _named(text: str) -> frozenset[str]:
    return frozenset(f"highwater_{name}" for name in text.split())


# Metric -> the roles that report it.
ROLES_OF: dict[str, frozenset[Role]] = {
    name: frozenset(roles)
    for text, roles in (
        (_API, (Role.API,)),
        (_CONNECT, (Role.CONNECT,)),
        (_WORKER, (Role.WORKER,)),
        (_API_AND_CONNECT, (Role.API, Role.CONNECT)),
        (_CONSUMERS, (Role.CONNECT, Role.WORKER)),
        (_API_AND_WORKER, (Role.API, Role.WORKER)),
        ("spans", tuple(Role)),
    )
    for name in _named(text)
}


class _OfRole(Collector):
    """The registered metrics of a role."""

    def __init__(self, role: Role, registered: Collector) -> None:
        self._role = role
        self._registered = registered

    def collect(self) -> Iterator[Metric]:
        """Yield each metric of the role, of the interpreter, or that has changed."""
        for metric in self._registered.collect():
            roles = ROLES_OF.get(metric.name)
            if roles is None or self._role in roles or _has_moved(metric):
                yield metric


def _has_moved(metric: Metric) -> bool:
    return any(sample.value != 0 for sample in metric.samples if not sample.name.endswith("_created"))


_role: Role | None = None


def begin_role(role: Role) -> None:
    """Set the role of this process; until then it reports everything."""
    global _role  # noqa: PLW0603 - one process is one role, as its registry of metrics is one
    _role = role


def exposition(role: Role | None = None) -> bytes:
    """Return the metrics of this process in Prometheus' format; of the given role, else of the process's role."""
    role = role or _role
    return generate_latest(REGISTRY if role is None else _OfRole(role, REGISTRY))
