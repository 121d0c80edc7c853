"""The engine of the pipeline on a real database and a real HTTP service: each stage once, come what may."""
# ruff: noqa: RUF001 - Russian

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator

import orjson
import pytest

from highwater.connectors.engines.lease_clock import LeaseClock
from highwater.connectors.engines.watch import LOOK_SECONDS
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.identity import organizations
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.deltas import BEGINNING, DeltaReader, DeltaWriter
from highwater.connectors.queries.sink_controls import RunControlsSink
from highwater.connectors.queries.store import Runs, run_of
from highwater.connectors.redis.keys import DELTA_SECONDS, DELTAS, key
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.slices import REDACTION
from highwater.schemas.feeds import INSIGHT_RETRACTED
from highwater.schemas.jobs import USAGE_RECORDED
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, RUN_CONTROLLED, RUN_FAILED
from highwater.streams.clock import ProductClock
from highwater.streams.jobs.jobs import cents
from highwater.streams.queries.deltas import Piece
from highwater.streams.queries.redaction import (
    WITHDRAWN_ANSWER,
    WITHDRAWN_MEMORY,
    withdrawn_answer,
    withdrawn_memory,
)
from highwater.streams.queries.runs import captured
from highwater.streams.queries.states import Stage
from tests.conftest import Stack
from tests.integration.connecting import event, in_transaction, until
from tests.integration.engines import LEASE_MS
from tests.integration.models.scripted_llm import Reply, answer, streamed
from tests.integration.models.scripted_llm import status as replied
from tests.integration.queries.making import Queries, queries

STAGES = ["analyzer", "assembler", "responder", "archivist"]
WAY = ["ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED"]


@pytest.fixture
async def q(stack: Stack) -> AsyncIterator[Queries]:
    """Runs on an empty database."""
    async with queries(stack) as made:
        yield made


@pytest.mark.requirement("R1.1", "R1.19", "R1.24", "R1.25")
async def test_a_run_from_a_command_to_its_memory(q: Queries):
    """Four calls, six changes of status with one event each, one answer logged, one memory, and then the user is released."""
    worker = q.worker()
    run_id = await q.ask()
    await q.request(worker, run_id)
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert [call.stage for call in q.llm.calls] == STAGES
    stages = await q.events(PIPELINE_STAGE)
    assert [one["status"] for one in stages] == WAY
    assert [one["revision"] for one in stages] == [2, 3, 4, 5, 6, 7]
    assert not any(one["waiting"] for one in stages)
    assert [(one["request_id"], one["archive_status"]) for one in await q.events(RUN_ARCHIVED)] == [(run_id, "STORED")]
    assert (row["released"], row["worker"], row["due_ms"], row["lease_until_ms"]) == (True, None, None, None)
    logs = await q.context.pool.fetch("SELECT message_type, content FROM raw_logs ORDER BY id")
    assert [tuple(log) for log in logs] == [("user_query", "What is new?"), ("assistant_response", row["final_answer"])]
    memory = await q.context.pool.fetchrow("SELECT * FROM lsm_storage")
    ids = await q.context.pool.fetchval("SELECT array_agg(id ORDER BY id) FROM raw_logs")
    assert (str(memory["pipeline_run_id"]), memory["raw_log_ids"]) == (run_id, ids)
    assert {(call["outcome"], call["sends"]) for call in await q.calls(run_id)} == {("answered", 1)}
    assert [call.body["model"] for call in q.llm.calls] == ["small", "small", "strong", "small"]
    body = q.llm.calls[STAGES.index("responder")].body
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("strong", 0.7, 2_000)


async def test_an_answer_is_told_while_it_is_written(q: Queries, stack: Stack):
    """Its pieces are in Redis for listeners, each attempt from its beginning; only the answer itself is requested in pieces."""
    link = RedisLink(stack.redis)
    assert await link.probe()
    worker = q.worker(deltas=DeltaWriter(link))
    q.llm.script("responder", streamed("Half an", is_whole=False), streamed("All ", "is well."))
    run_id = await q.ask()
    await q.request(worker, run_id)
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert row["final_answer"] == "All is well."
    assert {(call.stage, call.body.get("stream", False)) for call in q.llm.calls} == {
        (stage, stage == "responder") for stage in STAGES
    }
    user = str(row["user_id"])

    async def pieces() -> list[Piece]:
        (entries,) = await DeltaReader(link).read([(user, BEGINNING)])
        return [piece for _, piece in entries]

    async def has_ended() -> bool:
        return sum(piece.is_end for piece in await pieces()) == 2

    await until(has_ended, "both calls have ended for readers")
    texts: dict[int, str] = {}
    for piece in await pieces():
        assert piece.request_id == run_id
        texts[piece.attempt] = texts.get(piece.attempt, "")[: piece.start] + piece.text
    assert list(texts.values()) == ["Half an", "All is well."]
    assert 0 < await link.client.ttl(key(DELTAS, user_id=user)) <= DELTA_SECONDS
    await link.close()


async def test_a_model_that_reads_less_is_sent_less(q: Queries):
    """Its refusal says how much; the next attempt fits, is recorded as it was sent, and later questions are not refused."""
    worker, user = q.worker(), str(uuid.uuid4())
    long = "The lock opens at high water, and the crane waits. " * 2_000
    q.llm.script("responder", answer(long))
    first = await q.ask(user=user)
    await q.request(worker, first)
    await q.until_status(first, "COMPLETED", archive="STORED")
    q.llm.window_tokens = 8_192
    begun = len(q.llm.calls)
    q.llm.answers["assembler"] = lambda _call: long
    for outcomes in (["unusable", "answered"], ["answered"]):
        run_id = await q.ask("When does the lock open?", user=user)
        await q.request(worker, run_id)
        row = await q.until_status(run_id, "COMPLETED", archive="STORED")
        calls = await q.calls(run_id)
        for stage, sent in (("assembler", row["draft_context"]), ("responder", row["final_context_payload"])):
            assert [call["outcome"] for call in calls if call["stage"] == stage] == outcomes
            assert q.llm.seen(stage)[-1].user == sent
            assert "When does the lock open?" in sent
    assert len(q.llm.calls) - begun == 2 * len(STAGES) + 2


async def test_without_redis_an_answer_is_not_told_and_comes(q: Queries):
    """Deltas are no part of the truth."""
    away = RedisLink("redis://127.0.0.1:1/0")
    worker = q.worker(deltas=DeltaWriter(away))
    q.llm.script("responder", streamed("All ", "is well."))
    run_id = await q.ask()
    await q.request(worker, run_id)
    assert (await q.until_status(run_id, "COMPLETED", archive="STORED"))["final_answer"] == "All is well."
    await away.close()


async def test_what_a_run_used_is_counted_for_who_pays(q: Queries):
    """Once, at its end, with the tokens of all its calls, where limits and `/usage` read it; the operator's for no
    organization.
    """
    worker = q.worker()
    paid, own = await q.ask(organization_id="acme"), await q.ask()
    for run_id in (paid, own):
        await q.request(worker, run_id)
        await q.until_status(run_id, "COMPLETED", archive="STORED")
    calls = await q.calls(paid)
    tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
    cost_cents = cents(sum(call["cost_usd"] for call in calls))
    (told,) = await q.events(USAGE_RECORDED)
    assert (told["organization_id"], told["job_id"], told["seq"]) == ("acme", paid, 1)
    assert (told["tokens"], told["cost_cents"], told["presentations"], told["slides"]) == (tokens, cost_cents, 0, 0)
    async with q.context.pool.acquire() as connection:
        used = await organizations.usages_of(connection, ["acme"], q.time.now_ms)
    assert (used["acme"].tokens, tokens > 0) == (tokens, True)


async def test_a_run_that_ends_during_a_call_is_counted_with_it(q: Queries):
    """A cancelled run is counted at once with what it used until then; what its last call used follows when it is answered."""
    worker = q.worker(timeout_seconds=60)
    held = q.llm.hold("assembler", answer("<context></context>"))
    run_id = await q.ask(organization_id="acme")
    await q.request(worker, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    user = str((await q.run(run_id))["user_id"])
    control = {
        "request_id": run_id,
        "user_id": user,
        "action": "cancel",
        "stage": None,
        "new_request_id": None,
        "ts": 1,
    }
    assert await in_transaction(q.context, RunControlsSink(q.context), [event(RUN_CONTROLLED, control)]) == []
    (first,) = await q.events(USAGE_RECORDED)
    held.release.set()

    async def is_told() -> bool:
        return len(await q.events(USAGE_RECORDED)) == 2

    await until(is_told, "the last call is counted")
    used = [call["prompt_tokens"] + call["completion_tokens"] for call in await q.calls(run_id)]
    assert [one["tokens"] for one in await q.events(USAGE_RECORDED)] == [first["tokens"], sum(used) - first["tokens"]]
    assert first["tokens"] == used[0]


@pytest.mark.requirement("R1.6")
async def test_two_workers_and_every_command_twice(q: Queries):
    """Each stage of each run calls the service once, for any number of commands to any worker."""
    workers = [q.worker(), q.worker()]
    runs = [await q.ask(f"query {number}") for number in range(12)]
    await asyncio.gather(*(q.request(worker, run_id) for run_id in runs for worker in workers for _ in range(2)))
    for run_id in runs:
        await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert set(q.llm.by_key().values()) == {1}
    assert len(q.llm.by_key()) == len(runs) * len(STAGES)


async def test_a_run_whose_key_is_held_is_taken(q: Queries):
    """The timeline locks it while it publishes a fresh run: a search that skipped the run left it to the
    next one, 0.2 s later.
    """
    worker = q.worker()
    run_id = await q.ask()
    async with q.context.pool.acquire() as tx, tx.transaction():
        await tx.execute("SELECT FROM pipeline_runs WHERE id = $1 FOR KEY SHARE", run_id)
        await q.request(worker, run_id)
        await q.until_status(run_id, "COMPLETED", archive="STORED")


@pytest.mark.requirement("R1.2")
async def test_a_later_run_of_a_user_is_not_captured_before_the_former_is_remembered(q: Queries):
    """This holds even if it is requested: the store enforces the order (R1.2)."""
    worker = q.worker()
    first = await q.ask(user=(user := "11111111-1111-4111-8111-111111111111"))
    second = await q.ask(user=user)
    held = q.llm.hold("archivist")
    await q.request(worker, first)
    await asyncio.to_thread(held.reached.wait, 10)
    await q.request(worker, second)
    assert (await q.run(first))["status"] == "COMPLETED"
    assert (await q.run(second))["status"] == "NEW"
    held.release.set()
    await q.until_status(first, "COMPLETED", archive="STORED")
    await q.request(worker, second)
    await q.until_status(second, "COMPLETED", archive="STORED")


@pytest.mark.requirement("R1.32")
@pytest.mark.parametrize("stage", STAGES)
async def test_two_timeouts_then_an_answer(q: Queries, stage: str):
    """Three calls; the second is due 2 s, the third 4 s after the one before, by the product's clock, and not sooner (R1.32)."""
    worker = q.worker(timeout_seconds=0.3)
    q.llm.script(stage, "silent", "silent")
    run_id = await q.ask()
    await q.request(worker, run_id)
    for attempt, wait_ms in ((2, 2_000), (3, 4_000)):
        row = await until(lambda n=attempt: _waits(q, run_id, n), f"attempt {attempt} is due later")
        assert (row["due_ms"], row["worker"]) == (q.time() + wait_ms, None)
        q.time.now_ms += wait_ms - 1
        await asyncio.sleep(0.5)  # two looks of the watch: nothing may come of them
        assert len(q.llm.seen(stage)) == attempt - 1
        q.time.now_ms += 1
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert [call.key for call in q.llm.seen(stage)] == [f"{run_id}/{stage}/{number}" for number in (1, 2, 3)]
    assert [call["outcome"] for call in await q.calls(run_id) if call["stage"] == stage] == [
        "timeout", "timeout", "answered",
    ]  # fmt: skip


async def _waits(q: Queries, run_id: str, attempt: int) -> dict[str, object] | None:
    row = await q.run(run_id)
    return row if row["due_ms"] is not None and row["attempt"] == attempt else None


async def test_a_wait_outlives_its_worker(q: Queries):
    """A due retry is in the store: another worker makes the next attempt."""
    worker = q.worker()
    q.llm.script("responder", "429")
    run_id = await q.ask()
    await q.request(worker, run_id)
    row = await until(lambda: _waits(q, run_id, 2), "it waits")
    assert row["due_ms"] == q.time() + 60_000
    await worker.die()
    q.worker()
    q.time.now_ms += 60_000
    await q.until_status(run_id, "COMPLETED", archive="STORED")


@pytest.mark.parametrize("stage", STAGES)
async def test_a_worker_that_dies_during_a_call(q: Queries, stage: str):
    """Its run continues elsewhere; that call alone is sent again, under its key, and the cost includes it."""
    worker = q.worker()
    held = q.llm.hold(stage)
    run_id = await q.ask()
    await q.request(worker, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await worker.die()
    other = q.worker()
    if stage != "archivist":
        waits = {"analyzer": "NEW", "assembler": "ANALYZED", "responder": "READY"}[stage]
        await q.until_status(run_id, waits)
        told = (await q.events(PIPELINE_STAGE))[-1]
        assert (told["status"], told["waiting"]) == (waits, True)
        await q.request(other, run_id, stage=Stage(stage))
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert q.llm.by_key() == {f"{run_id}/{one}/1": 2 if one == stage else 1 for one in STAGES}
    assert {call["stage"]: call["sends"] for call in await q.calls(run_id)} == {
        one: 2 if one == stage else 1 for one in STAGES
    }


@pytest.mark.parametrize("stage", STAGES)
async def test_a_worker_that_dies_after_a_call(q: Queries, stage: str):
    """The answer is stored before anything else, so the call is not repeated."""
    worker = q.worker()
    held = q.llm.hold(stage)
    run_id = await q.ask()
    await q.request(worker, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    async with q.context.pool.acquire() as tx, tx.transaction():
        await tx.execute("SELECT FROM pipeline_runs WHERE id = $1 FOR UPDATE", run_id)  # so no update is stored
        held.release.set()
        await until(lambda: _answered(q, run_id, stage), "the answer is stored")
        await worker.die()
    other = q.worker()
    if stage != "archivist":
        await q.until_status(run_id, {"analyzer": "NEW", "assembler": "ANALYZED", "responder": "READY"}[stage])
        await q.request(other, run_id, stage=Stage(stage))
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert set(q.llm.by_key().values()) == {1}
    assert {call["sends"] for call in await q.calls(run_id)} == {1}


async def _answered(q: Queries, run_id: str, stage: str) -> bool:
    return any(call["stage"] == stage and call["outcome"] == "answered" for call in await q.calls(run_id))


async def test_a_silent_worker_loses_its_run_when_the_lease_ends(q: Queries):
    """It holds its lock and is silent: after the lease its run is started again, and what follows its answer is dropped.

    Its answer came first, so it is stored, and the other worker continues with it.
    """
    silent = q.worker(timeout_seconds=60)
    held = q.llm.hold("responder", answer("the first"))
    run_id = await q.ask()
    await q.request(silent, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    q.time.now_ms += LEASE_MS
    await q.until_status(run_id, "READY")
    other = q.worker(timeout_seconds=60)
    held_too = q.llm.hold("responder", answer("the second"))
    await q.request(other, run_id, stage=Stage.RESPONDER)
    await asyncio.to_thread(held_too.reached.wait, 10)
    held.release.set()
    await until(lambda: not silent.engine._tasks, "the silent one comes to its end")
    assert (await q.run(run_id))["status"] == "RESPONDING"
    held_too.release.set()
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert [one["status"] for one in await q.events(PIPELINE_STAGE)].count("COMPLETED") == 1
    stored = {call["stage"]: call["answer"] for call in await q.calls(run_id)}
    assert stored["responder"] == row["final_answer"] == "the first"


class AnHourAhead(ProductClock):
    """The clock of a machine that is wrong."""

    def __call__(self) -> int:
        """Now, an hour too late."""
        return super().__call__() + 3_600_000


async def test_a_worker_whose_clock_is_ahead_takes_nothing_from_others(q: Queries):
    """A lease ends by PostgreSQL's clock: the run stays with the worker that holds it."""
    q.time = ProductClock()
    holder = q.worker(timeout_seconds=60)
    held = q.llm.hold("responder", answer("the first"))
    run_id = await q.ask()
    await q.request(holder, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    clock = q.time = LeaseClock(AnHourAhead())
    wrong = q.worker(timeout_seconds=60)
    for _ in range(2):
        before = wrong.watch._searched_at
        await until(lambda before=before: wrong.watch._searched_at > before, "it looked for what is lost")
    assert abs(clock() - ProductClock()()) < 60_000
    row = await q.run(run_id)
    assert (row["status"], row["worker"], row["returns"]) == ("RESPONDING", holder.engine.worker, 0)
    held.release.set()
    await q.until_status(run_id, "COMPLETED", archive="STORED")


@pytest.mark.requirement("R1.6")
@pytest.mark.parametrize(("status", "stage"), [("READY", "analyzer"), ("NEW", "responder"), ("ANALYZED", "analyzer")])
async def test_a_void_command_changes_nothing(q: Queries, status: str, stage: str):
    """A run that waits for another stage than the command names is not captured (R1.6)."""
    worker = q.worker()
    run_id = await q.ask()
    await q.context.pool.execute("UPDATE pipeline_runs SET status = $2 WHERE id = $1", run_id, status)
    await q.request(worker, run_id, stage=Stage(stage))
    row = await q.run(run_id)
    assert (row["status"], row["epoch"], row["worker"]) == (status, 0, None)
    assert (q.llm.calls, await q.events(PIPELINE_STAGE)) == ([], [])


async def test_what_changed_a_run_last_is_named(q: Queries):
    """The command that had it worked on is its cause, and that of its events (X-Caused-By)."""
    worker = q.worker()
    run_id = await q.ask()
    await q.request(worker, run_id)
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert (row["position"], row["caused_by"]) == ("queries.query-submitted/0/7", "queries.stage-requested/0/0")


@pytest.mark.requirement("R1.7")
async def test_a_run_of_before_an_erasure_is_not_stored_as_the_next_of_its_key(q: Queries):
    """Its user was erased and asked again under the same key: the same id, status and epoch, but another place."""
    run_id = await q.ask()
    runs = Runs(q.context.pool, q.context.codec, begun_max=16)
    before = run_of(await q.run(run_id))
    change = Change(before, (captured(before, worker=1, lease_ms=1_000, now_ms=q.time()),), q.time())
    await q.context.pool.execute("UPDATE pipeline_runs SET ordinal = 2, user_query = 'Anew?' WHERE id = $1", run_id)
    assert await runs.store([change]) == [None]
    assert (await q.run(run_id))["worker"] is None


async def test_a_run_that_is_lost_too_often_fails(q: Queries):
    """Three times it is started again, the fourth time it fails and an operator is alerted (R1.7)."""
    q.llm.always("analyzer", "silent")
    worker = q.worker(timeout_seconds=60)
    run_id = await q.ask()
    for count in range(1, 5):
        await q.request(worker, run_id)
        await until(lambda n=count: len(q.llm.calls) == n, "it was called")
        q.time.now_ms += LEASE_MS
        await q.until_status(run_id, "NEW" if count < 4 else "FAILED")
    assert "4 times" in (await q.run(run_id))["error"]
    assert [(one["reason"], one["is_alert"]) for one in await q.events(RUN_FAILED)] == [("lost", True)]
    assert (await q.run(run_id))["released"]


@pytest.mark.requirement("R1.21", "R1.34", "R1.35", "R1.36")
@pytest.mark.parametrize(
    ("step", "calls", "error"),
    [
        ("html", 2, "Max retries exceeded"),
        ("half", 2, "Max retries exceeded"),
        ("empty", 2, "Max retries exceeded"),
        ("400", 1, ""),
    ],
)
async def test_what_cannot_be_used_is_asked_for_once_more(q: Queries, step: str, calls: int, error: str):
    """An unusable answer is requested once more, a refusal never; then the run fails with the reason and keeps its draft."""
    worker = q.worker()
    for stage in ("analyzer", "assembler", "responder"):
        q.llm.clear()
        q.llm.always(stage, step if step != "400" else _refusal())
        run_id = await q.ask()
        await q.request(worker, run_id)
        row = await q.until_status(run_id, "FAILED")
        assert len(q.llm.seen(stage)) == calls
        assert error in row["error"]
        assert ("What is new?" in (row["draft_context"] or "")) == (stage != "analyzer")
    alerts = [one["is_alert"] for one in await q.events(RUN_FAILED)]
    assert alerts == [step == "400"] * 3


def _refusal() -> Reply:
    return replied(400)


async def test_one_unusable_answer_is_no_failure(q: Queries):
    """One of them in each stage: the run completes, every stage with two calls at once (no wait)."""
    worker = q.worker()
    for stage in STAGES:
        q.llm.script(stage, "empty")
    run_id = await q.ask()
    await q.request(worker, run_id)
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert q.llm.by_stage() == dict.fromkeys(STAGES, 2)


@pytest.mark.requirement("R1.28")
async def test_a_failed_archivist_lifts_the_block(q: Queries):
    """The answer stays, the archive is FAILED, an operator is alerted, and the user's next run may begin (R1.28)."""
    worker = q.worker()
    q.llm.always("archivist", "html")
    first = await q.ask(user=(user := "22222222-2222-4222-8222-222222222222"))
    second = await q.ask(user=user)
    await q.request(worker, first)
    row = await q.until_status(first, "COMPLETED", archive="FAILED")
    assert (row["final_answer"] is not None, row["error"], row["released"]) == (True, None, True)
    assert [one["archive_status"] for one in await q.events(RUN_ARCHIVED)] == ["FAILED"]
    assert [(one["stage"], one["is_alert"]) for one in await q.events(RUN_FAILED)] == [("archivist", True)]
    await q.request(worker, second)
    await q.until_status(second, "COMPLETED")


@pytest.mark.requirement("R1.11")
async def test_a_missing_prompt_fails_the_run_at_once(q: Queries):
    """Without a call, with an alert that names the role (R1.11)."""
    await q.context.pool.execute("UPDATE system_prompts SET is_active = false WHERE role_name = 'Mentor'")
    worker = q.worker()
    run_id = await q.ask()
    await q.request(worker, run_id)
    row = await q.until_status(run_id, "FAILED")
    assert row["error"] == "no active prompt for Mentor"
    assert q.llm.by_stage() == {"analyzer": 1}
    assert [(one["reason"], one["is_alert"]) for one in await q.events(RUN_FAILED)] == [("no_prompt", True)]


@pytest.mark.requirement("R1.16")
async def test_a_forgotten_run_is_found(q: Queries):
    """Its command was lost: after half a minute a periodic check takes it (R1.16)."""
    q.worker()
    run_id = await q.ask()
    await asyncio.sleep(1.5)  # a search comes by and finds it too young
    assert (await q.run(run_id))["status"] == "NEW"
    q.time.now_ms += 30_001
    await q.until_status(run_id, "COMPLETED", archive="STORED")


async def test_a_worker_that_ends_in_order_hands_its_runs_over(q: Queries):
    """At once, and without counting it as a loss."""
    worker = q.worker(timeout_seconds=60)
    held = q.llm.hold("assembler")
    run_id = await q.ask()
    await q.request(worker, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await worker.end()
    row = await q.run(run_id)
    assert (row["status"], row["returns"], row["worker"]) == ("ANALYZED", 0, None)


async def test_slots_bound_what_is_worked_on_at_once(q: Queries):
    """Two slots: two calls at once, and the rest follow."""
    worker = q.worker(slots=2, timeout_seconds=30)
    holds = [q.llm.hold("analyzer") for _ in range(5)]
    runs = [await q.ask() for _ in range(5)]
    asking = asyncio.gather(*(q.request(worker, run_id) for run_id in runs))
    await asyncio.to_thread(holds[1].reached.wait, 10)
    await asyncio.sleep(0.3)  # a third one would come within this
    assert len(q.llm.calls) == 2
    q.llm.release_all()
    await asking
    for run_id in runs:
        await q.until_status(run_id, "COMPLETED", archive="STORED")


async def test_slots_are_shared_out_between_organizations(q: Queries):
    """Forty queries of one are requested before another's: that one has its slot at once, and none has more than the cap."""
    many = [await q.ask(organization_id="acme") for _ in range(40)]
    one = await q.ask(organization_id="umbrella")
    for _ in range(3):
        q.llm.hold("analyzer")
    workers = [q.worker(slots=2, begun_max=2, timeout_seconds=30) for _ in range(2)]
    await q.request(workers[0], *many, one)
    await until(lambda: len(q.llm.seen("analyzer")) == 3, "three of four slots are taken")
    await asyncio.sleep(3 * LOOK_SECONDS)  # looks of both, of which nothing may come
    rows = await q.context.pool.fetch("SELECT organization_id FROM pipeline_runs WHERE status = 'ANALYZING' ORDER BY 1")
    assert [row["organization_id"] for row in rows] == ["acme", "acme", "umbrella"]
    q.llm.release_all()
    for run_id in (one, many[-1]):
        await q.until_status(run_id, "COMPLETED", archive="STORED")


async def test_a_given_up_archivist_is_begun_again(q: Queries):
    """The memory of a completed run whose worker died is made by another, with any runs waiting for its slots."""
    first = q.worker(slots=1, timeout_seconds=60)
    held = q.llm.hold("archivist")
    run_id, waiting = await q.ask(), await q.ask()
    await q.request(first, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await q.request(first, waiting)
    await first.die()
    q.worker(slots=1)
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    await q.until_status(waiting, "COMPLETED", archive="STORED")


@pytest.mark.requirement("R1.17", "R1.20")
async def test_the_latest_20_memories_and_10_lines_of_the_user_are_read(q: Queries):
    """Of 21 memories and 11 lines the oldest is left out, and so is all of another user."""
    user, other = str(uuid.uuid4()), str(uuid.uuid4())
    for owner, count in ((user, 21), (other, 1)):
        for number in range(count):
            run, day = uuid.uuid4(), f"'2026-01-01'::date + {number}"
            await q.context.pool.execute(
                "INSERT INTO lsm_storage (user_id, time_bucket_start, time_bucket_end, tags, summary, raw_log_ids, "
                f"pipeline_run_id, ordinal, created_at) VALUES ($1, {day}, {day}, '{{}}', $2, '{{}}', $3, 0, {day})",
                owner, f"memory {owner} {number}.", run,
            )  # fmt: skip
            await q.context.pool.execute(
                "INSERT INTO raw_logs (user_id, message_type, content, pipeline_run_id, ordinal, created_at) "
                f"VALUES ($1, 'user_query', $2, $3, 0, {day})",
                owner, f"line {owner} {number}.", run,
            )  # fmt: skip
    worker = q.worker()
    run_id = await q.ask(user=user)
    await q.request(worker, run_id)
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    (analyzer,), (assembler,) = q.llm.seen("analyzer"), q.llm.seen("assembler")
    assert re.findall(r"memory (\S+ \d+)\.", analyzer.user) == [f"{user} {number}" for number in range(20, 0, -1)]
    assert re.findall(r"line (\S+ \d+)\.", assembler.user) == [f"{user} {number}" for number in range(11, 21)]


@pytest.mark.requirement("R1.20")
async def test_unique_markers_reach_the_assembler_in_order(q: Queries):
    """R1.20: the query, the history, the memory, the Mentor; the Assembler's own prompt is the system's."""
    for role in ("Mentor", "Assembler"):
        await q.context.pool.execute(
            "UPDATE system_prompts SET prompt_template = $2 WHERE role_name = $1 AND is_active", role, f"MARK-{role}"
        )
    worker = q.worker()
    user = "33333333-3333-4333-8333-333333333333"
    q.llm.answers["archivist"] = lambda _: '{"tags": ["t"], "text": "MARK-MEMORY"}'
    first = await q.ask("MARK-LOG", user=user)
    await q.request(worker, first)
    await q.until_status(first, "COMPLETED", archive="STORED")
    memory = await q.context.pool.fetchval("SELECT id FROM lsm_storage")
    q.llm.answers["analyzer"] = lambda _: (
        '{"needs_context": true, "context_type": "c", "time_scope": "t", "search_keywords": ["k"], '
        f'"context_found": {{"lsm_ids": [{memory}]}}}}'
    )
    q.llm.clear()
    second = await q.ask("MARK-QUERY", user=user)
    await q.ask("MARK-LATER", user=user)
    await q.request(worker, second)
    await q.until_status(second, "COMPLETED", archive="STORED")
    (call,) = q.llm.seen("assembler")
    places = [call.user.find(mark) for mark in ("MARK-QUERY", "MARK-LOG", "MARK-MEMORY", "MARK-Mentor")]
    assert -1 not in places
    assert places == sorted(places)
    assert call.system == "MARK-Assembler"
    assert "MARK-LATER" not in call.user
    assert "MARK-MEMORY" in q.llm.seen("analyzer")[0].user


async def test_what_was_ingested_is_told_as_sources(q: Queries):
    """Insights with the words of the query, of a channel it names first, of channels that the user reads, with positions."""
    texts = {
        ("acme/rocket", 0): "Release 7.1 of the engine",
        ("acme/rocket", 1): "Mend the nozzle",
        ("other/boat", 0): "Release 2.0 with a new sail",
        ("hidden/vault", 0): "Release 9.9 in secret",
    }
    user = "44444444-4444-4444-8444-444444444444"
    pool = q.context.pool
    for number, ((channel, seq), text) in enumerate(texts.items()):
        await pool.execute("INSERT INTO channels (channel_id) VALUES ($1) ON CONFLICT DO NOTHING", channel)
        await pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
            "VALUES ($1, $2, $3, to_timestamp($4), now(), $5, 3, $4)",
            f"i{number}", channel, seq, number, text,
        )  # fmt: skip
    for channel in ("acme/rocket", "other/boat"):
        await pool.execute("INSERT INTO subscriptions VALUES ($1, $2, true, 0)", user, channel)
    worker = q.worker()
    run_id = await q.ask("Which release of rocket was made?", user=user)
    await q.request(worker, run_id)
    row = await q.until_status(run_id, "COMPLETED")
    told = [(one["insight_id"], one["position"]) for one in orjson.loads(row["sources"])]
    assert told[0] == ("i0", "feeds.insight-ingested/3/0")
    assert "i3" not in {insight_id for insight_id, _ in told}
    (call,) = q.llm.seen("assembler")
    assert "Release 7.1 of the engine" in call.user
    assert "Release 9.9" not in call.user


# -- sources that are withdrawn ---------------------------------------------------------------------------------------------

SECRET = "Falcon buys Acme tomorrow at noon"


async def _channel(q: Queries) -> None:
    """Two insights that a query about Falcon finds, the newest first."""
    await q.context.pool.execute("INSERT INTO channels (channel_id, current_seq) VALUES ('desk', 2)")
    for seq, text in ((1, "Falcon opens a branch in Oslo"), (2, SECRET)):
        await q.context.pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
            "VALUES ($1, 'desk', $2::bigint, to_timestamp($2::bigint), now(), $3, 0, $2::bigint)",
            f"d{seq}", seq, text,
        )  # fmt: skip


async def _retract(q: Queries, insight_id: str) -> None:
    sink = InsightsSink(q.context.codec, q.context.clock, q.context.pool, dimensions=384, redaction=REDACTION)
    told = event(INSIGHT_RETRACTED, {"insight_id": insight_id, "channel_id": "desk", "ts": 1}, offset=5)
    await in_transaction(q.context, sink, [told])


async def _texts(q: Queries) -> str:
    """All that is stored of runs, as text."""
    tables = ("pipeline_runs", "raw_logs", "lsm_storage", "llm_calls")
    rows = [await q.context.pool.fetch(f"SELECT t::text FROM {table} AS t") for table in tables]
    return "\n".join(row["t"] for found in rows for row in found)


async def test_an_answer_goes_with_its_source(q: Queries):
    """Answer, source, context, log, memory and model output no longer contain it; an answer without it stays."""
    await _channel(q)
    worker = q.worker()
    user = str(uuid.uuid4())
    q.llm.script(
        "responder", answer(f"{SECRET} [1]."), answer("A branch opens in Oslo [1]."), answer(f"As said: {SECRET}.")
    )
    q.llm.script("archivist", answer({"tags": ["Falcon"], "text": f"They asked; {SECRET}."}))
    runs = []
    for query in ("What of Falcon?", "Who opens a branch, Falcon or Acme?", "Falcon again?"):
        runs.append(await q.ask(query, user=user))
        await q.request(worker, runs[-1])
        await q.until_status(runs[-1], "COMPLETED", archive="STORED")
    before = [await q.run(run_id) for run_id in runs]
    await _retract(q, "d2")
    after = [await q.run(run_id) for run_id in runs]
    assert [row["final_answer"] for row in after] == [WITHDRAWN_ANSWER, "A branch opens in Oslo [1].", WITHDRAWN_ANSWER]
    assert [row["redactions"] for row in after] == [1, 1, 1]
    assert [row["status"] for row in after] == ["COMPLETED"] * 3
    told = orjson.loads(after[0]["sources"])
    assert [(one["insight_id"], one.get("withdrawn", False)) for one in told] == [("", True), ("d1", False)]
    assert [one["insight_id"] for one in orjson.loads(before[0]["sources"])] == ["d2", "d1"]
    assert SECRET not in await _texts(q)
    assert await q.context.pool.fetchval("SELECT bool_and(withdrawn IS NULL) FROM pipeline_runs")
    await _retract(q, "d2")
    assert (await q.run(runs[0]))["redactions"] == 1


async def test_a_withdrawn_answer_is_in_the_language_of_its_question(q: Queries):
    """The answer, the user's history and the memory; another question's in its own language."""
    await _channel(q)
    worker = q.worker()
    user = str(uuid.uuid4())
    q.llm.script("responder", answer(f"{SECRET} [1]."), answer(f"{SECRET} [1]."))
    queries = ("Что было с Falcon и когда это было?", "What of Falcon?")
    runs = []
    for query in queries:
        runs.append(await q.ask(query, user=user))
        await q.request(worker, runs[-1])
        await q.until_status(runs[-1], "COMPLETED", archive="STORED")
    await _retract(q, "d2")
    for run_id, query in zip(runs, queries, strict=True):
        assert (await q.run(run_id))["final_answer"] == withdrawn_answer(query)
        logged = "SELECT content FROM raw_logs WHERE pipeline_run_id = $1 AND message_type = 'assistant_response'"
        assert await q.context.pool.fetchval(logged, run_id) == withdrawn_answer(query)
        remembered = "SELECT summary FROM lsm_storage WHERE pipeline_run_id = $1"
        assert await q.context.pool.fetchval(remembered, run_id) == withdrawn_memory(query).text
    assert len({withdrawn_answer(query) for query in queries}) == 2


async def test_a_query_finds_nothing_that_was_retracted_before_it(q: Queries):
    """Neither as a source nor in what the model is asked."""
    await _channel(q)
    await _retract(q, "d2")
    worker = q.worker()
    run_id = await q.ask("What of Falcon?")
    await q.request(worker, run_id)
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert [one["insight_id"] for one in orjson.loads((await q.run(run_id))["sources"])] == ["d1"]
    assert [call.number for call in q.llm.seen() if SECRET in str(call.body)] == []


async def test_a_run_at_work_answers_nothing_of_what_is_withdrawn(q: Queries):
    """A source that is retracted while the model answers: answer and memory are withdrawn as they are stored."""
    await _channel(q)
    worker = q.worker()
    held = q.llm.hold("responder", answer(f"{SECRET} [1]."))
    remembering = q.llm.hold("archivist", answer({"tags": ["Falcon"], "text": SECRET}))
    run_id = await q.ask("What of Falcon?")
    await q.request(worker, run_id)
    await asyncio.to_thread(held.reached.wait, 10)
    await _retract(q, "d2")
    held.release.set()
    await asyncio.to_thread(remembering.reached.wait, 10)
    assert (await q.run(run_id))["final_answer"] == WITHDRAWN_ANSWER
    remembering.release.set()
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert SECRET not in await _texts(q)
    assert await q.context.pool.fetchval("SELECT summary FROM lsm_storage") == WITHDRAWN_MEMORY
