"""The wheel: one package, which runs from any folder and stands beside others' folders of the same names.

On what it starts, with the sample, the README's tour is run as it is printed there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from highwater.api.cli.main import highwater
from highwater.api.command.command import run_command
from highwater.deploy.release import build
from tests import ROOT
from tests.contract.documented_commands import blocks

pytestmark = pytest.mark.long

# Blocks of the notebook's page, run in a project that has modules of its own called `api` and `schemas`.
NOTEBOOK = """
import re, sys, time
import api, schemas
assert (api.WHOSE, schemas.WHOSE) == ("the project's", "the project's")
import highwater
assert not {name for name in sys.modules if name.startswith("highwater.")}, "a role was loaded unasked"
from highwater import Client
hw, until = Client(), time.monotonic() + 180
while not hw.document("/api/users/ada/pending")["cluster_version"]:
    assert time.monotonic() < until, "ada has no clusters"
    time.sleep(0.5)
hw.close()
for block in re.findall(r"```python\\n(.*?)```", open(sys.argv[1], encoding="utf-8").read(), re.DOTALL):
    exec(compile(block, sys.argv[1], "exec"))
print(len(insights), largest.height, hw.clusters("ada").version)
hw.close()
"""


def _run(*command: str | Path, cwd: Path, env: dict[str, str], seconds: float = 300) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git has or would take, built as a release is, where nothing else lies."""
    source = tmp_path_factory.mktemp("source")
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT, env=dict(os.environ))
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                target.symlink_to((ROOT / name).readlink())
            else:
                target.write_bytes((ROOT / name).read_bytes())
    made = tmp_path_factory.mktemp("wheel")
    return build(source, made)[1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it depends on, and the broker's files, are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A path in a .pth brings in the packages there and runs no other .pth, so no editable install of a checkout.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    _run(*pip, "install", "--quiet", "--no-deps", wheel, cwd=folder, env=dict(os.environ))
    (folder / "share").mkdir(exist_ok=True)
    (folder / "share" / "highwater").symlink_to(Path(sys.prefix) / "share" / "highwater")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project, with folders named like ours."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("api", "schemas"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('WHOSE = "the project\'s"\n', encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    """The environment of a terminal with the wheel's environment active."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIGHWATER_", "PYTHON"))}
    return {**clean, "PATH": f"{installed / 'bin'}:{clean['PATH']}"}


@pytest.fixture(scope="module")
def started(installed: Path, project: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The product of the wheel with its sample, and what `up --json` printed; `down` stops it."""
    program = installed / "bin" / "highwater"
    status = json.loads(_run(program, "up", "--detach", "--json", cwd=project, env=environment))
    try:
        yield status
    finally:
        stopped = json.loads(_run(program, "down", "--json", cwd=project, env=environment))
        assert (stopped["was_running"], Path(stopped["data_dir"]).parent) == (True, project)


def test_the_wheel_has_one_package(wheel: Path) -> None:
    """Nothing but `highwater` arrives in site-packages, with the files that its modules read."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"highwater"}
    for needed in (
        "highwater/py.typed",
        "highwater/schemas/avro/feeds/InsightIngested.v1.avsc",
        "highwater/connectors/postgres/migrations/0001_spine.sql",
        "highwater/connectors/feeds/feeds.sql",
        "highwater/streams/identity/default_plans.toml",
        "highwater/streams/locales/ru.po",
        "highwater/streams/models/pieces.txt",
        "highwater/api/sample/commits.jsonl.gz",
        "highwater/deploy/local/jars.lock",
    ):
        assert needed in names


def test_the_wheel_runs_beside_a_project_of_the_same_names(
    installed: Path, project: Path, environment: dict[str, str], started: dict[str, Any]
) -> None:
    """`highwater up` from another folder says where all is, and the notebook's lines run beside the project's own modules."""
    program, python = installed / "bin" / "highwater", installed / "bin" / "python"
    assert _run(program, "--version", cwd=project, env=environment).startswith("highwater, version ")
    where = _run(
        python, "-c", "import highwater.streams; print(highwater.streams.__file__)", cwd=project, env=environment
    )
    assert where.startswith(str(installed))
    assert (started["ready"], Path(started["data_dir"]).parent) == (True, project)
    told = _run(python, "-c", NOTEBOOK, ROOT / "docs" / "notebook.md", cwd=project, env=environment)
    insights, clusters, version = map(int, told.split()[-3:])
    assert insights >= 3_000
    assert clusters > 0
    assert version >= 1


def test_the_tour_of_the_readme(project: Path, environment: dict[str, str], started: dict[str, Any]) -> None:
    """Five minutes: each step, run as it is printed, prints what its line promises."""
    (tour,) = [block for block in blocks((ROOT / "README.md").read_text("utf-8")) if "API=$(" in block]
    # Each step opens with a comment; the mark parts what they print.
    script = re.sub(r"^# ", "echo; echo '=====' # ", tour, flags=re.MULTILINE)
    told = _run("bash", "-euc", script, cwd=project, env=environment)
    empty, first, feed, again, own_write, rebuilt, log = (part.strip() for part in told.split("====="))
    assert (empty, first) == ("", "")
    pending, end = json.JSONDecoder().raw_decode(feed)
    assert pending["cluster_version"] >= 1
    lines = feed[end:].split("\n")
    assert re.fullmatch(r"\d+ \S.*", lines[0] or lines[1])  # size and label of the largest cluster
    fields = {line.partition(":")[0].lower() for line in lines}
    assert {"etag", "x-caused-by", "x-resource-version"} - fields == set()
    assert again.split()[1] == "304"
    assert own_write.startswith('{"')
    ended, since, history = rebuilt.splitlines()
    assert json.loads(ended)["status"] in {"rebuilt", "unchanged", "skipped"}
    assert since.startswith('{"')
    assert history.startswith('{"')
    assert "feeds.insight-ingested" in log
    assert "feeds.rebuild-requested/" in log


# Commands that only read, with arguments that the sample has answers for.
READING = (
    "status", "topics", "topics --all", "topics feeds.insight-ingested", "describe feeds.insight-ingested",
    "groups", "schemas", "schemas feeds.insight-ingested-value", "tail feeds.insight-ingested -n 3 --no-follow", "lag",
    "top --once", "dlq list", "doctor --settings", "users pending ada", "explain feed ada",
    "capacity --users 1000 --channels 20 --insights-per-day 5000", "upgrade --check",
)  # fmt: skip


def test_json_is_all_that_is_printed(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--json` each line of standard output is a document, also of commands that have messages for people."""
    monkeypatch.setenv("HIGHWATER_DATA_DIR", started["data_dir"])
    faults = {}
    for command in READING:
        status = run_command(highwater, [*command.split(), "--json"])
        told = capsys.readouterr()
        try:
            documents = [json.loads(line) for line in told.out.splitlines()]
        except ValueError:
            documents = []
        if status or not documents:
            faults[command] = (status, told.out[:200], told.err[-300:])
    assert faults == {}
