"""Shared parts of the tests of the API of queries: runs as the engine and its sink store them, and their events."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from tests.integration.api_server import NOW, Seeds
from tests.integration.connecting import send

STAGE_TOPIC, ARCHIVED_TOPIC = "queries.pipeline-stage", "queries.run-archived"
_SOURCE = {
    "insight_id": "i#1", "channel_id": "c", "text": "why", "position": "feeds.insight-ingested/0/1", "similarity": 0.5,
}  # fmt: skip
AT_MS = 1_700_000_000_000


def new_id() -> str:
    """A fresh UUID."""
    return str(uuid.uuid4())


async def store_run(seeds: Seeds, user_id: str, **columns: Any) -> str:
    """A run; its id. Columns not given are those of one that was just accepted."""
    request_id = columns.pop("id", None) or new_id()
    row = {
        "id": request_id,
        "user_id": user_id,
        "user_query": "what changed?",
        "status": "NEW",
        "position": f"queries.query-submitted/0/{uuid.uuid4().int % 10**9}",
        "caused_by": "queries.query-submitted/0/7",
        "arrived_ms": 1,
        "created_at": NOW,
        "updated_at": NOW,
        **columns,
    }
    if "ordinal" not in row:
        found = await seeds.run("SELECT count(*) AS n FROM pipeline_runs WHERE user_id = $1", user_id)
        row["ordinal"] = found[0]["n"] + 1
    await seeds.insert("pipeline_runs", **row)
    return request_id


async def change_run(seeds: Seeds, request_id: str, **columns: Any) -> None:
    """Other values for columns of a run."""
    if columns:
        await seeds.change("pipeline_runs", "id", request_id, **columns)


async def complete(seeds: Seeds, request_id: str, answer: str = "nothing", **columns: Any) -> None:
    """The run has its answer."""
    done = {"status": "COMPLETED", "final_answer": answer, "archive_status": "WAITING", "completed_at": NOW}
    await change_run(seeds, request_id, **{"revision": 7, **done, **columns})


async def store_call(seeds: Seeds, request_id: str, user_id: str, stage: str, **columns: Any) -> None:
    """A call of the language model that was answered in a second."""
    row = {
        "run_id": request_id, "stage": stage, "attempt": 1, "user_id": user_id, "model": "small", "prompt_ids": [1],
        "sends": 1, "started_at": NOW, "ended_at": NOW + timedelta(seconds=1), "outcome": "answered", "prompt_tokens": 100,
        "completion_tokens": 10, "cost_usd": 0.25, **columns,
    }  # fmt: skip
    await seeds.insert("llm_calls", **row)


def stage_event(request_id: str, user_id: str, status: str, **fields: Any) -> dict[str, Any]:
    """The value of a `queries.pipeline-stage`."""
    return {
        "id": request_id, "user_id": user_id, "status": status, "operation": "UPDATE", "attempt": 1, "at": AT_MS,
        "ordinal": 1, "revision": 2, "waiting": False, "error": None, **fields,
    }  # fmt: skip


def archived_event(request_id: str, user_id: str, **fields: Any) -> dict[str, Any]:
    """The value of a `queries.run-archived`."""
    return {
        "request_id": request_id, "user_id": user_id, "ordinal": 1, "archive_status": "STORED", "memory_id": 1,
        "error": None, "at": AT_MS, **fields,
    }  # fmt: skip


def publish(kafka: str, codec: Codec, topic: str, *events: dict[str, Any]) -> list[Position]:
    """Events as the relay sends them: keyed by user, murmur2."""
    records = [(event["user_id"].encode(), codec.encode(topic, event)) for event in events]
    return send(kafka, topic, records, partitioner="murmur2_random")


def sources() -> str:
    """Sources as they are stored."""
    return json.dumps([{**_SOURCE, "ts_ms": 1_700_000_000_000}])


def told_sources() -> list[dict[str, Any]]:
    """The same as they are served."""
    return [{**_SOURCE, "ts": "2023-11-14T22:13:20Z"}]
