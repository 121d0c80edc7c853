"""Metrics of the pipeline of queries, from a real PostgreSQL, over HTTP and as gauges (R1.38 to R1.41)."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from highwater.api.league.monitor import Monitor
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.queries import metrics as query_metrics
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.errors import UnavailableError
from highwater.streams import telemetry
from highwater.streams.clock import to_ms
from highwater.streams.queries.analysis import finds_context
from tests.conftest import Stack
from tests.integration.api_server import NOW, Api, Seeds, running_api
from tests.integration.databases import make_database

RUN = (
    "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, released, analysis_result, final_context_payload,"
    " position, caused_by, created_at, updated_at, completed_at)"
    " VALUES ($1, gen_random_uuid(), 1, 'q', $2, $3, $4, $5, 'p', 'p', $6, $6, $7)"
)
EVENT = (
    "INSERT INTO run_events (run_id, position, status, archive_status, operation, attempt, at)"
    " VALUES ($1, $2, $3, $4, 'UPDATE', 1, $5)"
)
CALL = (
    "INSERT INTO llm_calls (run_id, stage, attempt, user_id, model, prompt_ids, sends, started_at, ended_at, outcome,"
    " prompt_tokens, completion_tokens, cost_usd)"
    " VALUES ($1, $2, $3, gen_random_uuid(), $4, '{}', $5, $6, $7, $8, $9, $10, $11)"
)


@pytest.fixture
async def seeds(stack: Stack) -> Seeds:
    """A database of the test's own: reports count all there is."""
    return Seeds(await make_database(stack.database, "query_metrics_test"))


@pytest.fixture
async def pool(seeds: Seeds) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """Its pool."""
    async with await open_pool(seeds.url) as opened:
        yield opened


async def a_run(
    seeds: Seeds, status: str, age: float, *, took: float | None = None, found: Any = None, payload: str | None = None
) -> str:
    """A run that was asked `age` seconds ago, and completed after `took`."""
    run_id, began = str(uuid.uuid4()), NOW - timedelta(seconds=age)
    analysis = None if found is None else json.dumps({"context_found": found})
    ended = None if took is None else began + timedelta(seconds=took)
    await seeds.run(RUN, run_id, status, status in ("COMPLETED", "FAILED"), analysis, payload, began, ended)
    return run_id


async def events(seeds: Seeds, run_id: str, *steps: tuple[str, float]) -> None:
    """Its way: statuses, or `archive:` statuses, with their age in seconds."""
    for number, (status, age) in enumerate(steps):
        archive = status.removeprefix("archive:") if status.startswith("archive:") else None
        told = "COMPLETED" if archive else status
        await seeds.run(EVENT, run_id, f"p{number}", told, archive, NOW - timedelta(seconds=age))


async def a_call(
    seeds: Seeds,
    stage: str,
    outcome: str | None,
    age: float,
    took: float = 1.0,
    *,
    model: str = "small",
    attempt: int = 1,
    sends: int = 1,
    tokens: tuple[int | None, int | None] = (None, None),
    cost: Any = None,
) -> None:
    """A call of the model."""
    began = NOW - timedelta(seconds=age)
    ended = None if outcome is None else began + timedelta(seconds=took)
    run_id = str(uuid.uuid4())
    await seeds.run(CALL, run_id, stage, attempt, model, sends, began, ended, outcome, *tokens, cost)


@pytest.fixture
def api(stack: Stack, seeds: Seeds, redis_url: str) -> Iterator[Api]:
    """An API on that database, with keys."""
    keys = "viewer:see,editor:change"
    with running_api(stack.settings(DATABASE_URL=seeds.url, REDIS_URL=redis_url, HIGHWATER_API_KEYS=keys)) as running:
        yield running


async def report(pool: Any, minutes: int = 60) -> dict[str, Any]:
    """As of the time of the seeds."""
    return await query_metrics.report(pool, to_ms(NOW), minutes)


async def test_of_nothing_nothing_is_known(pool: Any) -> None:
    """Counts are 0, and unmeasured values are null."""
    found = await report(pool)
    assert found["pipeline"] == {
        "requests": 0, "requests_per_minute": 0.0, "completed": 0, "failed": 0, "cancelled": 0, "failed_rate": None,
        "mean_ms": None, "p95_ms": None, "backlog": 0,
    }  # fmt: skip
    nothing = {"mean_ms": None, "mean_llm_ms": None, "retry_rate": None}
    assert found["modules"] == {
        "analyzer": {**nothing, "context_found_share": None},
        "assembler": {**nothing, "mean_context_characters": None},
        "responder": nothing,
        "archivist": {**nothing, "stored": 0, "failed": 0},
    }
    counts = dict.fromkeys(("calls", "sends", "prompt_tokens", "completion_tokens", "rate_limit_hits", "timeouts"), 0)
    assert found["llm"] == {**counts, "cost_usd": None, "by_model": []}
    assert set(found["database"]) == {"pipeline_runs", "raw_logs", "lsm_storage"}


@pytest.mark.requirement("R1.38")
async def test_the_pipeline_is_told_of_its_span(seeds: Seeds, pool: Any) -> None:
    """Times, failures and requests of runs asked within it; the backlog is all that wait, whenever they came."""
    for took in (1.0, 2.0, 3.0, 10.0):
        await a_run(seeds, "COMPLETED", 600, took=took)
    await a_run(seeds, "FAILED", 600)
    for _ in range(2):
        cancelled = await a_run(seeds, "FAILED", 600)
        await seeds.change("pipeline_runs", "id", cancelled, is_cancelled=True)
    await a_run(seeds, "ANALYZING", 10)
    await a_run(seeds, "NEW", 5)
    for age in (3_601, -1):  # before, and after
        await a_run(seeds, "COMPLETED", age, took=1_000)
        await a_run(seeds, "FAILED", age)
    await a_run(seeds, "NEW", 100_000)
    found = (await report(pool))["pipeline"]
    assert found == {
        "requests": 9, "requests_per_minute": round(9 / 60, 3), "completed": 4, "failed": 1, "cancelled": 2, "failed_rate": 0.2,
        "mean_ms": 4_000.0, "p95_ms": 8_950.0, "backlog": 2,
    }  # fmt: skip
    assert (await report(pool, 1_440))["pipeline"]["requests"] == 11
    assert (await report(pool, 1))["pipeline"]["requests"] == 2


@pytest.mark.requirement("R1.39")
async def test_stages_are_told_from_capture_to_end(seeds: Seeds, pool: Any) -> None:
    """A stage that was begun again counts from its first capture; one of which half is outside does not count."""
    first, second, third = [await a_run(seeds, "COMPLETED", 600, took=1) for _ in range(3)]
    await events(
        seeds, first, ("NEW", 100), ("ANALYZING", 99), ("ANALYZED", 98), ("ASSEMBLING", 98), ("READY", 95),
        ("RESPONDING", 95), ("COMPLETED", 90), ("archive:STORED", 88),
    )  # fmt: skip
    await events(
        seeds, second, ("ANALYZING", 50), ("NEW", 49), ("ANALYZING", 48), ("ANALYZED", 47), ("COMPLETED", 40),
        ("archive:FAILED", 30),
    )  # fmt: skip
    await events(seeds, third, ("ANALYZING", 4_000), ("ANALYZED", 10))
    found = (await report(pool))["modules"]
    means = {stage: of["mean_ms"] for stage, of in found.items()}
    assert means == {"analyzer": 2_000.0, "assembler": 3_000.0, "responder": 5_000.0, "archivist": 2_000.0}
    assert (found["archivist"]["stored"], found["archivist"]["failed"]) == (1, 1)


@pytest.mark.requirement("R1.39")
async def test_contexts_are_told(seeds: Seeds, pool: Any) -> None:
    """The share of analyses that found one, and the length of the responder's input."""
    forms: list[Any] = [
        {},
        {"lsm_ids": []},
        {"lsm_ids": [], "note": " \n", "of": {"x": None, "y": False}},
        {"a": {"b": ["x"]}},
    ]
    for form in forms:
        await a_run(seeds, "ANALYZED", 5, found=form)
    await a_run(seeds, "ANALYZED", 5, found={"is": True})
    await a_run(seeds, "READY", 5, found={"lsm_ids": [7]}, payload="x" * 100)
    await a_run(seeds, "READY", 5, found={"lsm_ids": [7]}, payload="é" * 300)
    await a_run(seeds, "NEW", 5)
    await a_run(seeds, "READY", 4_000, found={"lsm_ids": [7]}, payload="x" * 1_000)
    found = (await report(pool))["modules"]
    named = [finds_context({"context_found": form}) for form in forms]
    assert named == [False, False, False, True]
    assert found["analyzer"]["context_found_share"] == round(4 / 7, 4)
    assert found["assembler"]["mean_context_characters"] == 200.0


@pytest.mark.requirement("R1.41")
async def test_calls_are_told_by_stage_and_model(seeds: Seeds, pool: Any) -> None:
    """Calls, sends, tokens, cost, rate limits and timeouts; times of those that were answered, and how many are repeats."""
    await a_call(seeds, "responder", "answered", 100, 2.0, model="large", tokens=(1_000, 50), cost=0.5, sends=2)
    await a_call(seeds, "responder", "timeout", 90, 30.0, model="large")
    await a_call(seeds, "responder", "answered", 60, 4.0, model="large", attempt=2, tokens=(10, 5), cost=0.25)
    await a_call(seeds, "responder", None, 1, model="large", attempt=3)
    await a_call(seeds, "analyzer", "rate_limited", 50)
    await a_call(seeds, "analyzer", "answered", 4_000, tokens=(9, 9), cost=9)
    found = await report(pool)
    assert found["modules"]["responder"] == {"mean_ms": None, "mean_llm_ms": 3_000.0, "retry_rate": 0.5}
    assert found["modules"]["analyzer"]["retry_rate"] == 0.0
    large = {
        "calls": 4, "sends": 5, "prompt_tokens": 1_010, "completion_tokens": 55, "rate_limit_hits": 0, "timeouts": 1,
        "cost_usd": 0.75,
    }  # fmt: skip
    assert found["llm"]["by_model"][0] == {"model": "large", **large}
    assert (found["llm"]["by_model"][1]["model"], found["llm"]["by_model"][1]["cost_usd"]) == ("small", None)
    assert {name: found["llm"][name] for name in large} == {**large, "calls": 5, "sends": 6, "rate_limit_hits": 1}


@pytest.mark.requirement("R1.40")
async def test_sizes_grow_with_what_is_stored(seeds: Seeds, pool: Any) -> None:
    """Bytes are exact at any moment, rows once PostgreSQL has looked."""
    before = (await report(pool))["database"]["pipeline_runs"]["bytes"]
    for _ in range(20):
        await a_run(seeds, "READY", 5, payload=uuid.uuid4().hex * 400)
    await seeds.run("ANALYZE pipeline_runs")
    found = (await report(pool))["database"]["pipeline_runs"]
    assert found["rows_estimated"] == 20
    assert found["bytes"] > before
    assert (await query_metrics.store_bytes(pool))["pipeline_runs"] == found["bytes"]


@pytest.mark.requirement("R1.40")
async def test_lines_and_memories_are_counted(seeds: Seeds, pool: Any) -> None:
    """Rows and bytes of `raw_logs` and `lsm_storage`."""
    user = uuid.uuid4()
    for number in range(30):
        await seeds.run(
            "INSERT INTO raw_logs (user_id, message_type, content, pipeline_run_id, ordinal, created_at) "
            "VALUES ($1, 'user_query', 'x', $2, 1, now())",
            user, uuid.uuid4(),
        )  # fmt: skip
        if number < 20:
            await seeds.run(
                "INSERT INTO lsm_storage (user_id, time_bucket_start, time_bucket_end, tags, summary, raw_log_ids, "
                "pipeline_run_id, ordinal, created_at) VALUES ($1, now(), now(), '{}', 'x', '{}', $2, 1, now())",
                user, uuid.uuid4(),
            )  # fmt: skip
    await seeds.run("ANALYZE raw_logs, lsm_storage")
    found = (await report(pool))["database"]
    assert (found["raw_logs"]["rows_estimated"], found["lsm_storage"]["rows_estimated"]) == (30, 20)
    assert min(found["raw_logs"]["bytes"], found["lsm_storage"]["bytes"]) > 0


async def test_gauges_follow(seeds: Seeds, pool: Any) -> None:
    """The backlog at each sample, sizes on request; an unknown backlog is NaN, not 0."""
    monitor = Monitor(RedisLink(None), lambda: pool, lambda: 0)
    await a_run(seeds, "NEW", 5)
    telemetry.QUERY_STORE_BYTES.clear()
    await monitor.export_queries(has_sizes=False)
    assert telemetry.QUERY_BACKLOG._value.get() == 1
    assert list(telemetry.QUERY_STORE_BYTES.collect())[0].samples == []  # noqa: RUF015
    await monitor.export_queries(has_sizes=True)
    told = {sample.labels["table"]: sample.value for sample in telemetry.QUERY_STORE_BYTES.collect()[0].samples}
    assert told == await query_metrics.store_bytes(pool)
    assert set(told) == {"pipeline_runs", "raw_logs", "lsm_storage", "llm_calls", "run_events"}

    def away() -> Any:
        raise UnavailableError

    await Monitor(RedisLink(None), away, lambda: 0).export_queries(has_sizes=True)
    assert str(telemetry.QUERY_BACKLOG._value.get()) == "nan"


async def test_metrics_are_read_over_http(seeds: Seeds, api: Api) -> None:
    """By a viewer, of 60 minutes or the requested number, by the product's clock."""
    api.clock.offset_ms += to_ms(NOW) - api.clock()
    await a_run(seeds, "COMPLETED", 120, took=1.5)
    async with api.client("see") as http:
        answer = await http.get("/api/queries/metrics")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        found = answer.json()
        assert (found["minutes"], found["pipeline"]["mean_ms"]) == (60, 1_500.0)
        assert set(found) == {"minutes", "pipeline", "modules", "database", "llm"}
        one = (await http.get("/api/queries/metrics", params={"minutes": 1})).json()
        assert (one["minutes"], one["pipeline"]["requests"]) == (1, 0)
        api.clock.offset_ms += 3_600_000
        assert (await http.get("/api/queries/metrics")).json()["pipeline"]["requests"] == 0
        for wrong in ("0", "1441", "-5", "x", "1.5", ""):
            assert (await http.get("/api/queries/metrics", params={"minutes": wrong})).status_code == 422, wrong
    async with api.client() as http:
        assert (await http.get("/api/queries/metrics")).status_code == 401
        assert "highwater_query_backlog" in (await http.get("/metrics")).text
