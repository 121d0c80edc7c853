"""Clients in Python and TypeScript that are generated from the OpenAPI document compile and work: users can generate theirs."""

from __future__ import annotations

import compileall
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from highwater.api.readers import files
from tests.integration import typescript
from tests.integration.api_server import Api, Seeds

KEYS = "admin:root-key"
PACKAGE = "generated_client"
TYPESCRIPT = Path(__file__).with_name("typescript")


@pytest.fixture(scope="module")
def document(guarded: Api, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The OpenAPI document; the client stands where Python finds it from then on."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "config.yml").write_text("post_hooks: []\n", encoding="utf-8")
    command = [
        *(str(Path(sys.executable).with_name("openapi-python-client")), "generate", "--meta", "none"),
        *("--url", f"{guarded.url}/openapi.json", "--config", str(folder / "config.yml")),
        *("--output-path", str(folder / PACKAGE)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert compileall.compile_dir(folder / PACKAGE, quiet=1)
    sys.path.insert(0, str(folder))
    return dict(guarded.app.openapi())


def operation(tag: str, name: str) -> Any:
    """A generated operation."""
    return importlib.import_module(f"{PACKAGE}.api.{tag}.{name}")


def test_every_operation_is_generated(document: dict[str, Any]) -> None:
    """By its id, under the name of its tag, and each can be imported."""
    for item in document["paths"].values():
        for one in item.values():
            assert callable(operation(one["tags"][0], one["operationId"]).sync_detailed), one["operationId"]


async def test_the_client_reads_and_writes(guarded: Api, seeds: Seeds, document: dict[str, Any]) -> None:
    """A read is an object with typed members, a write has its positions, an error is a problem."""
    await seeds.channel("kafka", 3)
    client = importlib.import_module(PACKAGE).AuthenticatedClient(base_url=guarded.url, token="root-key")
    models = importlib.import_module(f"{PACKAGE}.models")
    found = operation("feeds", "get_channel").sync("kafka", client=client)
    assert (type(found), found.current_seq, found.last_insight_ts.isoformat()) == (
        models.Channel, 3, "2026-11-20T12:00:00+00:00",
    )  # fmt: skip
    body = models.Subscriptions(channels=["kafka"])
    written = operation("feeds", "put_subscriptions").sync("ada", client=client, body=body)
    assert written.positions[0].startswith("feeds.subscriptions-replaced/")
    missing = operation("feeds", "get_channel").sync_detailed("nothing", client=client)
    assert (missing.status_code, type(missing.parsed), missing.parsed.type_.value) == (
        404, models.Problem, "/problems/not-found",
    )  # fmt: skip
    limits = operation("jobs", "get_limits").sync("acme", client=client)
    assert (limits.plan_name, limits.max_presentations_per_month, limits.features["api_access"]) == ("free", 5, False)
    client.get_httpx_client().close()


async def test_programs_in_typescript(guarded: Api, seeds: Seeds, tmp_path: Path) -> None:
    """With types generated from the document, and with the reader module of other sites, a program compiles under `--strict` and
    works: a read, 304 for the same again, a write, a problem, a list by pages.
    """
    packages = typescript.install(TYPESCRIPT)
    project = Path(shutil.copytree(TYPESCRIPT, tmp_path / "project"))
    (project / "node_modules").symlink_to(packages)
    for name, to in (
        ("highwater.js", "highwater.js"),
        ("highwater.d.ts", "highwater.d.ts"),
        ("highwater.js", "implementation.js"),
    ):
        shutil.copy(Path(files.__file__).with_name("static") / name, project / to)
    (project / "openapi.json").write_text(json.dumps(guarded.app.openapi()), encoding="utf-8")
    typescript.node(project, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "schema.d.ts")
    typescript.node(project, "node_modules/typescript/bin/tsc")
    shutil.copy(
        project / "highwater.js", project / "built"
    )  # the compiler has read its declarations and leaves it alone
    await seeds.run("DELETE FROM channels")
    for channel in ("beam", "flink", "kafka"):
        await seeds.channel(channel, 3)
    seen = json.loads(typescript.node(project, "built/client.js", guarded.url, "root-key"))
    assert seen["positions"][0].startswith("feeds.subscriptions-replaced/")
    assert seen["missing"]["title"]
    assert (seen["count"], seen["statuses"], seen["kind"], seen["pages"]) == (
        3, [200, 304], "/problems/not-found", [["beam", "flink"], ["kafka"]],
    )  # fmt: skip
    assert json.loads(typescript.node(project, "built/reader.js", guarded.url, "root-key")) == {
        "count": 3, "isSame": True, "statuses": [200, 304, 404], "problem": "/problems/not-found",
    }  # fmt: skip
