"""The wheel: one package, which runs from any folder and stands beside others' folders of the same names."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

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
    """The wheel of what git has or would take, built where nothing else lies."""
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
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", made, source)
    _run(*pip, cwd=source, env=dict(os.environ))
    (path,) = made.glob("*.whl")
    return path


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


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Somebody's project, with folders of its own called as ours are."""
    for name in ("api", "schemas"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('WHOSE = "the project\'s"\n', encoding="utf-8")
    return tmp_path


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
        "highwater/streams/models/pieces.txt",
        "highwater/api/sample/commits.jsonl.gz",
        "highwater/deploy/local/jars.lock",
    ):
        assert needed in names


def test_the_wheel_runs_beside_a_project_of_the_same_names(installed: Path, project: Path) -> None:
    """`highwater up` from another folder, the notebook's lines beside the project's own modules, and `highwater down`."""
    program, python = installed / "bin" / "highwater", installed / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HIGHWATER_", "PYTHON"))}
    assert _run(program, "--version", cwd=project, env=env).startswith("highwater, version ")
    where = _run(python, "-c", "import highwater.streams; print(highwater.streams.__file__)", cwd=project, env=env)
    assert where.startswith(str(installed))
    _run(program, "up", "--detach", cwd=project, env=env)
    try:
        told = _run(python, "-c", NOTEBOOK, ROOT / "docs" / "notebook.md", cwd=project, env=env)
        insights, clusters, version = map(int, told.split()[-3:])
        assert insights >= 3_000
        assert clusters > 0
        assert version >= 1
    finally:
        assert _run(program, "down", cwd=project, env=env).strip() == "stopped"
