"""The preconditions of a release: a dated section of the changelog, a clean work tree, no tag yet, recent advisories."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest

from highwater.deploy.dependencies import Advisories, Pin
from highwater.deploy.release import CHECKSUMS, ReleaseError, audit_refusals, notes_of, refusals, write_checksums
from tests import ROOT

CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0 (2026-12-01)\n\n- First.\n- Second.\n"


def test_notes_are_the_section_of_the_version() -> None:
    """From its heading to the next, or to the end."""
    assert notes_of(CHANGELOG, "0.2.0") == ("unreleased", "- New.\n")
    assert notes_of(CHANGELOG, "0.1.0") == ("2026-12-01", "- First.\n- Second.\n")
    with pytest.raises(ReleaseError, match=r"no section 0\.3\.0"):
        notes_of(CHANGELOG, "0.3.0")


def test_the_changelog_begins_with_the_version_of_the_project() -> None:
    """So that the checklist's first two steps are about one version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert notes_of(text, version)[1]
    assert text.split("\n## ")[1].split()[0] == version


@pytest.mark.parametrize(
    ("state", "changed", "tags", "said"),
    [
        ("unreleased", "", [], "instead of a date"),
        ("2026-12-01", " M README.md\n", [], "not committed: M, README.md"),
        ("2026-12-01", "", ["v0.1.0"], "the tag v0.1.0 exists"),
    ],
)
def test_a_version_that_is_not_ready(state: str, changed: str, tags: list[str], said: str) -> None:
    """Is refused with one line for each reason."""
    (line,) = refusals(state, "0.1.0", changed=changed, tags=tags)
    assert said in line
    assert refusals("2026-12-01", "0.1.0", changed="", tags=["v0.0.9"]) == []


PIN = Pin("PyPI", "left-pad", "1.0")
RECORD = {"id": "X-1", "affected": [{"package": {"ecosystem": "PyPI", "name": "left-pad"}, "versions": ["1.0"]}]}
AUDIT = {"advisories": {"state": "2026-10-01", "records": 1}, "vulnerabilities": []}


@pytest.mark.parametrize(
    ("given", "committed", "said"),
    [
        (None, "2026-11-30", []),
        (None, "2026-12-01", ["the advisories end 61 days before the commit, on 2026-10-01"]),
        (Advisories("2026-11-30", ()), "2026-12-01", []),
        (Advisories("2026-11-30", (RECORD,)), "2026-12-01", ["left-pad@1.0: X-1 needs an answer"]),
        (Advisories("2026-09-01", ()), "2026-12-01", ["end 91 days before the commit, on 2026-09-01"]),
    ],
)
def test_advisories_that_do_not_suffice(given: Advisories | None, committed: str, said: list[str]) -> None:
    """A release needs advisories of its last 60 days, its own or given ones, and an answer to each finding in given ones."""
    refused = audit_refusals(AUDIT, given, [PIN], date.fromisoformat(committed))
    assert len(refused) == len(said)
    assert all(part in line for part, line in zip(said, refused, strict=True))
    answered = {**AUDIT, "vulnerabilities": [{"package": "left-pad@1.0", "id": "X-1", "answer": "Not reached."}]}
    assert not any("needs" in line for line in audit_refusals(answered, given, [PIN], date.fromisoformat(committed)))


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    """They cover every other file."""
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / CHECKSUMS).write_text("old", encoding="utf-8")
    write_checksums(tmp_path)
    assert (tmp_path / CHECKSUMS).read_text("utf-8") == f"{hashlib.sha256(b'1').hexdigest()}  one\n"
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=tmp_path, check=True, capture_output=True)
