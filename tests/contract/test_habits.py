"""The habits of a public project: one gate, quick checks before a commit, notices, a bill of materials, no registry address."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from highwater.deploy import dependencies, notices, sbom
from tests import ROOT, generated

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ANSWER = json.loads(dependencies.ANSWER.read_text("utf-8"))
# Hosts from which packages are fetched; a dot is `[.]`, so that this file is not found. A lock with such an address would bind an
# installation to one registry.
REGISTRIES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]apache[.]org|npmjs[.](org|com)|proxy[.]golang[.]org|crates[.]io"
    r"|rubygems[.]org|--(extra-)?index-url [a-z]|find-links[ ]="
)


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_the_workflow_runs_the_gate_and_nothing_else() -> None:
    """The workflow passes exactly if the gate passes: its only command is `.ci/run`, on the oldest and the newest permitted
    Python.
    """
    (job,) = _yaml(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    lowest, above = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert job["strategy"]["matrix"]["python"] == [f"3.{lowest}", f"3.{int(above) - 1}"]
    versions = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python :: 3." in one]
    assert versions == [f"3.{minor}" for minor in range(int(lowest), int(above))]


def test_hooks_are_checks_of_the_gate() -> None:
    """None fetches a program, and each runs what `make check` runs, so that a commit is judged once."""
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)", ".venv/bin").splitlines()
    commands = {line.strip().removesuffix(" .") for line in makefile}
    hooks = [(one["repo"], hook) for one in _yaml(".pre-commit-config.yaml")["repos"] for hook in one["hooks"]]
    assert {(repo, hook["language"]) for repo, hook in hooks} == {("local", "system")}
    assert [hook["id"] for _, hook in hooks if hook["entry"].replace(" --force-exclude", "") not in commands] == []


@pytest.mark.parametrize("path", ["bug.md", "feature.md"])
def test_an_issue_template_has_its_form(path: str) -> None:
    """GitHub offers a template only with a name and a line on what it is for."""
    _, head, body = (ROOT / ".github/ISSUE_TEMPLATE" / path).read_text("utf-8").split("---\n", 2)
    assert {"name", "about"} <= yaml.safe_load(head).keys()
    assert body.count("**") >= 4


def test_generated_pages_are_current() -> None:
    """Each is what its program writes."""
    assert list(generated.outdated()) == []


def test_a_page_that_was_edited_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The check names it and exits with 1."""
    edited = tmp_path / "THIRD_PARTY.md"
    edited.write_text(notices.page() + "\n", encoding="utf-8")
    monkeypatch.setattr(generated, "PAGES", {edited: notices.page})
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    assert generated.main(["--check"]) == 1
    assert "THIRD_PARTY.md is out of date" in capsys.readouterr().err
    assert generated.main([]) == 0
    assert generated.main(["--check"]) == 0


def test_notices_name_every_locked_package() -> None:
    """Each once in the list by licence; what carries something under another licence is locked."""
    listed = notices.render(ANSWER).partition("## All packages")[2]
    text = re.sub(r"\s+", " ", listed)
    missing = [str(pin) for pin in dependencies.locked() if text.count(f" {pin.name} {pin.version}") != 1]
    assert missing == []
    assert set(ANSWER["carried"]) <= {pin.name for pin in dependencies.locked()}


def test_the_bill_of_materials_is_complete() -> None:
    """One component per locked package with a licence, none twice, jars with their digests; made twice it is the same."""
    pins = dependencies.locked()
    bill = sbom.bill(pins, ANSWER, PROJECT["version"])
    components = bill["components"]
    assert [(one.get("group"), one["name"], one["version"]) for one in components] == [
        (pin.name.rpartition(":")[0] or None, pin.name.rpartition(":")[2], pin.version) for pin in pins
    ]
    assert len({one["purl"] for one in components}) == len(components)
    assert [one["purl"] for one in components if not one["licenses"]] == []
    digests = [one["hashes"] for one in components if one["purl"].startswith("pkg:maven/")]
    assert all(re.fullmatch("[0-9a-f]{64}", digest["content"]) for hashes in digests for digest in hashes)
    assert all(digests)
    inside = {part["name"]: part["licenses"] for one in components for part in one.get("components", ())}
    assert inside["OpenJDK"] == [{"expression": "GPL-2.0-only WITH Classpath-exception-2.0"}]
    assert {"PostgreSQL", "Redis", "all-MiniLM-L6-v2", "Noto fonts"} <= inside.keys()
    assert bill == sbom.bill(pins, ANSWER, PROJECT["version"])


def test_no_file_names_a_registry() -> None:
    """No lock, workflow, script or page holds the address of a package registry."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    texts = {name: (ROOT / name).read_bytes() for name in names if name and (ROOT / name).is_file()}
    assert len(texts) > 500
    found = [
        name
        for name, raw in texts.items()
        if b"\0" not in raw[:1024] and REGISTRIES.search(raw.decode("utf-8", "replace"))
    ]
    assert found == []


def test_the_version_is_semantic_and_in_the_changelog() -> None:
    """MAJOR.MINOR.PATCH, and the changelog has its section."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"])
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
