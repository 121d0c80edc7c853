"""The cost of a small load of the whole product, per unit of work: processor seconds of roles, bytes in the log and in
PostgreSQL.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
import psutil

from tests.product import Product

_WORDS = (
    *("rates", "bank", "growth", "match", "market", "energy", "court", "study"),
    *("vaccine", "climate", "chip", "trade", "port", "league", "budget", "harvest"),
)


@dataclass(frozen=True)
class Measured:
    """The cost per unit."""

    sink_cpu_seconds: float  # an insight
    worker_cpu_seconds: float  # an insight
    database_bytes: float  # an insight, with its vector and indexes
    log_bytes: float  # an insight, in all topics
    rebuild_cpu_seconds: float  # a rebuild
    user_database_bytes: float  # a user, with subscriptions and a version of clusters
    read_cpu_seconds: float  # a read of a feed


def _cpu(product: Product, name: str) -> float:
    process = psutil.Process(product.role_pid(name))
    found = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        found += times.user + times.system
    return found


def _database(product: Product) -> int:
    (row,) = product.sql("SELECT pg_database_size(current_database()) AS bytes")
    return int(row["bytes"])


def _log(product: Product) -> int:
    folder = product.parts.data_dir / "kafka"
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.log") if "__" not in path.parent.name)


def _metric(product: Product, role: str, name: str) -> float:
    part = next(part for part in product.status()["parts"] if part["name"] == role)
    text = httpx2.get(part["ready_url"].rpartition("/")[0] + "/metrics", trust_env=False).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def measure(
    product: Product, *, users: int, channels: int, insights: int, reads: int
) -> tuple[Measured, Mapping[str, float]]:
    """Publish, let everything settle, and divide; return the counts too."""
    names = [f"capacity-{uuid.uuid4().hex[:6]}-{number}" for number in range(channels)]
    people = [f"capacity-{uuid.uuid4().hex[:8]}" for _ in range(users)]
    base = _database(product)
    for number, user in enumerate(people):  # two channels each, so that a rebuild is of some hundred insights
        product.subscribe(user, [names[number % channels], names[(number + 1) % channels]])
    product.until(lambda: product.sql("SELECT count(*) FROM outbox")[0]["count"] == 0, "users are told", 120)
    with_users = _database(product)
    roles = ("sinks", "workers", "worker", "materializers")
    before = {role: _cpu(product, role) for role in roles}
    log_before = _log(product)
    rebuilds_before = _metric(product, "workers", "highwater_rebuilds_total")
    rows = [
        {
            "insight_id": uuid.uuid4().hex, "channel_id": names[number % channels], "ts": "2026-11-20T12:00:00Z",
            "text": " ".join(_WORDS[(number * step) % len(_WORDS)] for step in range(1, 25)) + f" {number}",
        }
        for number in range(insights)
    ]  # fmt: skip
    product.publish("feeds.insight-ingested", rows)
    query = "SELECT count(*) FROM insights WHERE channel_id = ANY ($1::text[])"
    product.until(lambda: product.sql(query, names)[0]["count"] == insights, "insights are stored", 300)
    sink_cpu = _cpu(product, "sinks") - before["sinks"]
    log_bytes = _log(product) - log_before
    with_insights = _database(product)
    product.until(
        lambda: _metric(product, "workers", "highwater_rebuilds_total") - rebuilds_before >= users,
        "users are rebuilt",
        300,
    )
    rebuilds = _metric(product, "workers", "highwater_rebuilds_total") - rebuilds_before
    workers_cpu, worker_cpu = _cpu(product, "workers") - before["workers"], _cpu(product, "worker") - before["worker"]
    with_clusters = _database(product)
    api_before = _cpu(product, "api")
    for number in range(reads):
        assert product.get(f"/api/users/{people[number % users]}/feed").status_code in (200, 404)
    api_cpu = _cpu(product, "api") - api_before
    found = Measured(
        sink_cpu_seconds=sink_cpu / insights,
        worker_cpu_seconds=worker_cpu / insights,
        database_bytes=(with_insights - with_users) / insights,
        log_bytes=log_bytes / insights,
        rebuild_cpu_seconds=workers_cpu / max(1, rebuilds),
        user_database_bytes=(with_users - base + with_clusters - with_insights) / users,
        read_cpu_seconds=api_cpu / reads,
    )
    counted = {"rebuilds": rebuilds, "users": users, "channels": channels, "insights": insights}
    return found, json.loads(json.dumps(counted))
