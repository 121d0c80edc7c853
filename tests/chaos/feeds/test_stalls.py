"""Stalls: PostgreSQL ends every connection, the broker falls silent, PostgreSQL falls silent; no role ends and nothing is lost.

A part that is killed refuses connections, and clients say so at once. One that is stopped by SIGSTOP accepts them and says
nothing, as a saturated host or a paused virtual machine does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import httpx2
import psutil
import pytest
from confluent_kafka import Producer

from tests.acceptance.feeds.test_feeds import INGESTED, heads, insights, rebuilt
from tests.product import Product

pytestmark = pytest.mark.long

ROLES = ("worker", "sinks", "workers", "materializers", "api")
# Longer than a request of the admin client, a consumer's session and a producer's delivery, which all end meanwhile.
BROKER_SILENT_SECONDS = 16.0
# Each time a batch, a look or a renewal of a lease is cut off at another place.
TERMINATIONS = 12
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = current_user
"""
# The timeout of a client; the API must have answered by then.
PATIENCE_SECONDS = 20.0


class Load:
    """Publishes insights of one channel without a pause, through a client that waits for its broker."""

    def __init__(self, product: Product, channel: str) -> None:
        self.count = 0
        self._channel = channel
        self._codec = product.codec()
        self._producer = Producer(product.producer_config())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="load")

    def _publish(self) -> None:
        while not self._is_over.wait(0.02):
            (event,) = insights(self._channel, 1, first=self.count)
            value = self._codec.encode(INGESTED, {**event, "ts": 1_790_000_000_000})
            self._producer.produce(INGESTED, value, self._channel)
            self.count += 1
            self._producer.poll(0)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and wait until the broker has everything."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


@contextlib.contextmanager
def silent(product: Product, part: str) -> Iterator[None]:
    """A part with all its processes, stopped."""
    process = psutil.Process(product.parts.process(part).pid)
    with product.frozen(process.pid, *(child.pid for child in process.children(recursive=True))):
        yield


def answer(product: Product, path: str) -> httpx2.Response:
    """GET, as a client with a short timeout."""
    return product.http.get(path, timeout=PATIENCE_SECONDS)


def test_stalls_end_no_role_and_lose_nothing(product: Product) -> None:
    """Roles keep their processes through cut connections and silent parts; reads are answered; all events arrive, none as bad."""
    product.publish(INGESTED, insights("stall", 30))
    product.subscribe("stella", ["stall"])
    rebuilt(product, "stella")
    product.until_ready()
    before = {role: product.role_pid(role) for role in ROLES}
    dead = sum(product.ends(f"{INGESTED}.dlq").values())
    wait = threading.Event()

    with Load(product, "stalled") as load:
        for _ in range(TERMINATIONS):
            product.sql(TERMINATE)
            wait.wait(0.5)  # work begins again, so that the next one cuts it off
        product.until_ready()

        with silent(product, "kafka"):
            product.until(lambda: answer(product, "/readyz").status_code == 503, "readiness does not say it")
            assert answer(product, "/readyz").json()["not_ready"] == ["kafka"]
            wait.wait(BROKER_SILENT_SECONDS)  # the fact under test is a silence of this length
        product.until_ready()

        paths = [f"/api/users/stella/{what}" for what in ("feed", "pending", "clusters", "subscriptions")]
        paths += [
            "/api/channels/stall",
            "/api/channels",
            "/api/queries/metrics",
            "/readyz",
            "/api/chunks/search?ns=none&q=x",
        ]
        with silent(product, "database"), ThreadPoolExecutor(2 * len(paths)) as clients:
            for told in clients.map(lambda path: answer(product, path), [*paths, *paths]):
                assert told.status_code in (200, 503), (told.url, told.text)
                assert told.status_code == 200 or "retry-after" in told.headers, told.url
        product.until_ready()

    product.until(lambda: heads(product, ["stalled"]) == {"stalled": load.count}, "insights are missing", 120)
    assert sum(product.ends(f"{INGESTED}.dlq").values()) == dead
    product.subscribe("stella", ["stall", "stalled"])
    rebuilt(product, "stella")
    assert {role: product.role_pid(role) for role in ROLES} == before
