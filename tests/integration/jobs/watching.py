"""Shared parts of the tests of watched jobs: jobs as their sinks store them, their events, the materializer, and listeners."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from highwater.connectors.jobs.progress import Progress
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.schemas.jobs import CHECKPOINT_SAVED, PROGRESS, USAGE_RECORDED
from highwater.streams.clock import ProductClock, to_datetime
from tests.integration.api_server import Api, Seeds

AT_MS = 1_700_000_000_000
ADA, BOB = "ada", "bob"
ORG = "acme"


def new_id() -> str:
    """A fresh UUID."""
    return str(uuid.uuid4())


async def store_job(seeds: Seeds, **columns: Any) -> str:
    """Store a job; return its id. Other columns are those of one that runs, and has published nothing for a minute."""
    at = to_datetime(ProductClock()() - 60_000)
    row = {
        "job_id": new_id(), "kind": "generation", "organization_id": ORG, "user_id": ADA, "args": '{"query": "why?"}',
        "status": "running", "arrived_ms": 1, "position": "jobs.job-submitted/0/7", "caused_by": "jobs.job-submitted/0/7",
        "created_at": at, "updated_at": at, "epoch": 1, **columns,
    }  # fmt: skip
    await seeds.insert("jobs", **row)
    return str(row["job_id"])


async def change_job(seeds: Seeds, job_id: str, **columns: Any) -> None:
    """Other values for columns of a job."""
    await seeds.change("jobs", "job_id", job_id, **columns)


def _event(topic: str, value: dict[str, Any], key: str) -> Event:
    return Event(Record(topic, 0, value.get("seq", 0), AT_MS, key.encode(), b"x", []), value)


def step(job_id: str, seq: int, event_type: str = "slide_completed", *, pct: int | None = None, **more: Any) -> Event:
    """A `jobs.progress`."""
    value = {
        "job_id": job_id, "organization_id": ORG, "user_id": ADA, "seq": seq, "event_type": event_type,
        "slide_number": None, "slide_id": None, "slide_title": None, "progress_pct": min(seq // 3, 99) if pct is None else pct,
        "error_message": None, "at": AT_MS + seq, **more,
    }  # fmt: skip
    return _event(PROGRESS, value, job_id)


def steps(job_id: str, first: int, last: int, *, is_done: bool = False) -> list[Event]:
    """Events of these numbers; the last one is the end, if it is."""
    found = [step(job_id, seq) for seq in range(first, last + 1)]
    return [*found[:-1], step(job_id, last, "generation_done", pct=100)] if is_done else found


def checkpoint(job_id: str, *, epoch: int = 1, done: int = 7, status: str = "running") -> Event:
    """A `jobs.checkpoint-saved`."""
    value = {
        "job_id": job_id, "presentation_id": job_id, "status": status, "outline": '{"title": "T"}', "slides_completed": done,
        "slides_total": 15, "completed_slide_ids": [f"s{n}" for n in range(1, done + 1)], "worker_id": "9", "epoch": epoch,
        "state": "{}", "at": AT_MS,
    }  # fmt: skip
    return _event(CHECKPOINT_SAVED, value, job_id)


def tombstone(job_id: str) -> Event:
    """The record without a value that ends the checkpoints of a job."""
    return Event(Record(CHECKPOINT_SAVED, 0, 9, AT_MS, job_id.encode(), None, []), {})


def used(org: str, seq: int, *, slides: int = 15, tokens: int = 100, cents: int = 29) -> Event:
    """A `jobs.usage-recorded`."""
    value = {
        "organization_id": org, "job_id": new_id(), "period": "2023-11", "seq": seq, "presentations": 1, "slides": slides,
        "tokens": tokens, "cost_cents": cents, "at": AT_MS + seq,
    }  # fmt: skip
    return _event(USAGE_RECORDED, value, org)


async def materialize(progress: Progress, events: Sequence[Event]) -> Sequence[DeadLetter]:
    """One batch, as the consumer hands it over."""
    return await progress.apply(None, events, await progress.prepare(events))


# -- listeners ------------------------------------------------------------------------------------------------------------


class EventSource:
    """A stream of server-sent events as a client reads it."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.comments: list[str] = []

    async def read(self) -> None:
        """Read until the end."""
        fields: dict[str, str] = {}
        async for line in self._answer.aiter_lines():
            if line.startswith(":"):
                self.comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                if "data" in fields:
                    document = json.loads(fields["data"])
                    assert (fields["id"], fields["event"]) == (document["id"], document["event_type"])
                    self._told.put_nowait(document)
                fields = {}
        self._told.put_nowait(None)

    async def next(self, seconds: float = 15.0) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        return await asyncio.wait_for(self._told.get(), seconds)

    async def all(self) -> list[dict[str, Any]]:
        """Every event up to the end."""
        found = []
        while (told := await self.next()) is not None:
            found.append(told)
        return found


@asynccontextmanager
async def event_source(
    api: Api, job_id: str, after: str | None = None, token: str | None = None
) -> AsyncIterator[EventSource]:
    """An open stream."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with (
        api.client(token) as client,
        client.stream("GET", f"/api/jobs/{job_id}/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        source = EventSource(answer)
        reading = asyncio.create_task(source.read())
        try:
            yield source
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def job_socket(
    api: Api, job_id: str, after: str | None = None, token: str | None = None, **more: Any
) -> AsyncIterator[ClientConnection]:
    """An open socket."""
    query = "" if after is None else f"?last_event_id={after}"
    url = f"{api.url.replace('http://', 'ws://')}/api/jobs/{job_id}/ws{query}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with connect(url, additional_headers=headers, proxy=None, close_timeout=2, **more) as connection:
        yield connection


async def said(connection: ClientConnection, seconds: float = 15.0) -> dict[str, Any]:
    """The next message of a socket."""
    return dict(json.loads(await asyncio.wait_for(connection.recv(), seconds)))


async def rest(connection: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The remaining messages of a socket, and its closing code."""
    found = []
    try:
        while True:
            found.append(await said(connection))
    except ConnectionClosed as ending:
        return found, -1 if ending.rcvd is None else int(ending.rcvd.code)


async def is_quiet(heard: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """Whether only heartbeats come for this long."""
    try:
        async with asyncio.timeout(seconds):
            while (await heard()) == {"event_type": "heartbeat"}:
                pass
    except TimeoutError:
        return True
    return False


def seqs(told: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of events."""
    return [int(one["id"].partition("-")[0]) for one in told]
