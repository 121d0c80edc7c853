"""Faults that `make check` must find: each is planted in a copy of the tree, and the check is seen to fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = pytest.mark.long

FOLDERS = ("api", "connectors", "deploy", "schemas", "streams")
# Every module of the product, and the folders of data that mypy counts as packages without one.
MODULES = sum(len(list((ROOT / folder).rglob("*.py"))) for folder in FOLDERS) + 1


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checked files, with mypy's cache, so that only differences are checked."""
    copy = tmp_path_factory.mktemp("planted")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "highwater", copy / "highwater", symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    yield copy
    shutil.rmtree(copy)


def checked(tree: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """A program of this environment, run in the tree."""
    command = [Path(sys.executable).with_name(program[0]), *program[1:]]
    return subprocess.run(
        [str(part) for part in command], cwd=tree, capture_output=True, text=True, timeout=280, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip


def plant(tree: Path, module: str, old: str, new: str) -> str:
    """Put a fault into a module; its text before."""
    path = tree / module
    before = path.read_text(encoding="utf-8")
    assert before.count(old) >= 1, f"{module} no longer says {old!r}"
    path.write_text(before.replace(old, new, 1), encoding="utf-8")
    return before


FAULTS = [
    # An event, in a handler, an agent, the pure core, and the published ones.
    ("connectors/league/worker_ratings.py", 'change["changed"]', 'change["chanegd"]', 'TypedDict "MatchChanged" has no key'),
    ("connectors/feeds/sink_insights.py", 'value["channel_id"]', 'value["chanel_id"]', 'has no key "chanel_id"'),
    ("streams/league/agents.py", 'event["season"]', 'event["saeson"]', 'has no key "saeson"'),
    ("streams/identity/users.py", 'active["ts"]', 'active["tz"]', 'has no key "tz"'),
    ("connectors/identity/sink_users.py", "revision=user.revision", "revison=user.revision", 'Extra key "revison"'),
    # A topic with another's record: what a handler reads, an agent hears, the outbox is given.
    ("connectors/league/sink_fixtures.py", "topics = (MATCH_SCHEDULED,)", 'topics = ("league.match-scheduled",)', "[assignment]"),
    ("streams/jobs/agents.py", "on(TICK, self._on_tick)", "on(TICK, self._on_recorded)", "[arg-type]"),
    ("connectors/league/refreshing.py", "codec, REFRESH_REQUESTED, event", 'codec, "league.match-changed", event', "[arg-type]"),
    # A transaction, and a statement.
    ("connectors/identity/sink_users.py", "tx.execute(", "tx.exekute(", 'has no attribute "exekute"'),
    ("connectors/feeds/sink_insights.py", '"ensure_channels"', '"ensure_chanels"', 'has no key "ensure_chanels"'),
]  # fmt: skip


def test_mypy_finds_every_planted_fault(tree: Path) -> None:
    """A mistyped field, a record under another topic, a mistyped call of a transaction, a statement that no file has."""
    before = {}
    for module, old, new, _ in FAULTS:
        text = plant(tree, module, old, new)
        before.setdefault(module, text)
    try:
        found = checked(tree, "mypy").stdout
    finally:
        for module, text in before.items():
            (tree / module).write_text(text, encoding="utf-8")
    counted = re.search(r"checked (\d+) source files", found)
    assert counted is not None, found
    assert int(counted[1]) >= MODULES, "mypy looks at a part of the modules"
    for module, _, new, said in FAULTS:
        lines = [line for line in found.splitlines() if line.startswith(f"highwater/{module}:")]
        assert any(said in line for line in lines), f"{module}: {new} was not found: {lines}"


BREACHES = [
    ("connectors/feeds/sink_insights.py", "highwater.connectors.league.rows", "highwater.connectors.feeds"),
    ("connectors/pages/maker.py", "highwater.connectors.league.rows", "highwater.connectors.pages"),
    ("connectors/kafka/outbox.py", "highwater.connectors.identity.roles", "highwater.connectors.kafka"),
    ("connectors/sources/git.py", "highwater.connectors.postgres.pool", "highwater.connectors.sources"),
    ("streams/jobs/usage.py", "highwater.streams.queries.runs", "highwater.streams.jobs"),
    ("streams/models/tokens.py", "highwater.streams.queries.runs", "highwater.streams.models"),
    ("schemas/codec.py", "highwater.streams.clock", "highwater.schemas"),
    ("api/feeds/routes_reads.py", "highwater.api.jobs.uploads", "highwater.api.feeds"),
    ("api/core/errors.py", "highwater.api.feeds.quick", "highwater.api.core"),
]


def test_import_linter_finds_every_planted_breach(tree: Path) -> None:
    """One slice that imports another, a shared room that imports a slice, a source that stores, a layer that looks up."""
    before = {module: (tree / module).read_text(encoding="utf-8") for module, _, _ in BREACHES}
    for module, imported, _ in BREACHES:
        text = before[module]
        (tree / module).write_text(f"{text}\n\nimport {imported}  # planted\n", encoding="utf-8")
    try:
        found = checked(tree, "lint-imports", "--no-cache")
    finally:
        for module, text in before.items():
            (tree / module).write_text(text, encoding="utf-8")
    assert found.returncode == 1
    said = re.sub(r"\s+", " ", found.stdout)
    for module, imported, _ in BREACHES:
        name = "highwater." + module.removesuffix(".py").replace("/", ".")
        assert f"{name} -> {imported}" in said, f"{name} -> {imported} was not found"


def test_ruff_refuses_the_bare_names(tree: Path) -> None:
    """`api`, `connectors`, `deploy`, `schemas` and `streams` are importable from a checkout, and no module may do so."""
    for folder in FOLDERS:
        module = tree / "streams" / f"planted_{folder}.py"
        module.write_text(
            f'"""Planted."""\n\nfrom {folder} import anything\n\n__all__ = ["anything"]\n', encoding="utf-8"
        )
        found = checked(tree, "ruff", "check", "--no-cache", str(module))
        module.unlink()
        assert "TID251" in found.stdout, f"{folder}: {found.stdout}"
