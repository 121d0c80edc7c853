"""The history of figures on real parts: one recorder at a time, a day of rows, gaps, and an end that leaves nothing behind.

The test with the API comes last: its own recorder would compete with those of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from highwater.api.core.services import Services, make_services
from highwater.api.history.recorder import HistoryRecorder
from highwater.connectors.kafka.groups import lags
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import to_datetime
from highwater.streams.history import KEPT_MS, SAMPLE_MS, WATCHED_MAX, step_of
from highwater.streams.settings import Settings
from tests.conftest import Stack
from tests.integration.api_server import NOW, MovableClock, Seeds
from tests.integration.broker.making import COUNT, foreign_topic
from tests.integration.connecting import fresh, send, until

NOW_MS = int(NOW.timestamp() * 1000)
MINUTES = "SELECT at_ms, figures::text FROM history_samples ORDER BY at_ms"


@pytest.fixture
async def services(own_settings: Callable[..., Settings], seeds: Seeds) -> AsyncIterator[Services]:
    """The services of an API process, without an API, and without rows."""
    await seeds.run("DELETE FROM history_samples")
    made = make_services(own_settings(), MovableClock())
    await made.start()
    await until(lambda: made.database.ready and made.kafka.ready, "the parts are ready")

    async def is_answered() -> bool:
        try:
            return bool(await lags(made.settings.kafka_client(), made.database.require()))
        except UnavailableError:
            return False

    await until(is_answered, "the broker, which has just begun, gives offsets of groups")
    yield made
    await made.close()


async def minutes(seeds: Seeds) -> list[int]:
    """When the minutes that are stored began."""
    return [row["at_ms"] for row in await seeds.run(MINUTES)]


async def test_one_of_two_recorders_records_and_the_other_follows_when_it_ends(
    services: Services, seeds: Seeds
) -> None:
    """Each minute is stored once, by the holder of the lease; a rate needs two minutes of one recorder."""
    first, second = HistoryRecorder(services), HistoryRecorder(services)
    assert await first.record(NOW_MS)
    assert not await second.record(NOW_MS)
    send(services.settings.kafka_client()["bootstrap.servers"], "feeds.user-active", [("ada", b"x")])
    assert await first.record(NOW_MS + SAMPLE_MS)
    assert not await second.record(NOW_MS + SAMPLE_MS)
    await first.close()
    assert await second.record(NOW_MS + 2 * SAMPLE_MS)
    begin = step_of(NOW_MS) - SAMPLE_MS
    assert await minutes(seeds) == [begin, begin + SAMPLE_MS, begin + 2 * SAMPLE_MS]
    figures = [row["figures"] for row in await seeds.run(MINUTES)]
    assert ['"rate"' in one for one in figures] == [False, True, False]
    assert '"feeds.user-active": ' in figures[1]
    assert all('"lag_seconds"' in one for one in figures)
    await second.close()


async def test_rows_older_than_a_day_are_deleted(services: Services, seeds: Seeds) -> None:
    """The row of the same time yesterday is still there; the one before it is not."""
    begin = step_of(NOW_MS) - SAMPLE_MS
    for age_ms in (0, KEPT_MS, KEPT_MS + SAMPLE_MS, 3 * KEPT_MS):
        await seeds.insert("history_samples", at_ms=begin - age_ms, figures="{}")
    recorder = HistoryRecorder(services)
    assert await recorder.record(NOW_MS)
    assert await minutes(seeds) == [begin - KEPT_MS, begin]
    await recorder.close()


async def test_stages_are_timed_from_their_capture(services: Services, seeds: Seeds) -> None:
    """The stages that ended within the minute, as the events of runs report them."""
    run = "00000000-0000-4000-8000-000000000001"
    for place, (status, seconds) in enumerate((("ANALYZING", -90), ("ANALYZED", -40), ("RESPONDING", -30))):
        await seeds.insert(
            "run_events", run_id=run, position=f"q/0/{place}", status=status, operation="x", attempt=1,
            at=to_datetime(NOW_MS + seconds * 1000),
        )  # fmt: skip
    recorder = HistoryRecorder(services)
    assert await recorder.record(NOW_MS)
    assert '"stage_seconds": {"analyzer": 50' in (await seeds.run(MINUTES))[0]["figures"]
    await recorder.close()


async def test_nothing_is_measured_while_postgresql_is_unavailable(own_settings: Callable[..., Settings]) -> None:
    """Kafka is not queried for a sample that could not be stored."""
    services = make_services(own_settings(), MovableClock())
    recorder = HistoryRecorder(services)
    assert not await recorder.record(NOW_MS)
    assert recorder.measured == 0
    await services.close()


async def test_a_recorder_ends_at_once(services: Services) -> None:
    """Cancelled before its first step, while it waits, and while it measures; no task and no coroutine is left."""
    for steps in (0, 1, 5, 20):
        recorder = HistoryRecorder(services)
        recorder.start()
        measuring = asyncio.create_task(recorder.record(NOW_MS))
        for _ in range(steps):
            await asyncio.sleep(0)
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        await recorder.close()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "history"] == []


async def test_a_minute_without_a_sample_is_null(http: httpx2.AsyncClient, seeds: Seeds) -> None:
    """The API answers with a value per minute; a span of more than a day, and one that ends before it begins, are refused."""
    begin = step_of(NOW_MS)
    await seeds.run("DELETE FROM history_samples")
    for minute, rate in ((0, 5), (1, 7), (3, 2)):
        row = f'{{"rate": {{"feeds.user-active": {rate}}}}}'
        await seeds.insert("history_samples", at_ms=begin + minute * SAMPLE_MS, figures=row)
    span = {"from": iso_from_ms(begin), "to": iso_from_ms(begin + 4 * SAMPLE_MS)}
    answer = await http.get("/api/history", params={"metric": "rate", **span})
    assert answer.status_code == 200
    assert answer.json()["series"] == [{"name": "feeds.user-active", "values": [5.0, 7.0, None, 2.0]}]
    assert answer.json()["step_seconds"] == 60
    assert (await http.get("/api/history", params={"metric": "lag", **span})).json()["series"] == []
    for wrong in (
        {"metric": "no"},
        {"metric": "lag", "from": span["to"], "to": span["from"]},
        {"metric": "lag", "to": "x"},
    ):
        assert (await http.get("/api/history", params=wrong)).status_code == 422


async def test_a_group_and_a_topic_of_others_are_recorded_once_somebody_looked(
    http: httpx2.AsyncClient, services: Services, seeds: Seeds, stack: Stack
) -> None:
    """From the first request on, by partition; the 20 that were requested last, for a day; a missing one is 404."""
    await seeds.run("DELETE FROM history_watched")
    begin = step_of(NOW_MS)
    span = {"from": iso_from_ms(begin - SAMPLE_MS), "to": iso_from_ms(begin + 2 * SAMPLE_MS)}
    with foreign_topic(str(stack.kafka), fresh("orders")) as name:
        paths = [f"/api/{kind}/{name}/history" for kind in ("groups", "topics")]
        for path in paths:
            answer = await http.get(path, params=span)
            assert (answer.status_code, answer.json()["series"]) == (200, [])
        for number in range(WATCHED_MAX + 1):
            looked_at_ms = NOW_MS - 2 * KEPT_MS if number == 0 else NOW_MS - number
            await seeds.insert("history_watched", kind="topic", name=f"t{number}", looked_at_ms=looked_at_ms)
        await seeds.run("UPDATE history_watched SET looked_at_ms = $1 WHERE name = $2", NOW_MS, name)
        recorder = HistoryRecorder(services)
        await seeds.run(
            "DELETE FROM leases WHERE kind = 'history'"
        )  # the API's own recorder has it from its first minute on
        assert await recorder.record(NOW_MS)
        send(services.settings.kafka_client()["bootstrap.servers"], name, [("k", b"x")] * 3)
        assert await recorder.record(NOW_MS + SAMPLE_MS)
        await recorder.close()
        groups, topics = [(await http.get(path, params=span)).json() for path in paths]
        assert {one["name"]: one["values"][:2] for one in groups["series"]} == {
            "all partitions": [float(COUNT - 2), float(COUNT + 1)],
            f"{name}/0": [float(COUNT - 2), float(COUNT + 1)],
        }
        ((rate,),) = [[one["values"] for one in topics["series"]]]
        assert (rate[0], rate[1] > 0) == (None, True)
    kept = {row["name"] for row in await seeds.run("SELECT name FROM history_watched WHERE kind = 'topic'")}
    assert kept == {name, *(f"t{number}" for number in range(1, WATCHED_MAX))}
    own = (await http.get("/api/groups/insights/history", params=span)).json()
    assert own["series"][0]["name"] == "all partitions"
    assert (await http.get("/api/topics/feeds.user-active/history", params=span)).json()["metric"] == "topic_rate"
    for path in ("/api/groups/no-such/history", "/api/topics/no-such/history"):
        assert (await http.get(path)).status_code == 404
