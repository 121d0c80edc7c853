"""The API against its own OpenAPI document: schemathesis sends valid and invalid requests, at the edges of every schema.

`HIGHWATER_FUZZ_EXAMPLES=500` has it also send this many random requests for each operation, others each time, and follow
their results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from highwater.schemas.feeds import REBUILD_DEMANDED
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from tests.integration.api_server import Api, Seeds

pytestmark = pytest.mark.long

KEYS = "admin:root-key"
LONG = os.environ.get("HIGHWATER_FUZZ_EXAMPLES")
# Streams have no end of their own.
STREAMS = ("/api/changes", "/api/jobs/{job_id}/events")
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def own_settings(own_settings: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No request is refused for its rate, which this test would exceed."""
    plans = tmp_path_factory.mktemp("plans") / "plans.toml"
    plans.write_text("[plans.enterprise]\nrequests_per_minute = 1000000\n", encoding="utf-8")
    return partial(own_settings, HIGHWATER_PLANS=plans, HIGHWATER_LIVE_REQUESTS_MAX=1_000_000)


@pytest.fixture(scope="module")
async def seeds(seeds: Seeds) -> Seeds:
    """No sink runs here; every requested rebuild counts as stored, or reading one would wait and be a 503."""
    for partition in range(TOPICS[REBUILD_DEMANDED].partitions):
        await seeds.account_for(Position(REBUILD_DEMANDED, partition, 10**15))
    return seeds


def fuzz(url: str, report: Path) -> subprocess.CompletedProcess[str]:
    """Run schemathesis over the document at an address; its events are in the report."""
    # A request has a minute: the client's own ten seconds are missed on a machine that somebody else keeps busy.
    effort = ["--phases", "coverage", "--generation-deterministic", "--no-shrink", "--request-timeout", "60"]
    if LONG is not None:
        effort = ["--phases", "coverage,fuzzing,stateful", "-n", LONG, "--request-timeout", "60"]
    left_out = [word for path in STREAMS for word in ("--exclude-path", path)]
    command = [
        *(
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(CONFIG),
            "run",
            f"{url}/openapi.json",
        ),
        *("--header", "Authorization: Bearer root-key", "--checks", "all", "--continue-on-failure"),
        *("--report", "ndjson", "--report-ndjson-path", str(report), "--no-color", "--warnings", "off"),
        *effort,
        *left_out,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=report.parent, check=False)


def statuses(report: Path) -> Counter[int]:
    """How many answers of each status there were."""
    found: Counter[int] = Counter()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("status_code"), int):
                found[value["status_code"]] += 1
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for line in report.read_text(encoding="utf-8").splitlines():
        look(json.loads(line))
    return found


@pytest.mark.timeout(3_600 if LONG else 1_800)
async def test_the_api_answers_as_its_document_says(guarded: Api, tmp_path: Path) -> None:
    """No answer has a status, a media type or a form that is not in the document, or a 5xx; what it forbids is refused."""
    report = tmp_path / "report.ndjson"
    done = fuzz(guarded.url, report)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    found = statuses(report)
    # Proof of coverage: reads and writes were answered, and refusals of every kind were seen.
    assert found.total() > 1_000
    assert {200, 202, 404, 405, 422} <= set(found)
    assert not {status for status in found if status >= 500}
