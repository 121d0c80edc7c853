"""A fresh run goes from its sink to an engine through its row, without the agent; a crash of either loses nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from highwater.connectors.engines import watch as watching
from highwater.connectors.kafka.records import Event
from highwater.connectors.models.calls import ChatAnswer, ChatCall, LocalChat, OnDelta
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.queries.stages import answered_locally
from highwater.schemas.queries import PIPELINE_STAGE, QUERY_SUBMITTED
from highwater.streams.identity.plans import PLANS
from highwater.streams.queries.states import Stage
from tests.conftest import Stack
from tests.integration.connecting import event, in_transaction, until
from tests.integration.queries.making import Queries, queries

STAGES = ["analyzer", "assembler", "responder", "archivist"]


@pytest.fixture
async def q(stack: Stack) -> AsyncIterator[Queries]:
    """Runs on an empty database."""
    async with queries(stack) as made:
        yield made


def submission(user: str, at: int = 0) -> Event[Any]:
    """A query of a user at an offset."""
    value = {"request_id": str(uuid.uuid4()), "user_id": user, "query": "What is new?", "ts": 1}
    return event(QUERY_SUBMITTED, value, offset=at)


async def submitted(q: Queries, *events: Event[Any]) -> list[str]:
    """The runs of submissions, as the sink stores them."""
    assert await in_transaction(q.context, QueriesSink(q.context, PLANS), events) == []
    return [one.value["request_id"] for one in events]


async def test_a_fresh_run_needs_no_command(q: Queries, monkeypatch: pytest.MonkeyPatch):
    """The sink's NOTIFY wakes a watch that would not look by itself for an hour; the agent's command comes late and is void."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 3_600.0)
    monkeypatch.setattr(watching, "SEARCH_SECONDS", 3_600.0)
    worker = q.worker()
    await asyncio.wait_for(worker.watch.is_held.wait(), 60)
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert (row["caused_by"], row["position"]) == ("queries.query-submitted/0/0",) * 2
    await q.request(worker, run_id)
    assert (await q.run(run_id))["command"] is None
    assert q.llm.by_key() == {f"{run_id}/{stage}/1": 1 for stage in STAGES}
    assert [one["revision"] for one in await q.events(PIPELINE_STAGE)] == [1, 2, 3, 4, 5, 6, 7]


async def test_only_a_run_whose_turn_it_is_is_handed_over(q: Queries):
    """The first run of each user in a batch, and none while an earlier one has not released the user."""
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    first, second, others = await submitted(q, submission(one, 0), submission(one, 1), submission(other, 2))
    (third,) = await submitted(q, submission(one, 3))
    commands = {run_id: (await q.run(run_id))["command"] for run_id in (first, second, others, third)}
    position = "queries.query-submitted/0"
    assert commands == {first: f"{position}/0", second: None, others: f"{position}/2", third: None}
    told = {one["id"]: (one["waiting"], one["requested"]) for one in await q.events(PIPELINE_STAGE)}
    assert told == {run_id: (True, command is not None) for run_id, command in commands.items()}


async def test_a_sink_that_dies_with_its_commit_has_handed_over(q: Queries):
    """No engine was notified: the next check takes the run, once."""
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    for _ in range(2):
        q.worker()
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert q.llm.by_key() == {f"{run_id}/{stage}/1": 1 for stage in STAGES}


async def test_an_engine_that_dies_with_what_it_was_handed(q: Queries):
    """The run waits again, for a command of the agent, which is notified; another engine repeats only the interrupted call."""
    worker = q.worker()
    held = q.llm.hold("analyzer")
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    await asyncio.to_thread(held.reached.wait, 60)
    await worker.die()
    other = q.worker()
    row = await q.until_status(run_id, "NEW")
    assert (row["command"], row["worker"]) == (None, None)
    told = (await q.events(PIPELINE_STAGE))[-1]
    assert (told["status"], told["waiting"], told["revision"]) == ("NEW", True, 3)
    await q.request(other, run_id)
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    assert q.llm.by_key() == {f"{run_id}/{stage}/1": 1 + (stage == "analyzer") for stage in STAGES}


# -- calls that cost nothing: their ends are stored with what follows -----------------------------------------------------


async def test_a_call_of_the_built_in_model_ends_with_what_follows(q: Queries):
    """Each stage has one call with its answer, the run and its last answer agree, and what it used is counted once."""
    q.worker(port=LocalChat(answered_locally))
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    calls = {call["stage"]: call for call in await q.calls(run_id)}
    assert {(call["outcome"], call["sends"]) for call in calls.values()} == {("answered", 1)}
    assert (sorted(calls), calls["responder"]["answer"]) == (sorted(STAGES), row["final_answer"])


@pytest.mark.parametrize("stage", STAGES)
async def test_an_engine_that_dies_before_both_are_stored(q: Queries, stage: str):
    """Neither the answer nor what follows is there; the call is sent again under its key, and the run comes to its end."""
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    port = _Stopping(stage)
    worker = q.worker(port=port)
    await asyncio.wait_for(port.is_reached.wait(), 60)
    async with q.context.pool.acquire() as tx, tx.transaction():
        await tx.execute("SELECT FROM pipeline_runs WHERE id = $1 FOR UPDATE", run_id)  # so no update is stored
        port.may_go_on.set()
        await until(lambda: _waits_for_a_lock(q), "the engine is about to store both")
        await worker.die()
    calls = {call["stage"]: call["outcome"] for call in await q.calls(run_id)}
    assert calls[stage] is None
    other = q.worker(port=LocalChat(answered_locally))
    if stage != "archivist":
        await q.until_status(run_id, {"analyzer": "NEW", "assembler": "ANALYZED", "responder": "READY"}[stage])
        await q.request(other, run_id, stage=Stage(stage))
    await q.until_status(run_id, "COMPLETED", archive="STORED")
    sends = {call["stage"]: call["sends"] for call in await q.calls(run_id)}
    assert sends == {one: 1 + (one == stage) for one in STAGES}


async def test_the_first_answer_stays(q: Queries):
    """Nothing else is stored for a call with an answer, and the consequences follow from that answer."""
    (run_id,) = await submitted(q, submission(str(uuid.uuid4())))
    port = _Stopping("responder")
    q.worker(port=port)
    await asyncio.wait_for(port.is_reached.wait(), 60)
    await q.context.pool.execute(
        "UPDATE llm_calls SET outcome = 'answered', answer = 'the first', ended_at = now() WHERE run_id = $1 AND stage = $2",
        run_id, "responder",
    )  # fmt: skip
    port.may_go_on.set()
    row = await q.until_status(run_id, "COMPLETED", archive="STORED")
    stored = {call["stage"]: call["answer"] for call in await q.calls(run_id)}
    assert stored["responder"] == row["final_answer"] == "the first"


class _Stopping(LocalChat):
    """The built-in model, which stops before it answers in a stage."""

    def __init__(self, stage: str) -> None:
        super().__init__(answered_locally)
        self._stage = stage
        self.is_reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def complete(self, call: ChatCall, on_delta: OnDelta | None = None) -> ChatAnswer:
        if call.stage == self._stage:
            self.is_reached.set()
            await self.may_go_on.wait()
        return await super().complete(call, on_delta)


async def _waits_for_a_lock(q: Queries) -> bool:
    return bool(
        await q.context.pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )
