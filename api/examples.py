"""Owns the example requests of the OpenAPI document, by operation.

Invariant: an integration test (`tests/integration/core/test_openapi_examples.py`) sends each of them and gets the
documented answer; an operation whose path has no example here is shown without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from highwater.schemas.topics import TOPICS

_METHODS = ("get", "put", "post", "delete")
_REQUEST_ID = "0d9b6a5e-3a53-4f0f-9f0c-0a4b5f1f7a01"
USER_ID = "11111111-1111-4111-8111-111111111111"
JOB_ID, FAILED_JOB_ID = "5b8d3a52-6f0e-4f7c-8f5e-2f1d9a3c7b01", "5b8d3a52-6f0e-4f7c-8f5e-2f1d9a3c7b02"
DECK_ID = "5b8d3a52-6f0e-4f7c-8f5e-2f1d9a3c7b03"
WAITING_JOB_ID = "5b8d3a52-6f0e-4f7c-8f5e-2f1d9a3c7b04"
DOCUMENT = "Highwater reads the log from any position.\n"
DOCUMENT_SHA256 = "7feca6f3149229bd422edb078fcc5fd68d2e2bf02ce1bbedc6e3dcda55542b68"
# Examples of parameters in paths, by name.
PATH_EXAMPLES: Mapping[str, str] = {
    "ad": "banner",
    "channel": "kafka",
    "club": "Leeds",
    "cluster_id": "consumers",
    "curation_id": "4f1d2c3b4a596877",
    "group": "insights",
    "ingest_id": "docs-2026-11-20",
    "insight": "kafka#1",
    "job_id": JOB_ID,
    "key": "clusters:ada",
    "link": "5b8d3a52-6f0e-4f7c-8f5e-2f1d9a3c7b05",
    "match": "m-1",
    "org": "acme",
    "position": "feeds.rebuild-demanded/0/7",
    "presentation": DECK_ID,
    "presentation_id": DECK_ID,
    "request_id": _REQUEST_ID,
    "role": "Mentor",
    "season": "2025-26",
    "sha256": DOCUMENT_SHA256,
    "topic": "feeds.insight-ingested",
    "subject": TOPICS["feeds.insight-ingested"].subject,
    "token": "hwp_Qk3xv0m9w1r2c7Zt5yUe8aLs4dFg6hJn0pBvXiTqMwY",
    "user": "ada",
}


@dataclass(frozen=True, slots=True)
class Example:
    """The example of one operation: its body, and values of parameters that have no example or need another one, by
    name.
    """

    body: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


EXAMPLES: Mapping[str, Example] = {
    "get_history": Example(parameters={"metric": "rate"}),
    # Feeds.
    "get_feed": Example(parameters={"since": 0}),
    "put_subscriptions": Example({"channels": ["kafka", "postgresql"]}),
    "put_user_plan": Example({"plan": "pro"}),
    "put_label": Example({"label": "Consumer groups"}),
    "post_merge": Example({"cluster_ids": ["rebalances"]}),
    "post_split": Example({"parts": [{"insight_ids": ["kafka#1"], "label": "Lag"}]}),
    # Leagues.
    "post_score": Example({"home_goals": 1, "away_goals": 0, "minute": 37}),
    "post_result": Example({"home_goals": 2, "away_goals": 1}),
    "post_vote": Example({"user_id": "ada", "choice": "home"}),
    "put_prediction": Example({"user_id": "ada", "home_goals": 2, "away_goals": 1}),
    "post_comment": Example({"user_id": "ada", "text": "What a match."}),
    "put_rules": Example(
        {
            "deductions": [{"team": "Leeds", "points": 9, "reason": "Insolvency"}],
            "tie_breaks": ["head_to_head_points", "goal_difference"],
        }
    ),
    "put_ad": Example({"text": "Read more", "url": "https://example.org"}),
    # Queries.
    "post_query": Example({"user_id": USER_ID, "query": "Why do consumers rebalance?"}),
    "get_queries": Example(parameters={"user": USER_ID}),
    "post_query_restart": Example({"stage": "analyzer"}),
    "put_prompt": Example({"prompt_template": "Answer in one sentence.", "is_active": True}),
    # Chunks.
    "post_ingest": Example(
        {
            "ns": "docs",
            "slot": "main",
            "source_id": "readme",
            "ingest_id": "docs-2026-11-21",
            "full": True,
            "chunks": [{"chunk_no": 0, "title": "Replay", "content": "Highwater reads the log from any position."}],
        }
    ),
    "get_search": Example(parameters={"ns": "docs", "q": "read the log"}),
    "get_lifecycle": Example(parameters={"ns": "docs"}),
    # Jobs.
    "post_job": Example(
        {"kind": "generation", "organization_id": "acme", "user_id": "ada", "args": {"query": "Consumer groups"}}
    ),
    "post_job_approval": Example(
        {"outline": {"title": "Consumer groups", "slides": [{"title": "Rebalances", "points": ["Why they happen"]}]}},
        {"job_id": WAITING_JOB_ID},
    ),
    "post_job_restart": Example(parameters={"job_id": FAILED_JOB_ID}),
    "put_blob": Example(DOCUMENT, {"organization_id": "acme", "filename": "readme.txt"}),
    "get_blob": Example(parameters={"organization_id": "acme"}),
    "get_left_out": Example(parameters={"organization_id": "acme"}),
    "put_organization_plan": Example({"plan": "pro", "subscription_status": "active"}),
    # People.
    "post_session": Example({"user_id": "ada", "role": "viewer", "organization_id": "acme"}),
    "put_role": Example({"role": "editor"}),
    # The log.
    "publish_events": Example(
        {"insight_id": "kafka#9", "channel_id": "kafka", "ts": "2026-11-20T12:00:00Z", "text": "A consumer lags."}
    ),
    "get_group_reset": Example(parameters={"to": "earliest"}),
    "post_group_reset": Example({"to": "latest", "topics": ["feeds.insight-ingested"]}),
    "get_schema_diff": Example(parameters={"from": 1, "to": 1}),
    "post_schema_check": Example({"schema": '{"type": "record", "name": "Order", "fields": []}'}),
    "get_records": Example(parameters={"where": 'value.channel_id == "kafka"', "limit": 10}),
    "export_records": Example(parameters={"format": "csv", "key": "kafka"}),
    "post_invalidate": Example({"keys": ["league:table:2025-26"]}),
}


def add_examples(document: dict[str, Any]) -> None:
    """Add to each operation its example: for each parameter, and for the body."""
    for operation in _operations(document):
        example = EXAMPLES.get(operation["operationId"], Example())
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if name in example.parameters:
                parameter["example"] = example.parameters[name]
            elif parameter["in"] == "path" and name in PATH_EXAMPLES:
                parameter["example"] = PATH_EXAMPLES[name]
        if example.body is not None:
            content = operation["requestBody"]["content"]
            next(iter(content.values()))["example"] = example.body


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for item in document["paths"].values():
        yield from (operation for method, operation in item.items() if method in _METHODS)
