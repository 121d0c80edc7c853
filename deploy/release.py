"""Builds the files of a release into `dist/`: sdist, wheel, bill of materials, release notes and their checksums.

    python -m highwater.deploy.release            # refuses a version that is not ready to be tagged
    python -m highwater.deploy.release --dry-run  # lists the reasons and builds anyway
    python -m highwater.deploy.release --advisories FOLDER_OR_ZIP …   # checks the dependencies against a newer copy first

Invariant: everything is built from the commit, never from the work tree, and the wheel is built from the sdist, so that
an sdist with a missing file builds nothing. It publishes nothing and creates no tag (docs/releasing.md).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from highwater.deploy.dependencies import ANSWER, Advisories, Pin, findings, locked, read_advisories, unanswered

ROOT = Path(__file__).resolve().parent.parent
CHECKSUMS = "SHA256SUMS"
# Advisories on packages of this size are published every week; two months leave time to get a copy where there is no network.
ADVISORY_DAYS_MAX = 60
_HEADING = re.compile(r"^## (?P<version>\S+) \((?P<state>[^)]+)\)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"


class ReleaseError(Exception):
    """The release is not ready. The lines say what is missing; docs/releasing.md says how to do it."""


def notes_of(changelog: str, version: str) -> tuple[str, str]:
    """Return what the changelog has in brackets after a version, a date or `unreleased`, and the text of its section.

    Raises:
        ReleaseError: it has no section for the version.
    """
    headings = list(_HEADING.finditer(changelog))
    for place, heading in enumerate(headings):
        if heading["version"] == version:
            end = headings[place + 1].start() if place + 1 < len(headings) else len(changelog)
            return heading["state"], changelog[heading.end() : end].strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section {version}")


def refusals(state: str, version: str, *, changed: str, tags: list[str]) -> list[str]:
    """Return why a version cannot be tagged yet; empty if it can."""
    found = []
    if not _DATE.fullmatch(state):
        found.append(f"CHANGELOG.md: the heading of {version} says {state!r} instead of a date (YYYY-MM-DD)")
    if changed:
        found.append(f"the work tree has changes that are not committed: {', '.join(changed.split())}")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} exists: set the next version in pyproject.toml")
    return found


def audit_refusals(audit: Mapping[str, Any], given: Advisories | None, pins: list[Pin], committed: date) -> list[str]:
    """Return why the audit of the dependencies does not suffice for a release of this day's commit; empty if it does.

    `given` is a copy of the advisories that is newer than the audit's; None: there is none.
    """
    state = given.state if given is not None else audit["advisories"]["state"]
    days = (committed - date.fromisoformat(state)).days
    found = [] if given is None else unanswered(findings(pins, given.records), audit)
    if days > ADVISORY_DAYS_MAX:
        found.append(f"the advisories end {days} days before the commit, on {state}: give a newer copy (--advisories)")
    return found


def build(source: Path, into: Path) -> tuple[Path, Path]:
    """Build the sdist of a folder, and the wheel of the sdist.

    Raises:
        subprocess.CalledProcessError: setuptools failed; its output gives the reason.
    """
    into.mkdir(parents=True, exist_ok=True)
    sdist = _built("sdist", source, into)
    with tempfile.TemporaryDirectory(prefix="highwater-sdist-") as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        (unpacked,) = Path(scratch).iterdir()
        return sdist, _built("wheel", unpacked, into)


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of every file beside it, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    return folder / CHECKSUMS


def _built(kind: str, source: Path, into: Path) -> Path:
    before = set(into.iterdir())
    code = _BUILD.format(kind=kind)
    _run(sys.executable, "-c", code, str(into), folder=source)
    (made,) = set(into.iterdir()) - before
    return made


def _git(*arguments: str) -> str:
    return _run("git", *arguments)


def _run(*command: str, folder: Path = ROOT) -> str:
    # Without the paths of the building machine: only what is committed and installed counts.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return done.stdout


def release(into: Path, *, is_dry_run: bool, advisories: Advisories | None = None) -> list[Path]:
    """Build the files of the committed version into an empty folder; `advisories` are newer than those of the audit.

    Raises:
        ReleaseError: the version is not ready, or the folder is not empty.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    state, notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    refused = refusals(
        state, version, changed=_git("status", "--porcelain", "-z").replace("\0", "\n"), tags=_git("tag").split()
    )
    audit = json.loads(ANSWER.read_text("utf-8"))
    sys.stderr.write(f"advisories as of {advisories.state if advisories else audit['advisories']['state']}\n")
    commit_day = date.fromisoformat(_git("log", "-1", "--format=%cs").strip())
    refused += audit_refusals(audit, advisories, locked(), commit_day)
    for line in refused:
        sys.stderr.write(f"not ready: {line}\n")
    if refused and not is_dry_run:
        raise ReleaseError(f"{version} was not built")
    if into.exists() and any(into.iterdir()):
        raise ReleaseError(f"{into} is not empty: delete it first")
    with tempfile.TemporaryDirectory(prefix="highwater-release-") as scratch:
        archive = Path(scratch) / "committed.tar"
        _git("archive", "--output", str(archive), "HEAD")
        with tarfile.open(archive) as committed:
            committed.extractall(Path(scratch) / "source", filter="data")
        build(Path(scratch) / "source", into)
    bill = _run(sys.executable, "-m", "highwater.deploy.sbom")
    (into / f"highwater-{version}.cdx.json").write_text(bill, encoding="utf-8")
    (into / f"highwater-{version}.notes.md").write_text(notes, encoding="utf-8")
    write_checksums(into)
    return sorted(into.iterdir())


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m highwater.deploy.release", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--dry-run", action="store_true", help="Build even if the version is not ready to be tagged.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="Folder of the files (default: dist).")
    parser.add_argument("--advisories", type=Path, nargs="+", help="Folders or zip files of OSV records.")
    given = parser.parse_args(arguments)
    try:
        advisories = read_advisories(given.advisories) if given.advisories else None
        for path in release(given.into, is_dry_run=given.dry_run, advisories=advisories):
            sys.stdout.write(f"{path}\n")
    except (ReleaseError, ValueError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{error.cmd[0]} failed: {error.stderr or ''}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
