"""`.ci/run` against the tests there are: each is in one of its runs, none in both."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT

GATE = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
# What pytest collects of its arguments, file by file; a file is not imported for it, which would take half a minute.
LISTING = """
import sys
import pytest

class Listing:
    def pytest_pycollect_makemodule(self, module_path, parent):
        print("found", module_path)
        return Nothing.from_parent(parent, path=module_path)

class Nothing(pytest.File):
    def collect(self):
        return []

sys.exit(pytest.main([*sys.argv[1:], "--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[Listing()]))
"""


def runs() -> dict[str, list[str]]:
    """The arguments of each run of tests, as bash makes them of the lines of `.ci/run`."""
    lines = [
        line.removesuffix("&")
        for line in map(str.strip, GATE.splitlines())
        if re.match(r"(code|late|product|alone)=\(|tests \d+ \w+ ", line)
    ]
    script = "\n".join(["tests() { echo ${*:2}; }", *lines])
    said = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name: arguments for name, *arguments in (line.split() for line in said.splitlines())}


def collected(arguments: Sequence[str]) -> list[Path]:
    """The files that pytest takes."""
    done = subprocess.run(
        [sys.executable, "-c", LISTING, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 5, done.stdout + done.stderr  # nothing is collected of the files
    return [Path(line.removeprefix("found ")) for line in done.stdout.splitlines() if line.startswith("found ")]


def test_every_test_runs_once():
    """The runs have all files of tests between them, and none twice: a new folder is in the run of all that is not named."""
    found = {name: collected(arguments) for name, arguments in runs().items()}
    assert set(found) == {"code", "late", "product", "alone", "services"}
    assert all(found.values())
    every = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(path for paths in found.values() for path in paths) == every


def test_what_a_run_names_is_there():
    """A folder that was moved would otherwise be in the other run, unnoticed."""
    named = [one.removeprefix("--ignore=") for arguments in runs().values() for one in arguments]
    assert [one for one in named if not (ROOT / one).is_dir()] == []
