"""Every alert: when it fires, its severity, and its runbook. Files for Prometheus are generated from it.

`python -m highwater.api.cli.alert_rules` writes `deploy/prometheus/alerts.yml`, its tests and the dashboard; contract
tests check that each metric exists, that each alert has its page in `docs/runbooks/`, and that each fires on its
example.

Invariants. An alert requires somebody's action; for a problem that resolves by itself `minutes` is long enough for
that. A page wakes somebody: readers are served nothing, or stale data, or events are blocked. Everything else is a
ticket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

GROUP = "highwater"
# How the roles are scraped: one job for all (docs/operating.md).
JOB = "highwater"


class Severity(StrEnum):
    """How urgent it is: `page` wakes somebody, `ticket` waits for the morning."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Args:
        name: also that of its page, in lower case with hyphens.
        expr: PromQL; it fires while there is a result.
        minutes: how long there must be one.
        severity: how urgent it is.
        summary: one line for the notified person; `$labels` as in Prometheus.
        example: series on which it fires, in the notation of `promtool test rules`, a sample per minute.
        fires_at: minutes of the example after which it fires; by default a minute after `minutes`.
    """

    name: str
    expr: str
    minutes: int
    severity: Severity
    summary: str
    example: Mapping[str, str]
    fires_at: int = 0

    @property
    def page(self) -> str:
        """Return the name of its page, without the folder."""
        words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in self.name).strip("-")
        return f"{words}.md"

    @property
    def evaluated_at(self) -> int:
        """Return the minute of the example at which it must fire."""
        return self.fires_at or self.minutes + 1


PAGE, TICKET = Severity.PAGE, Severity.TICKET

ALERTS = (
    Alert(
        "RoleDown", f'up{{job="{JOB}"}} == 0', 2, PAGE,
        "{{ $labels.instance }} does not answer /metrics",
        {f'up{{job="{JOB}", instance="worker:8090"}}': "0x10"},
    ),
    Alert(
        "ConsumerDown", "highwater_consumer_up == 0", 5, PAGE,
        "consumer {{ $labels.group }} of {{ $labels.instance }} makes no progress",
        {'highwater_consumer_up{group="insights", instance="connect:8090"}': "0x10"},
    ),
    Alert(
        "ConsumerMissing", 'absent(highwater_outbox_shards) or absent(highwater_consumer_up{group="highwater-feeds"})', 5, PAGE,
        "no process relays the outbox, or none decides (worker)",
        {'highwater_outbox_shards{instance="connect:8090"}': "16x10"},
    ),
    Alert(
        "LagHigh", "max by (group, topic) (highwater_lag_seconds) > 300", 5, PAGE,
        "{{ $labels.group }} is {{ $value | humanizeDuration }} behind on {{ $labels.topic }}",
        {'highwater_lag_seconds{group="insights", topic="feeds.insight-ingested"}': "301+60x10"},
    ),
    Alert(
        "PartitionStopped", "max by (group, topic) (highwater_partitions_stopped) > 0", 0, PAGE,
        "{{ $labels.group }} has stopped {{ $value }} partitions of {{ $labels.topic }}: too many of their events are bad",
        {'highwater_partitions_stopped{group="posts", topic="league.comment-posted"}': "1x10"},
    ),
    Alert(
        "OutboxStuck", "max(highwater_outbox_age_seconds) > 60", 2, PAGE,
        "an event has waited {{ $value | humanizeDuration }} in the outbox",
        {"highwater_outbox_age_seconds": "61+60x10"},
    ),
    Alert(
        "DeadLettersOpen", "max by (topic) (highwater_dead_letters_open) > 0", 15, TICKET,
        "{{ $value }} dead letters of {{ $labels.topic }} are open",
        {'highwater_dead_letters_open{topic="feeds.insight-ingested"}': "3x30"},
    ),
    Alert(
        "FreshnessLow",
        "histogram_quantile(0.99, sum by (group, le) (rate(highwater_freshness_seconds_bucket[10m]))) > 60", 10, TICKET,
        "1 of 100 events is stored by {{ $labels.group }} more than {{ $value | humanizeDuration }} after it was published",
        {
            'highwater_freshness_seconds_bucket{group="documents", le="60"}': "0x40",
            'highwater_freshness_seconds_bucket{group="documents", le="300"}': "0+10x40",
            'highwater_freshness_seconds_bucket{group="documents", le="+Inf"}': "0+10x40",
        },
        fires_at=25,
    ),
    Alert(
        "WritesShed", "sum by (reason) (rate(highwater_writes_shed_total[5m])) > 0", 1, PAGE,
        "writes are refused with 429: {{ $labels.reason }} is above its bound",
        {'highwater_writes_shed_total{reason="lag", instance="api:8080"}': "0+5x10"},
        fires_at=5,
    ),
    Alert(
        "ErrorsHigh",
        'sum(rate(highwater_http_seconds_count{status=~"5.."}[5m])) / sum(rate(highwater_http_seconds_count[5m])) > 0.01',
        5, PAGE,
        "{{ $value | humanizePercentage }} of the responses are server errors (5xx)",
        {
            'highwater_http_seconds_count{status="200", route="/api/feed", method="GET"}': "0+90x20",
            'highwater_http_seconds_count{status="503", route="/api/feed", method="GET"}': "0+10x20",
        },
        fires_at=12,
    ),
    Alert(
        "TicksLate", "max(highwater_tick_lag_seconds) > 180", 2, PAGE,
        "the worker's newest tick is {{ $value | humanizeDuration }} old: no decision that depends on time is made",
        {"highwater_tick_lag_seconds": "181+60x10"},
    ),
    Alert(
        "ClockWrong", "max(abs(highwater_clock_error_seconds)) > 0", 5, TICKET,
        "the clock of a worker is {{ $value | humanizeDuration }} from the broker's",
        {"highwater_clock_error_seconds": "90x20"},
    ),
    Alert(
        "RedisDown", "min by (instance) (highwater_redis_up) == 0", 2, TICKET,
        "{{ $labels.instance }} cannot reach Redis: reads continue from PostgreSQL, more slowly",
        {'highwater_redis_up{instance="api:8080"}': "0x10"},
    ),
    Alert(
        "RebuildsFailing",
        'sum(rate(highwater_rebuilds_total{outcome=~"failed|delayed"}[15m])) / sum(rate(highwater_rebuilds_total[15m])) > 0.05',
        15, TICKET,
        "{{ $value | humanizePercentage }} of the rebuilds fail or are delayed",
        {
            'highwater_rebuilds_total{outcome="rebuilt"}': "0+8x60",
            'highwater_rebuilds_total{outcome="failed"}': "0+2x60",
        },
        fires_at=35,
    ),
    Alert(
        "QueryBacklog", "max(highwater_query_backlog) > 100", 10, TICKET,
        "{{ $value }} queries wait for a slot",
        {"highwater_query_backlog": "101x20"},
    ),
    Alert(
        "SecurityRecordsLost", 'sum(increase(highwater_security_actions_total{outcome="lost"}[1h])) > 0', 0, PAGE,
        "{{ $value }} records of privileged or refused actions were lost",
        {'highwater_security_actions_total{outcome="lost"}': "0 0 0 1x20"},
        fires_at=10,
    ),
    Alert(
        "SpansDropped", 'sum by (instance, outcome) (rate(highwater_spans_total{outcome!="exported"}[15m])) > 0', 15, TICKET,
        "traces of {{ $labels.instance }} are incomplete: spans are {{ $labels.outcome }}",
        {'highwater_spans_total{outcome="dropped", instance="connect:8090"}': "0+5x60"},
        fires_at=35,
    ),
)  # fmt: skip
