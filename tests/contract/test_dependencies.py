"""The audit of the dependencies: its answer covers exactly the locked packages, and a planted finding is found."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from highwater.deploy import dependencies
from highwater.deploy.dependencies import Finding, Pin

PINS = dependencies.locked()
ANSWER = json.loads(dependencies.ANSWER.read_text("utf-8"))
PAGE = dependencies.PAGE.read_text("utf-8")


def test_the_answer_covers_the_locks(capsys: pytest.CaptureFixture[str]) -> None:
    """Same names, same versions, a licence that may be used, an answer to each vulnerability, and the page says the same."""
    assert dependencies.main([]) == 0, capsys.readouterr().out
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


def test_an_answer_anew_keeps_what_people_wrote() -> None:
    """Manual answers and licences stay; new findings require an answer."""
    found = [Finding(PINS[-1], "X-1", "named")]
    answer, told = dependencies.refreshed(PINS, ANSWER, found, "2030-01-01", "2030-01-01", 7)
    assert told == [f"{PINS[-1]}: X-1 needs an answer"]
    assert answer["packages"] == ANSWER["packages"]
    kept = [one for one in answer["vulnerabilities"] if one["id"] != "X-1"]
    assert kept == ANSWER["vulnerabilities"]
    assert answer["advisories"] == {"state": "2030-01-01", "records": 7}
