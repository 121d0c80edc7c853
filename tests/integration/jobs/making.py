"""Jobs on a database of a test's own, an engine over them, and a chat service on a script."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from highwater.connectors.engines.watch import Watch
from highwater.connectors.jobs.engine import JobEngine
from highwater.connectors.jobs.generation import GenerationSteps
from highwater.connectors.jobs.semantic_cache import SemanticCache
from highwater.connectors.jobs.sink_controls import JobControlsSink
from highwater.connectors.jobs.steps import Steps
from highwater.connectors.jobs.store import Jobs as JobStore
from highwater.connectors.jobs.worker_jobs import JobCommands
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.call_rows import Calls
from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat
from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.embeddings import Embedded
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.schemas.jobs import CONTROL
from highwater.streams.clock import fresh_number, to_datetime
from highwater.streams.identity.plans import PLANS
from highwater.streams.jobs.states import REQUESTED, Kind
from highwater.streams.models.context_windows import ContextWindows
from highwater.streams.models.costs import parse_prices
from tests.conftest import Stack
from tests.integration.connecting import event, in_outbox, in_transaction, until
from tests.integration.databases import address_of, own_database
from tests.integration.engines import LEASE_MS, Time, Worker, end_all
from tests.integration.models.scripted_llm import ScriptedLLM

DIMENSIONS = 8


class ScriptedEmbedder:
    """Vectors of a plane: a text in `cosines` has that cosine with every text that is not."""

    basis_id = model = "scripted@8"
    is_paid = True
    calls_at_once = 1

    def __init__(self) -> None:
        self.calls = self.tokens = 0
        self.cosines: dict[str, float] = {}

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Unit vectors."""
        self.calls += 1
        return [self._vector(text) for text in texts]

    async def embed_counted(self, texts: Sequence[str]) -> Embedded:
        """The same; each text counts as the given number of tokens."""
        return Embedded(await self.embed(texts), self.tokens * len(texts))

    def _vector(self, text: str) -> bytes:
        cosine = self.cosines.get(text, 1.0)
        vector = np.zeros(DIMENSIONS, dtype="<f4")
        vector[:2] = cosine, math.sqrt(1 - cosine * cosine)
        return vector.tobytes()


@dataclass
class Jobs:
    """Jobs, and workers over them."""

    context: ProcessContext
    database: str
    llm: ScriptedLLM
    link: RedisLink
    time: Time = field(default_factory=Time)
    embedder: ScriptedEmbedder = field(default_factory=ScriptedEmbedder)
    workers: list[Worker] = field(default_factory=list)

    def worker(
        self,
        kind: Kind = Kind.GENERATION,
        steps: Steps | None = None,
        *,
        slots: int = 16,
        begun_max: int = 16,
        timeout_seconds: float = 30.0,
        has_cache: bool = False,
    ) -> Worker:
        """Another worker, watching; without steps given, one that makes decks."""
        context = self.context
        counted = CountedEmbedder(context.pool, self.embedder, parse_prices(""), self.time)
        cache = SemanticCache(context.pool, self.link, counted) if has_cache else None
        windows = ContextWindows()
        calls = ModelCalls(
            Calls(context.pool),
            RemoteChat(ChatEndpoint(self.llm.url, "key", seconds_max=timeout_seconds, windows=windows)),
            parse_prices("small=1000/2000"),
            self.time,
        )
        jobs = JobStore(context.pool, context.codec, kind, begun_max=begun_max)
        engine = JobEngine(
            jobs,
            steps or GenerationSteps(context.pool, cache, self.time, model="small", windows=windows),
            calls,
            self.time,
            worker=fresh_number(),
            lease_ms=LEASE_MS,
            slots=slots,
        )
        watch = Watch(self.database, jobs, engine, self.time)
        made = Worker(engine, JobCommands(engine, kind), watch)
        made.start()
        self.workers.append(made)
        return made

    async def submit(
        self,
        query: str = "What is KRaft?",
        *,
        slides: int = 3,
        documents: Sequence[str] = (),
        organization: str = "acme",
        kind: Kind = Kind.GENERATION,
        args: dict[str, Any] | None = None,
        expires_ms: int | None = None,
        cache: bool = True,
    ) -> str:
        """A job as the sink makes it; its id."""
        job_id = str(uuid.uuid4())
        given = args or {"query": query, "slides": slides, "source_document_ids": list(documents), "cache": cache}
        await self.context.pool.execute(
            "INSERT INTO jobs (job_id, kind, organization_id, user_id, args, status, expires_ms, arrived_ms, position, "
            "caused_by, created_at, updated_at) VALUES ($1, $2, $3, 'ada', $4, 'pending', $5, $6, $7, $7, $8, $8)",
            job_id, kind, organization, json.dumps(given), expires_ms, self.time(), "jobs.job-submitted/0/7",
            to_datetime(self.time()),
        )  # fmt: skip
        return job_id

    async def put(self, text: str, *, organization: str = "acme") -> str:
        """A document of an organization; its id."""
        raw, now = text.encode(), to_datetime(self.time())
        name = sha256(raw).hexdigest()
        async with self.context.pool.acquire() as tx, tx.transaction():
            await tx.execute(
                "INSERT INTO blobs (sha256, size_bytes, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                name, len(raw), now,
            )  # fmt: skip
            await tx.execute("INSERT INTO blob_parts VALUES ($1, 0, $2) ON CONFLICT DO NOTHING", name, raw)
            await tx.execute(
                "INSERT INTO blob_owners (sha256, organization_id, media_type, created_at) "
                "VALUES ($1, $2, 'text/plain', $3)", name, organization, now,
            )  # fmt: skip
        return name

    async def request(self, worker: Worker, *job_ids: str) -> None:
        """Commands, as the consumer hands them over."""
        topic = REQUESTED[worker.engine.store.kind]
        events = [event(topic, {"job_id": job_id}) for job_id in job_ids]
        prepared = await worker.commands.prepare(events)
        async with transaction(self.context.pool) as tx:
            await worker.commands.apply(tx, events, prepared)
        await worker.commands.settle(prepared)

    async def revoke(self, job_id: str) -> None:
        """By the sink of controls."""
        await self._control(job_id, "revoke")

    async def restart(self, worker: Worker, job_id: str) -> None:
        """By the sink of controls; the command that follows is handed over."""
        await self._control(job_id, "restart")
        await self.request(worker, job_id)

    async def approve(self, worker: Worker, job_id: str, outline: dict[str, Any] | None = None) -> None:
        """By the sink of controls; the command that follows is handed over."""
        await self._control(job_id, "approve", None if outline is None else json.dumps(outline))
        await self.request(worker, job_id)

    async def _control(self, job_id: str, action: str, outline: str | None = None) -> None:
        sink = JobControlsSink(replace(self.context, clock=self.time), PLANS)
        said = event(CONTROL, {"job_id": job_id, "action": action, "reason": "", "ts": 1, "outline": outline})
        assert await in_transaction(self.context, sink, [said]) == []

    async def job(self, job_id: str) -> dict[str, Any]:
        """The row of a job."""
        return dict(await self.context.pool.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id))

    async def until_status(self, job_id: str, status: str) -> dict[str, Any]:
        """The row of a job once it stands there."""

        async def look() -> dict[str, Any] | None:
            row = await self.job(job_id)
            return row if row["status"] == status else None

        return dict(await until(look, f"{job_id} is {status}"))

    async def until_awaiting(self, job_id: str) -> dict[str, Any]:
        """The row of a job once it waits for approval."""

        async def look() -> dict[str, Any] | None:
            row = await self.job(job_id)
            return row if row["approval_until_ms"] is not None and row["worker"] is None else None

        return dict(await until(look, f"{job_id} waits for approval"))

    async def until_done(self, job_id: str, steps: int) -> None:
        """Wait until a job has finished this many steps."""

        async def look() -> bool:
            return (await self.job(job_id))["steps_done"] >= steps

        await until(look, f"{job_id} has {steps} steps")

    async def deck(self, job_id: str) -> dict[str, Any] | None:
        """The presentation that a job made."""
        row = await self.context.pool.fetchrow("SELECT * FROM presentations WHERE presentation_id = $1", job_id)
        return None if row is None else {**row, "slides": json.loads(row["slides"])}

    async def calls(self, job_id: str) -> list[dict[str, Any]]:
        """The calls of a job in their order."""
        rows = await self.context.pool.fetch("SELECT * FROM llm_calls WHERE run_id = $1 ORDER BY started_at", job_id)
        return [dict(row) for row in rows]

    async def events(self, topic: str) -> list[Any]:
        """The outbox events of a topic, in order; None for a tombstone."""
        return await in_outbox(self.context, topic)


@asynccontextmanager
async def jobs(stack: Stack) -> AsyncIterator[Jobs]:
    """Jobs on an empty database."""
    with ScriptedLLM() as llm:
        async with own_database(stack) as context:
            link = await open_redis(stack.redis)
            made = Jobs(context, await address_of(stack, context), llm, link)
            try:
                yield made
            finally:
                llm.release_all()
                await end_all(made.workers)
                await link.close()
