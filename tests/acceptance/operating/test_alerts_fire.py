"""A real Prometheus over the running product: faults that are made fire their alerts. On demand: it takes a minute."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from confluent_kafka import Producer

from tests import ROOT
from tests.integration.connecting import free_port
from tests.product import Product

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("HIGHWATER_ALERTS" not in os.environ, reason="set HIGHWATER_ALERTS=1: it takes a minute"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]


@contextlib.contextmanager
def prometheus(product: Product, folder: Path) -> Iterator[httpx2.Client]:
    """Collects each role every second, by the shipped rules without their `for`."""
    targets = [
        re.sub(r"^https?://|/readyz$", "", part["ready_url"])
        for part in product.status()["parts"]
        if part["kind"] == "role" and part.get("ready_url")
    ]
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    (folder / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 0s", rules), encoding="utf-8")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yml]\n"
        f"scrape_configs: [{{job_name: highwater, static_configs: [{{targets: {targets!r}}}]}}]\n",
        encoding="utf-8",
    )
    port = free_port()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            product.until(lambda: http.get("/-/ready").status_code == 200, "prometheus is not ready")
            yield http
    finally:
        process.terminate()
        process.wait(30)


def firing(http: httpx2.Client) -> set[str]:
    """The alerts that fire."""
    alerts = http.get("/api/v1/alerts").json()["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def test_faults_fire_their_alerts(product: Product, tmp_path: Path):
    """A frozen worker, Redis that is stopped and a bad event fire theirs, which end when it is corrected; none fires before."""
    ours = {"RoleDown", "RedisDown", "DeadLettersOpen"}
    with prometheus(product, tmp_path) as http:
        product.until(
            lambda: http.get("/api/v1/query", params={"query": "sum(up)"}).json()["data"]["result"], "no samples"
        )
        product.until(lambda: not firing(http) & {"RoleDown", "RedisDown"}, f"{firing(http)} at first")

        with product.frozen(product.role_pid("worker")):
            product.until(lambda: "RoleDown" in firing(http), "a frozen role fires nothing")
        product.until(lambda: "RoleDown" not in firing(http), "it answers again")

        with product.without_redis():
            product.until(lambda: "RedisDown" in firing(http), "Redis that is stopped fires nothing")
        product.until(lambda: "RedisDown" not in firing(http), "Redis is back")

        producer = Producer(product.producer_config())
        producer.produce("feeds.plan-changed", b"no event", uuid.uuid4().hex)
        assert producer.flush(30) == 0
        product.until(lambda: "DeadLettersOpen" in firing(http), "a dead letter fires nothing")
        product.cli("dlq", "drop", "feeds.plan-changed", "--yes")
        product.until(lambda: "DeadLettersOpen" not in firing(http), "the letter was dropped")
        assert not firing(http) & ours
