"""Runs on a database of a test's own, an engine over them, and a chat service on a script."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from highwater.connectors.engines.watch import Watch
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.call_rows import Calls
from highwater.connectors.models.calls import ChatPort
from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.queries.deltas import DeltaWriter
from highwater.connectors.queries.engine import QueryEngine
from highwater.connectors.queries.stages import Stages
from highwater.connectors.queries.store import CHANNEL, Runs
from highwater.connectors.queries.worker_stages import StageCommands
from highwater.schemas.queries import STAGE_REQUESTED
from highwater.streams.clock import fresh_number, to_datetime
from highwater.streams.models.context_windows import ContextWindows
from highwater.streams.models.costs import parse_prices
from highwater.streams.queries.states import Stage
from tests.conftest import Stack
from tests.integration.connecting import event, in_outbox, in_transaction, until
from tests.integration.databases import address_of, own_database
from tests.integration.engines import LEASE_MS, Time, Worker, end_all
from tests.integration.models.scripted_llm import ScriptedLLM


@dataclass
class Queries:
    """Runs, and workers over them."""

    context: ProcessContext
    database: str
    llm: ScriptedLLM
    time: Any = field(default_factory=Time)
    workers: list[Worker] = field(default_factory=list)
    ordinals: Counter[str] = field(default_factory=Counter)

    def worker(
        self,
        *,
        slots: int = 16,
        timeout_seconds: float = 2.0,
        begun_max: int = 16,
        port: ChatPort | None = None,
        deltas: DeltaWriter | None = None,
    ) -> Worker:
        """Another worker, watching; `port` in place of the scripted service, `deltas` for answers while they are written."""
        context = self.context
        runs = Runs(context.pool, context.codec, begun_max=begun_max)
        windows = ContextWindows()
        engine = QueryEngine(
            runs,
            Stages(context.pool, model="small", strong_model="strong", windows=windows),
            ModelCalls(
                Calls(context.pool),
                port or RemoteChat(ChatEndpoint(self.llm.url, "key", seconds_max=timeout_seconds, windows=windows)),
                parse_prices("small=1/2,strong=10/20"),
                self.time,
            ),
            self.time,
            worker=fresh_number(),
            lease_ms=LEASE_MS,
            slots=slots,
            deltas=deltas,
        )
        watch = Watch(self.database, runs, engine, self.time, channel=CHANNEL)
        made = Worker(engine, StageCommands(engine), watch)
        made.start()
        self.workers.append(made)
        return made

    async def ask(
        self, query: str = "What is new?", *, user: str | None = None, organization_id: str | None = None
    ) -> str:
        """A run as the sink makes it; its id."""
        user, run_id = user or str(uuid.uuid4()), str(uuid.uuid4())
        self.ordinals[user] += 1
        now = to_datetime(self.time())
        async with self.context.pool.acquire() as tx, tx.transaction():
            await tx.execute(
                "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, position, caused_by, created_at, "
                "updated_at, organization_id) VALUES ($1, $2, $3, $4, 'NEW', $6, $6, $5, $5, $7)",
                run_id, user, self.ordinals[user], query, now, "queries.query-submitted/0/7", organization_id,
            )  # fmt: skip
            await tx.execute(
                "INSERT INTO raw_logs (user_id, message_type, content, pipeline_run_id, ordinal, created_at) "
                "VALUES ($1, 'user_query', $2, $3, $4, $5)",
                user, query, run_id, self.ordinals[user], now,
            )  # fmt: skip
        return run_id

    async def request(self, worker: Worker, *run_ids: str, stage: Stage = Stage.ANALYZER) -> None:
        """Commands, as the consumer hands them over."""
        commands = [event(STAGE_REQUESTED, {"request_id": run_id, "stage": str(stage)}) for run_id in run_ids]
        await in_transaction(self.context, worker.commands, commands)

    async def run(self, run_id: str) -> dict[str, Any]:
        """The row of a run."""
        return dict(await self.context.pool.fetchrow("SELECT * FROM pipeline_runs WHERE id = $1", run_id))

    async def until_status(self, run_id: str, status: str, *, archive: str | None = None) -> dict[str, Any]:
        """The row of a run once it stands there."""

        async def look() -> dict[str, Any] | None:
            row = await self.run(run_id)
            return row if row["status"] == status and archive in (None, row["archive_status"]) else None

        return dict(await until(look, f"{run_id} is {status} {archive or ''}"))

    async def calls(self, run_id: str) -> list[dict[str, Any]]:
        """The calls of a run in their order."""
        rows = await self.context.pool.fetch(
            "SELECT * FROM llm_calls WHERE run_id = $1 ORDER BY started_at, stage, attempt", run_id
        )
        return [dict(row) for row in rows]

    async def events(self, topic: str) -> list[dict[str, Any]]:
        """The outbox events of a topic, in order."""
        return await in_outbox(self.context, topic)


@asynccontextmanager
async def queries(stack: Stack) -> AsyncIterator[Queries]:
    """Runs on an empty database."""
    with ScriptedLLM() as llm:
        async with own_database(stack) as context:
            made = Queries(context, await address_of(stack, context), llm)
            try:
                yield made
            finally:
                llm.release_all()
                await end_all(made.workers)
