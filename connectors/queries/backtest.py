"""Replays recorded queries with another prompt or model: the recorded inputs, from the first changed stage on.

Invariant: nothing is stored and no event is published. A call has a new key, so that a service that caches answers by
their key does not return the recorded one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import asyncpg

from highwater.connectors.engines.rows import json_or_none
from highwater.connectors.models.calls import BUILT_IN, CallFailedError, ChatAnswer, ChatCall, ChatPort
from highwater.connectors.postgres.pool import Row, reading
from highwater.connectors.queries.stages import chat_call
from highwater.connectors.queries.statements import QUERIES
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.models.costs import Prices
from highwater.streams.models.retries import GiveUp, after_failure
from highwater.streams.queries.backtest import (
    ASSEMBLER,
    MENTOR,
    Comparison,
    Recorded,
    Side,
    compare,
    first_stage,
    summed,
)
from highwater.streams.queries.context import final_payload, with_mentor
from highwater.streams.queries.states import Stage

# Calls in progress: the service answers live queries meanwhile, under the same limit of requests.
CALLS_AT_ONCE = 4


class History(NamedTuple):
    """Queries that can be replayed, the newest first, and their total number."""

    queries: Sequence[Recorded]
    recorded: int


class Variant(NamedTuple):
    """What differs from the live pipeline: prompts by role, and the model that answers (None: the recorded one)."""

    prompts: Mapping[str, str]
    model: str | None


async def read_history(pool: asyncpg.Pool[asyncpg.Record], since_ms: int, limit: int) -> History:
    """Return the newest recorded queries since a time.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as tx:
        rows = await tx.fetch(QUERIES["recorded_queries"], to_datetime(since_ms), limit)
        ids = sorted({prompt_id for row in rows for prompt_id in row["prompt_ids"]})
        prompts = {row["id"]: row for row in await tx.fetch(QUERIES["prompts_of_ids"], ids)}
    return History([_recorded(row, prompts) for row in rows], rows[0]["recorded"] if rows else 0)


class Replay:
    """Repeats calls to a model. `models`: those configured, for stages that the built-in model answered."""

    def __init__(
        self, port: ChatPort, prices: Prices, variant: Variant, models: Mapping[Stage, str], number: int
    ) -> None:
        self._port = port
        self._prices = prices
        self._variant = variant
        self._models = models
        self._number = number
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)

    async def compare_all(self, queries: Sequence[Recorded], done: Callable[[int], None]) -> list[Comparison]:
        """Return the changes of each query, in their order; `done` is called with the number compared."""
        finished = 0

        async def one(recorded: Recorded) -> Comparison:
            nonlocal finished
            async with self._calls:
                found = await self._compare(recorded)
            finished += 1
            done(finished)
            return found

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(recorded)) for recorded in queries]
        return [task.result() for task in tasks]

    async def _compare(self, recorded: Recorded) -> Comparison:
        first = first_stage(self._variant.prompts)
        try:
            return compare(recorded, first, await self._answer(recorded, first))
        except CallFailedError as error:
            return compare(recorded, first, None, str(error))

    async def _answer(self, recorded: Recorded, first: Stage) -> Side:
        prompts = {**recorded.prompts, **self._variant.prompts}
        payload, made = recorded.payload, []
        if first is Stage.ASSEMBLER:
            draft = with_mentor(recorded.draft, prompts[MENTOR])
            made.append(await self._ask(recorded, Stage.ASSEMBLER, prompts[ASSEMBLER], draft))
            payload = final_payload(recorded.query, made[0].text)
        answered = await self._ask(recorded, Stage.RESPONDER, prompts[MENTOR], payload)
        made.append(answered)
        costs = [self._prices.cost_usd(one.model, one.prompt_tokens, one.completion_tokens) for one in made]
        tokens = sum(one.prompt_tokens + one.completion_tokens for one in made)
        return Side(answered.text, answered.model, tokens, summed(costs))

    async def _ask(self, recorded: Recorded, stage: Stage, system: str, user: str) -> ChatAnswer:
        """Return the answer, retried as often as a live one (R1.31 to R1.37)."""
        key = f"backtest-{self._number}/{recorded.request_id}/{stage}"
        call = chat_call(stage, key=key, model=self._model_of(recorded, stage), system=system, user=user)
        return await _answered(self._port, call)

    def _model_of(self, recorded: Recorded, stage: Stage) -> str:
        if stage is Stage.RESPONDER and self._variant.model is not None:
            return self._variant.model
        model = recorded.models[stage]
        return self._models[stage] if model == BUILT_IN else model


async def _answered(port: ChatPort, call: ChatCall) -> ChatAnswer:
    attempt = 1
    while True:
        try:
            return await port.complete(call)
        except CallFailedError as error:
            following = after_failure(
                error.failure, str(error), attempt=attempt, unusable=0, retry_after_ms=error.retry_after_ms
            )
            if isinstance(following, GiveUp):
                raise
            await asyncio.sleep(following.wait_ms / 1000)
            attempt += 1


def _recorded(row: Row, prompts: Mapping[int, Row]) -> Recorded:
    used = [prompts[prompt_id] for prompt_id in row["prompt_ids"]]
    model = row["responder_model"]
    responder = Side(row["final_answer"], model, row["responder_tokens"], row["responder_cost_usd"])
    costs = [row["assembler_cost_usd"], row["responder_cost_usd"]]
    both = Side(row["final_answer"], model, row["assembler_tokens"] + row["responder_tokens"], summed(costs))
    return Recorded(
        request_id=row["request_id"],
        asked_ms=to_ms(row["created_at"]),
        query=row["user_query"],
        sources=tuple(one["insight_id"] for one in json_or_none(row["sources"]) or ()),
        draft=row["draft_context"],
        payload=row["final_context_payload"],
        prompts={one["role_name"]: one["prompt_template"] for one in used},
        models={Stage.ASSEMBLER: row["assembler_model"], Stage.RESPONDER: model},
        sides={Stage.ASSEMBLER: both, Stage.RESPONDER: responder},
    )
