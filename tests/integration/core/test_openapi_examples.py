"""The examples of the OpenAPI document, each sent to a running API with what they name in its database."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import orjson
import pytest

from highwater.api.examples import DECK_ID, EXAMPLES, FAILED_JOB_ID, JOB_ID, PATH_EXAMPLES, USER_ID, WAITING_JOB_ID
from highwater.connectors.identity.sessions import token_hash
from tests.integration.api_server import NOW, Api, Seeds, cluster
from tests.integration.chunks.making import store_chunk, store_ingest, store_namespace
from tests.integration.jobs.watching import store_job
from tests.integration.queries.pipeline import store_run

KEYS = "admin:root-key"
TOKEN = "prewarm-token"
_PART = re.compile(r"\{([^}]*)\}")
OPERATIONS_MIN = 75
# Its id is a secret, which only `POST /api/sessions` answers.
WITHOUT_EXAMPLE = {"delete_session"}


@pytest.fixture(scope="module")
def own_settings(own_settings: Any) -> Any:
    """With a token for prewarming."""
    return partial(own_settings, CACHE_PREWARM_TOKEN=TOKEN)


@pytest.fixture(scope="module")
async def seeds(seeds: Seeds) -> Seeds:
    """The resources named by the examples."""
    ids = await seeds.channel("kafka", 4)
    await seeds.user("ada", ["kafka"])
    await seeds.rebuild("ada", [cluster("consumers", ids[:3]), cluster("rebalances", ids[3:])])
    rename = {"kind": "rename", "cluster_id": "consumers", "label": "x", "cluster_ids": [], "parts": []}
    await seeds.insert(
        "cluster_curations", user_id="ada", curation_id=PATH_EXAMPLES["curation_id"],
        curation=orjson.dumps(rename).decode(), arrived_ms=1, source_partition=0, source_offset=0,
    )  # fmt: skip
    await seeds.insert(
        "rebuild_demands", user_id="ada", position=PATH_EXAMPLES["position"], revision=1, demanded_at=NOW
    )
    await seeds.insert("league_seasons", season="2025-26")
    await seeds.insert(
        "league_matches", match_id="m-1", season="2025-26", round="Matchday 1", kickoff=NOW + timedelta(days=1),
        time_unknown=False, status="scheduled", home="Leeds", away="York", schedule_ms=1,
        schedule_position="league.match-scheduled/0/1",
    )  # fmt: skip
    await store_run(seeds, USER_ID, id=PATH_EXAMPLES["request_id"])
    await store_namespace(seeds, "docs")
    await store_chunk(seeds, "docs", 0)
    await store_ingest(seeds, PATH_EXAMPLES["ingest_id"], "readme")
    await store_job(seeds, job_id=JOB_ID)
    await store_job(seeds, job_id=FAILED_JOB_ID, status="failed")
    await store_job(
        seeds, job_id=WAITING_JOB_ID, approval_until_ms=1, checkpoint='{"outline": {"title": "A", "slides": []}}'
    )
    slide = {"slide_id": "s1", "number": 1, "title": "Lag", "bullets": ["why"], "notes": ""}
    await seeds.insert(
        "presentations", presentation_id=DECK_ID, organization_id="acme", user_id="ada", title="Lag",
        slides=orjson.dumps([slide]).decode(), position="jobs.generation-requested/0/3", created_at=NOW,
    )  # fmt: skip
    for link_id, token in ((PATH_EXAMPLES["link"], "revoked"), (str(uuid4()), PATH_EXAMPLES["token"])):
        await seeds.insert(
            "presentation_links", link_id=link_id, presentation_id=DECK_ID, token_hash=token_hash(token), created_at=NOW
        )
    return seeds


def requests_of(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any], Any]]:
    """Each operation's method, path, query and body, as its examples say; without those whose path or body has none."""
    found = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            given = {one["name"]: one["example"] for one in operation.get("parameters", ()) if "example" in one}
            named = _PART.findall(path)
            if not set(named) <= given.keys():
                continue
            query = {name: value for name, value in given.items() if name not in named}
            target = _PART.sub(lambda part, given=given: quote(str(given[part[1]]), safe=""), path)
            contents = operation.get("requestBody", {}).get("content", {})
            body = next(((kind, one["example"]) for kind, one in contents.items() if "example" in one), None)
            if body is None and operation.get("requestBody", {}).get("required", False):
                continue
            found[operation["operationId"]] = (method, target, query, body)
    return found


async def test_every_example_is_answered_as_it_is_documented(guarded: Api, seeds: Seeds) -> None:
    """With a 2xx that its operation names; of JSON, with the members that the document knows."""
    async with guarded.client("root-key") as http:
        document = (await http.get("/openapi.json")).json()
        statuses = {
            operation["operationId"]: {status for status in operation["responses"] if status < "300"}
            for item in document["paths"].values()
            for operation in item.values()
        }
        examples = requests_of(document)
        assert set(statuses) - set(examples) >= WITHOUT_EXAMPLE
        assert len(examples) > OPERATIONS_MIN
        assert set(EXAMPLES) <= set(examples)
        for name, (method, target, query, body) in examples.items():
            kind, value = body or ("", None)
            content = value.encode() if isinstance(value, str) else None if body is None else orjson.dumps(value)
            headers = {"X-Prewarm-Token": TOKEN} | ({"Content-Type": kind.replace("*/*", "text/plain")} if body else {})
            # A stream has no end of its own: its status is enough, and JSON is read and checked by the client.
            async with http.stream(method, target, params=query, content=content, headers=headers) as answer:
                if str(answer.status_code) not in statuses[name]:
                    pytest.fail(f"{method} {target}: {answer.status_code} {(await answer.aread())[:500]!r}")
