"""Usage from a job to PostgreSQL and back: once a job, absolute, and never falling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis import Redis

from highwater.connectors.identity.statements import QUERIES as METER
from highwater.connectors.jobs.sink_usage import UsageSink
from highwater.connectors.jobs.usage import Amounts, recompute_usage, usage_of
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.pool import open_pool, transaction
from highwater.deploy.local.stack import Addresses
from highwater.schemas.jobs import USAGE_FLUSHED, USAGE_RECORDED
from highwater.streams.clock import to_datetime
from highwater.streams.models.costs import parse_prices
from tests.conftest import Stack
from tests.integration.agents import Kafka, Worker, empty, until
from tests.integration.api_server import Api, Seeds
from tests.integration.commands import run
from tests.integration.connecting import event
from tests.integration.databases import address_of, own_database
from tests.integration.jobs.making import jobs
from tests.unit.jobs.test_usage import Case, used

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
QUARTER_SECONDS = 15 * 60
PERIOD = "2026-11"


@pytest.fixture
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """An empty database."""
    async with own_database(stack) as surroundings:
        yield surroundings


async def apply(pool: asyncpg.Pool[asyncpg.Record], *values: Any) -> list[str]:
    """A batch of flushed totals, as the consumer passes it to the sink; reasons of the refused ones."""
    sink = UsageSink()
    events = [event(USAGE_FLUSHED, value, offset=place) for place, value in enumerate(values)]
    prepared = await sink.prepare(events)
    async with transaction(pool) as tx:
        return [dead.reason for dead in await sink.apply(tx, events, prepared)]


def totals(upto_seq: int, **more: Any) -> dict[str, Any]:
    """Totals of an organization that used 29 cents a deck."""
    return {
        "organization_id": "acme", "period": PERIOD, "upto_seq": upto_seq, "presentations": upto_seq,
        "slides": 15 * upto_seq, "tokens": 20_000 * upto_seq, "cost_cents": 29 * upto_seq, "at": NOON + upto_seq, **more,
    }  # fmt: skip


async def records(pool: asyncpg.Pool[asyncpg.Record]) -> list[tuple[Any, ...]]:
    """The stored records."""
    rows = await pool.fetch("SELECT * FROM usage_records ORDER BY organization_id, period")
    return [(row["organization_id"], row["period"], row["upto_seq"], row["cost_cents"], row["slides"]) for row in rows]


async def deck(run: Any, org: str, cents: int, *, at_ms: int = NOON, slides: int = 15, decks: int = 1) -> str:
    """The counted usage of a deck of 20,000 tokens, as stored at its end; `run` executes a statement."""
    job_id = str(uuid.uuid4())
    period = f"{to_datetime(at_ms):%Y-%m}"
    await run(METER["count_usage"], org, period, job_id, decks, slides, 20_000, cents, to_datetime(at_ms))
    return job_id


# -- the sink ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.37")
async def test_a_repeat_never_doubles_and_a_lower_one_never_lowers(context: ProcessContext):
    """In any order, also within a batch: the highest of each is stored."""
    await apply(context.pool, totals(2), totals(3), totals(1))
    await apply(context.pool, totals(3))
    await apply(context.pool, totals(2), totals(1, organization_id="umbrella"), totals(1, period="2026-12"))
    expected = [("acme", PERIOD, 3, 87, 45), ("acme", "2026-12", 1, 29, 15), ("umbrella", PERIOD, 1, 29, 15)]
    assert await records(context.pool) == expected
    flushed = await context.pool.fetchval("SELECT flushed_at FROM usage_records WHERE upto_seq = 3")
    assert flushed == to_datetime(NOON + 3)


async def test_totals_that_make_no_sense_are_put_aside(context: ProcessContext):
    """They hold up no others, and none is stored."""
    wrong = [totals(1, period="2026-1"), totals(1, tokens=-1), totals(-1), totals(1, organization_id="")]
    assert await apply(context.pool, totals(1), *wrong) == ["bad_period", "bad_amount", "bad_seq", "empty_id"]
    assert await records(context.pool) == [("acme", PERIOD, 1, 29, 15)]


# -- recomputed ----------------------------------------------------------------------------------------------------------


async def test_usage_can_be_recomputed_from_what_was_counted(context: ProcessContext):
    """Every count once, by the month in UTC in which its job ended; jobs that failed count their tokens, others' are others'."""
    run = context.pool.execute
    for _ in range(3):
        await deck(run, "acme", 29)
    await deck(run, "acme", 1, at_ms=NOON + 19 * 86_400_000)  # 2026-12-01
    await deck(run, "acme", 99, slides=0, decks=0)
    await deck(run, "umbrella", 50, slides=3)
    found = await recompute_usage(context.pool, now_ms=NOON)
    assert [(one.organization_id, one.period, *one.recomputed, one.unflushed) for one in found] == [
        ("acme", PERIOD, 3, 45, 80_000, 186, 4),
        ("acme", "2026-12", 1, 15, 20_000, 1, 1),
        ("umbrella", PERIOD, 1, 3, 20_000, 50, 1),
    ]
    assert all(one.flushed == Amounts() and one.is_summed for one in found)
    assert await records(context.pool) == []
    assert [
        one.organization_id for one in await recompute_usage(context.pool, organization_id="umbrella", now_ms=NOON)
    ] == ["umbrella"]
    assert [one.period for one in await recompute_usage(context.pool, period="2026-12", now_ms=NOON)] == ["2026-12"]


async def test_a_flush_that_lags_is_no_difference(context: ProcessContext):
    """It is compared with the counts up to its own position; a lower total is a difference, and so is a wrong sum."""
    run = context.pool.execute
    for _ in range(3):
        await deck(run, "acme", 29)
    await apply(context.pool, totals(2))
    (lags,) = await recompute_usage(context.pool, now_ms=NOON)
    assert (lags.is_behind, lags.is_above, lags.is_summed, lags.unflushed) == (False, False, True, 1)
    await run("UPDATE usage_records SET tokens = tokens - 1")
    (lost,) = await recompute_usage(context.pool, now_ms=NOON)
    assert (lost.is_behind, lost.is_above) == (True, False)
    await run("UPDATE usage_records SET tokens = tokens + 2")
    (above,) = await recompute_usage(context.pool, now_ms=NOON)
    assert (above.is_behind, above.is_above) == (False, True)
    await run("UPDATE usage_sequences SET tokens = tokens + 1")
    (wrong,) = await recompute_usage(context.pool, now_ms=NOON)
    assert not wrong.is_summed


async def test_the_command_fails_where_totals_differ(
    context: ProcessContext, stack: Stack, environment: dict[str, str]
):
    """Exit status 0 while a flush lags, 1 if it lacks earlier counts, 0 if they are stored."""
    environment |= {"DATABASE_URL": await address_of(stack, context)}

    async def status(*arguments: str) -> tuple[int, list[bool]]:
        done = await asyncio.to_thread(run, environment, "jobs", "recompute-usage", "--json", *arguments)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, [json.loads(line)["differs"] for line in done.stdout.splitlines()]

    execute = context.pool.execute
    for _ in range(3):
        await deck(execute, "acme", 29)
    await apply(context.pool, totals(2))
    assert await status() == (0, [False])
    await execute("UPDATE usage_records SET tokens = tokens - 1")
    assert await status() == (1, [True])
    assert (await status("--store"))[0] == 0


async def test_recomputed_totals_are_only_raised(context: ProcessContext):
    """A flushed total above the counted one stays; a lower one is raised, once."""
    await deck(context.pool.execute, "acme", 29)
    await deck(context.pool.execute, "umbrella", 29)
    await apply(context.pool, totals(3))
    found = await recompute_usage(context.pool, is_stored=True, now_ms=NOON)
    assert [(one.organization_id, one.is_above, one.unflushed) for one in found] == [
        ("acme", True, 0),
        ("umbrella", False, 1),
    ]
    expected = [("acme", PERIOD, 3, 87, 45), ("umbrella", PERIOD, 1, 29, 15)]
    assert await records(context.pool) == expected
    again = await recompute_usage(context.pool, is_stored=True, now_ms=NOON)
    assert not any(one.unflushed for one in again)
    assert await records(context.pool) == expected


# -- from the engine on --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.36")
async def test_29_cents_are_29_cents(stack: Stack, monkeypatch: pytest.MonkeyPatch):
    """A deck of $0.29 in two calls: 29 in the event, the totals, PostgreSQL and the recomputation (R2.36)."""
    assert int(0.29 * 100) == 28
    monkeypatch.setattr("tests.integration.jobs.making.parse_prices", lambda _text: parse_prices("small=1450/0"))
    async with jobs(stack) as j:
        worker = j.worker()
        job_id = await j.submit(slides=1)
        await j.request(worker, job_id)
        row = await j.until_status(job_id, "completed")
        assert row["cost_usd"] == Decimal("0.29")
        (recorded,) = await j.events(USAGE_RECORDED)
        assert (recorded["cost_cents"], recorded["seq"], recorded["presentations"]) == (29, 1, 1)
        case = Case()
        await case.tick(j.time())
        for _ in range(3):
            await case.take(USAGE_RECORDED, recorded)
        await case.tick(j.time() + QUARTER_SECONDS * 1000)
        (flushed,) = [told for topic, told, _ in case.sent if topic == USAGE_FLUSHED]
        await apply(j.context.pool, flushed, flushed)
        (again,) = await recompute_usage(j.context.pool, now_ms=j.time())
        assert (
            again.flushed
            == again.recomputed
            == again.recomputed_then
            == again.summed
            == Amounts(1, 1, row["tokens"], 29)
        )
        found = await usage_of(j.context.pool, "acme", recorded["period"])
        assert (found.tokens, found.cost_cents, found.upto_seq) == (row["tokens"], 29, 1)


# -- the worker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(parts: Addresses, tmp_path: Path) -> Iterator[Worker]:
    """A worker of one test alone, just after a quarter of an hour, so that none ends by itself meanwhile."""
    empty(str(parts.kafka))
    with contextlib.closing(Worker(str(parts.kafka), tmp_path)) as one:
        one.move_clock(QUARTER_SECONDS - one.now() / 1000 % QUARTER_SECONDS + 10)
        yield one.start()


async def test_three_deliveries_and_two_restarts_count_once(worker: Worker, kafka: Kafka, context: ProcessContext):
    """Each job three times, a worker killed after each of the first two and once robbed of its state, then a quarter of an hour:
    each counted once, published once, and PostgreSQL not duplicated, read again from the beginning of the log too.
    """
    worker.after_ticks(1)  # usage before the very first tick is published at it
    for seq in (1, 2, 3):
        for _ in range(3):
            kafka.send(USAGE_RECORDED, "acme", **used(seq))
        seen = worker.metric("highwater_ticks_total")
        if seq < 3:
            until(lambda since=seen: worker.metric("highwater_ticks_total") > since, "a tick")
            worker.end(signal.SIGKILL)
            if seq == 2:
                worker.lose_state()
            worker.start()
    kafka.send(USAGE_RECORDED, "umbrella", **used(1, org="umbrella"))
    worker.after_ticks(2)
    assert kafka.answers(USAGE_FLUSHED, None) == []
    worker.move_clock(QUARTER_SECONDS)
    until(lambda: len(kafka.answers(USAGE_FLUSHED, None)) >= 2, "both organizations are told")
    worker.after_ticks(3)
    told = [answer.event for answer in kafka.answers(USAGE_FLUSHED, None)]
    assert sorted((one["organization_id"], one["upto_seq"], one["cost_cents"], one["slides"]) for one in told) == [
        ("acme", 3, 87, 45),
        ("umbrella", 1, 29, 15),
    ]
    for _ in range(2):
        await apply(context.pool, *told)
    assert await records(context.pool) == [("acme", PERIOD, 3, 87, 45), ("umbrella", PERIOD, 1, 29, 15)]


# -- the API -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis(redis_url: str) -> Iterator[Any]:
    """The API's Redis, emptied."""
    with Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushdb()
        yield client


async def shown(api: Api, org: str, period: str | None = PERIOD) -> dict[str, Any]:
    """The API's usage of an organization."""
    async with api.client() as client:
        answer = await client.get(f"/api/organizations/{org}/usage", params={"period": period} if period else {})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_totals_are_the_number_of_limits_whatever_redis_holds(api: Api, seeds: Seeds, redis: Any):
    """The counted usage is shown, although nothing was flushed yet and Redis has other numbers, from a backup or none."""
    for _ in range(3):
        await deck(seeds.run, "acme", 29)
    counted = {"presentations": 3, "slides": 45, "tokens": 60_000, "cost_cents": 87}
    expected = {
        "organization_id": "acme", "period": PERIOD, **counted, "source": "postgresql", "upto_seq": 3,
        "upto": "2026-11-12T12:00:00Z", "built_in_tokens": 0,
    }  # fmt: skip
    redis.hset(
        f"usage:acme:{PERIOD}",
        mapping={"presentations": 1, "slides": 9, "tokens": 9, "cost_cents": 9, "seq": 2, "at": 9},
    )
    assert await shown(api, "acme") == expected
    redis.flushall()
    assert await shown(api, "acme") == expected


async def test_flushed_totals_outlive_a_restored_database(api: Api, seeds: Seeds, redis: Any):
    """Nothing that was flushed is retracted."""
    await deck(seeds.run, "restored", 29)
    async with await open_pool(seeds.url) as pool:
        await recompute_usage(pool, organization_id="restored", is_stored=True, now_ms=NOON)
    await seeds.run("DELETE FROM usage_sequences WHERE organization_id = 'restored'")
    assert (await shown(api, "restored"))["cost_cents"] == 29


async def test_nothing_was_used_in_another_month(api: Api, redis: Any):
    """Zeros, and up to no time; without a month it is this one."""
    assert await shown(api, "nobody") == {
        "organization_id": "nobody", "period": PERIOD, "presentations": 0, "slides": 0, "tokens": 0, "cost_cents": 0,
        "source": "postgresql", "upto_seq": 0, "upto": None, "built_in_tokens": 0,
    }  # fmt: skip
    assert (await shown(api, "nobody", None))["period"] == f"{to_datetime(api.clock()):%Y-%m}"


@pytest.mark.parametrize("period", ["2026-13", "2026", "november", "2026-11-01", ""])
async def test_a_month_that_is_none_is_refused(api: Api, period: str):
    """With the field at fault."""
    async with api.client() as client:
        answer = await client.get("/api/organizations/acme/usage", params={"period": period})
    assert (answer.status_code, answer.json()["field"]) == (422, "period")
