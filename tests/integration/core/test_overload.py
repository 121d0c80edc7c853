"""Writes are refused with 429 and `Retry-After` while too much waits behind the log, and taken again when it has drained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import httpx2
import pytest

from highwater.api.core import overload
from highwater.api.core.overload import Overload
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.postgres.pool import open_pool
from highwater.streams.overload import RETRY_AFTER_SECONDS, Bounds, Load
from highwater.streams.settings import Settings
from tests.integration.api_server import Api, Seeds, eventually, running_api
from tests.integration.connecting import fresh, send

ROWS_MAX, EVENTS_MAX = 5, 20
TOPIC, SINK = "feeds.user-active", "users"


@pytest.fixture(scope="module")
def api(own_settings: Callable[..., Settings]) -> Iterator[Api]:
    """An API with low bounds."""
    bounds = {"OUTBOX_ROWS": ROWS_MAX, "OUTBOX_SECONDS": 120, "LAG_EVENTS": EVENTS_MAX}
    settings = own_settings(**{f"HIGHWATER_SHED_{name}": bound for name, bound in bounds.items()})
    with running_api(settings) as running:
        yield running


def write(http: httpx2.AsyncClient, user: str) -> Awaitable[httpx2.Response]:
    """Publish one event."""
    return http.post(f"/api/events/{TOPIC}", json={"user_id": user, "ts": "2026-11-20T12:00:00Z"})


async def refused(http: httpx2.AsyncClient, reason: str) -> httpx2.Response:
    """The answer, once writes are refused for a reason."""
    answers: list[httpx2.Response] = []

    async def look() -> bool:
        answers.append(await write(http, "ada"))
        return answers[-1].status_code == 429

    await eventually(look, "writes are refused")
    answer = answers[-1]
    assert answer.headers["Retry-After"] == str(RETRY_AFTER_SECONDS)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["reason"] == reason
    assert {one.status_code for one in answers} <= {202, 429}
    return answer


async def taken_again(http: httpx2.AsyncClient) -> None:
    """Wait until a write is taken."""

    async def look() -> bool:
        return (await write(http, "ada")).status_code == 202

    await eventually(look, "writes are taken again")


async def test_a_full_outbox_refuses_writes_until_it_has_drained(http: httpx2.AsyncClient, seeds: Seeds):
    """Also those of jobs and users; never what retracts, and never reads."""
    await taken_again(http)
    await seeds.run(
        "INSERT INTO outbox (shard, topic, headers) SELECT 0, 'feeds.user-changed', '[]' FROM generate_series(1, $1)",
        ROWS_MAX + 1,
    )
    answer = await refused(http, "outbox_rows")
    assert "nothing in this request was accepted" in answer.json()["detail"]
    subscriptions = await http.put("/api/users/ada/subscriptions", json={"channels": ["c"]})
    assert subscriptions.status_code == 429
    erased = {"user_id": "nobody", "ts": "2026-11-20T12:00:00Z"}
    assert (await http.post("/api/events/feeds.user-erased", json=erased)).status_code == 202
    retracted = {"insight_id": "i", "channel_id": "c", "ts": "2026-11-20T12:00:00Z"}
    assert (await http.post("/api/events/feeds.insight-retracted", json=retracted)).status_code == 202
    assert (await http.get("/readyz")).status_code == 200
    shed = [
        line
        for line in (await http.get("/metrics")).text.splitlines()
        if line.startswith("highwater_writes_shed_total{")
    ]
    assert any('reason="outbox_rows"' in line and float(line.rpartition(" ")[2]) >= 2 for line in shed)

    await seeds.run("DELETE FROM outbox")
    await taken_again(http)


async def test_an_event_that_waits_too_long_in_the_outbox_refuses_writes(http: httpx2.AsyncClient, seeds: Seeds):
    """One is enough, however few there are."""
    await taken_again(http)
    await seeds.run(
        "INSERT INTO outbox (shard, topic, headers, added_at)"
        " VALUES (0, 'feeds.user-changed', '[]', now() - interval '1 hour')"
    )
    await refused(http, "outbox_age")
    await seeds.run("DELETE FROM outbox")
    await taken_again(http)


async def test_a_sink_that_is_behind_refuses_its_own_topics(http: httpx2.AsyncClient, seeds: Seeds, stack):
    """Those that other sinks store are taken."""
    await taken_again(http)
    places = send(stack.kafka, TOPIC, [(b"k", b"not read here", None, 0) for _ in range(EVENTS_MAX + 1)])
    await seeds.run(
        'INSERT INTO positions ("group", topic, partition, topic_id, next) VALUES ($1, $2, 0, \'id\', $3)',
        SINK, TOPIC, places[0].offset,
    )  # fmt: skip
    answer = await refused(http, "lag")
    assert SINK in answer.json()["detail"]
    match = {
        "match_id": fresh("m"), "season": "s", "round": "1", "kickoff": "2030-01-01T15:00:00Z", "home": "H", "away": "A",
    }  # fmt: skip
    assert (await http.post("/api/events/league.match-scheduled", json=match)).status_code == 202
    await seeds.run("UPDATE positions SET next = next + 1000000")
    await taken_again(http)


class Counting(Overload):
    """Counts its looks."""

    looks = 0

    async def measure(self) -> Load:
        """Count, and measure."""
        self.looks += 1
        return await super().measure()


async def test_nothing_is_measured_while_nobody_writes(
    own_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    """The looks end some time after the last write, and the next write begins them again."""
    monkeypatch.setattr(overload, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(overload, "_REST_AFTER_SECONDS", 0.2)
    settings = own_settings()
    pool = await open_pool(settings.database)
    watched = Counting(Bounds(1_000_000, 1e9, 1_000_000), lambda: pool, Admin(settings.kafka_client()))
    watched.start()
    try:
        for _ in range(3):
            before = watched.looks

            async def has_looked(before: int = before) -> bool:
                watched.admit(TOPIC)  # again: a look may be in progress that began before it
                return watched.looks > before

            await eventually(has_looked, "a write begins to be measured")

            async def rests() -> bool:
                before = watched.looks
                await asyncio.sleep(0.2)  # ten looks
                return watched.looks == before

            await eventually(rests, "nothing is measured")
    finally:
        await watched.close()
        await pool.close()
