"""The audit of the dependencies: its answer covers exactly the locked packages, and a planted finding is found."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from highwater.deploy import dependencies
from highwater.deploy.dependencies import Finding, Pin
from tests import ROOT

PINS = dependencies.locked()
ANSWER = json.loads(dependencies.ANSWER.read_text("utf-8"))
PAGE = dependencies.PAGE.read_text("utf-8")


def test_the_answer_covers_the_locks(capsys: pytest.CaptureFixture[str]) -> None:
    """Same names, same versions, a licence that may be used, an answer to each vulnerability, and the page says the same."""
    status, printed = dependencies.main([]), capsys.readouterr().out
    assert status == 0, printed
    assert printed == f"{ANSWER['advisories']['records']} advisories as of {ANSWER['advisories']['state']}\n"
    assert len([one for one in PINS if one.ecosystem == "PyPI"]) > 150
    assert len([one for one in PINS if one.ecosystem == "Maven"]) > 40


def test_a_lock_that_changed_without_it_fails() -> None:
    """A package more, one fewer, and one of another version: each is named."""
    more = Pin("PyPI", "left-pad", "1.0")
    assert dependencies.faults([*PINS, more], ANSWER, PAGE) == [
        "left-pad@1.0 is locked, and the answer does not name it"
    ]
    first, *rest = PINS
    assert dependencies.faults(rest, ANSWER, PAGE)[0] == f"{first} is answered, and not locked"
    raised = Pin(first.ecosystem, first.name, f"{first.version}.1")
    told = dependencies.faults([raised, *rest], ANSWER, PAGE)
    assert told[:2] == [f"{raised} is locked, and the answer does not name it", f"{first} is answered, and not locked"]


def test_a_licence_and_a_vulnerability_need_an_answer() -> None:
    """A copyleft licence without a reason, a finding without an answer, a page that says something else."""
    name = str(PINS[-1])
    answer = {**ANSWER, "packages": {**ANSWER["packages"], name: "AGPL-3.0-only"}}
    answer["vulnerabilities"] = [*ANSWER["vulnerabilities"], {"package": name, "id": "X-1", "answer": ""}]
    told = dependencies.faults(PINS, answer, dependencies.render(answer))
    assert told == [
        f"{name} is under 'AGPL-3.0-only', and nothing says why it may be used",
        f"X-1 in {name} has no answer",
    ]
    assert dependencies.faults(PINS, ANSWER, "") == [
        "dependencies.md differs from the answer; write it with --write-page"
    ]


@pytest.mark.parametrize(
    ("licence", "expected"),
    [("MIT", True), ("BSD License", True), ("Apache-2.0 AND MIT", True), ("MPL-2.0", False), ("", False),
     ("GNU General Public License v2 (GPLv2)", False), ("MIT OR LGPL-2.1", False), ("Proprietary", False)],
)  # fmt: skip
def test_which_licences_are_permissive(licence: str, expected: bool) -> None:
    """Those that require only a notice; one that also names another licence is reviewed by a person."""
    assert dependencies.is_permissive(licence) is expected


def record(name: str, **affected: object) -> dict[str, object]:
    """An advisory on a package of PyPI."""
    return {"id": "X-1", "affected": [{"package": {"ecosystem": "PyPI", "name": name}, **affected}]}


def span(*events: dict[str, str]) -> dict[str, object]:
    """A range of versions."""
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("affected", "why"),
    [
        ({"versions": ["1.9", "2.0"]}, "named"),
        (span({"introduced": "0"}), "in range"),
        (span({"introduced": "0"}, {"fixed": "2.0.1"}), "in range"),
        (span({"introduced": "0"}, {"fixed": "2.0"}), None),
        (span({"introduced": "0"}, {"last_affected": "2.0"}), "in range"),
        (span({"introduced": "2.1"}), None),
        (span({"fixed": "1.5"}, {"introduced": "1.8"}, {"introduced": "0"}), "in range"),
        (span({"introduced": "not a version"}), "cannot be compared"),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, None),
        ({"versions": ["1.9"]}, None),
    ],
)
def test_which_versions_an_advisory_names(affected: dict[str, object], why: str | None) -> None:
    """By name or by range; one that cannot be compared counts, so that a person reviews it."""
    pin = Pin("PyPI", "some-thing", "2.0")
    expected = [] if why is None else [Finding(pin, "X-1", why)]
    assert dependencies.findings([pin], iter([record("Some_Thing", **affected)])) == expected
    assert dependencies.findings([Pin("Maven", "some-thing", "2.0")], iter([record("some-thing", **affected)])) == []


def test_records_are_read_from_folders_and_archives(tmp_path: Path) -> None:
    """JSON and YAML; a withdrawn advisory and other files are left out."""
    (tmp_path / "a.yaml").write_text("id: X-1\naffected: []\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("id: X-2\naffected: []\nwithdrawn: 2024-01-01\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("affected", encoding="utf-8")
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("X-3.json", '{"id": "X-3", "affected": []}')
    assert [one["id"] for one in dependencies.records(tmp_path)] == ["X-1"]
    assert [one["id"] for one in dependencies.records(archive)] == ["X-3"]


def test_a_newer_copy_is_checked_against_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its date is the first thing that is printed, then each finding without an answer; a copy without a date is refused."""
    pin = next(one for one in PINS if one.ecosystem == "PyPI")
    found = {**record(pin.name, versions=[pin.version]), "modified": "2030-02-03T04:05:06Z"}
    (tmp_path / "a.json").write_text(json.dumps(found), encoding="utf-8")
    assert dependencies.main(["--advisories", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"1 advisories as of 2030-02-03\n{pin}: X-1 needs an answer\n"
    (tmp_path / "a.json").write_text(json.dumps(record(pin.name)), encoding="utf-8")
    with pytest.raises(ValueError, match="no advisory with a date"):
        dependencies.read_advisories([tmp_path])


def test_an_answer_anew_keeps_what_people_wrote() -> None:
    """Manual answers and licences stay; new findings require an answer."""
    found = [Finding(PINS[-1], "X-1", "named")]
    answer, told = dependencies.refreshed(PINS, ANSWER, found, "2030-01-01", "2030-01-01", 7)
    assert told == [f"{PINS[-1]}: X-1 needs an answer"]
    assert answer["packages"] == ANSWER["packages"]
    kept = [one for one in answer["vulnerabilities"] if one["id"] != "X-1"]
    assert kept == ANSWER["vulnerabilities"]
    assert answer["advisories"] == {"state": "2030-01-01", "records": 7}


def private_imports(code: str) -> Iterator[str]:
    """The packages of others of which code imports a name or a module with an underscore."""
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for package, *rest in (name.split(".") for name in names):
            is_ours = package in sys.stdlib_module_names or package == "highwater"
            if not is_ours and any(part.startswith("_") for part in rest):
                yield package


def test_a_package_whose_private_names_are_imported_is_capped() -> None:
    """No version number promises such a name: pyproject.toml allows the locked version and not the next patch."""
    assert list(private_imports("from a import b\nfrom json import _x\nimport c._d\nfrom e import _f")) == ["c", "e"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = {canonicalize_name(one.name): one.specifier for one in map(Requirement, project["dependencies"])}
    locked = {one.name: Version(one.version) for one in PINS if one.ecosystem == "PyPI"}
    folders = ("schemas", "streams", "connectors", "api", "deploy")
    codes = [path.read_text("utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    imported = {package for code in codes for package in private_imports(code)}
    assert "hdbscan" in imported
    for name in sorted(canonicalize_name(one) for package in imported for one in packages_distributions()[package]):
        *earlier, patch = locked[name].release
        following = Version(".".join(map(str, (*earlier, patch + 1))))
        assert required[name].contains(locked[name]), name
        assert not required[name].contains(following), f"{name} {following} may lack what is imported: cap it"
