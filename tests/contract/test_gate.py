"""`.ci/run` against the tests there are: each is in one of its runs, none in both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import ROOT

GATE = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
# The files that pytest collects for the arguments of each run; a file is not imported for it, which would take half a minute.
# All in one process, whose start would be most of the work.
LISTING = """
import json
import sys
import pytest

class Listing:
    def __init__(self):
        self.found = []

    def pytest_pycollect_makemodule(self, module_path, parent):
        self.found.append(str(module_path))
        return Nothing.from_parent(parent, path=module_path)

class Nothing(pytest.File):
    def collect(self):
        return []

found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    listing = Listing()
    status = pytest.main([*arguments, "--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[listing])
    found[name] = [int(status), listing.found]
print("\\n" + json.dumps(found))
"""


def runs() -> dict[str, list[str]]:
    """The arguments of each run of tests, as bash makes them of the lines of `.ci/run`."""
    lines = [
        line
        for line in map(str.strip, GATE.splitlines())
        if re.match(r"(code|late|product|alone)=\(|(begin )?tests \d+ \w+ ", line)
    ]
    script = "\n".join(['begin() { "$@"; }', "tests() { echo ${*:2}; }", *lines])
    said = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name: arguments for name, *arguments in (line.split() for line in said.splitlines())}


def collected(arguments: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    """The files that pytest takes in each run."""
    command = [sys.executable, "-c", LISTING, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {status for status, _ in found.values()} == {5}, (
        done.stdout + done.stderr
    )  # nothing is collected of the files
    return {name: [Path(path) for path in paths] for name, (_, paths) in found.items()}


def test_every_test_runs_once():
    """The runs have all files of tests between them, and none twice: a new folder is in the run of all that is not named."""
    found = collected(runs())
    assert set(found) == {"code", "late", "product", "alone", "services"}
    assert all(found.values())
    every = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(path for paths in found.values() for path in paths) == every


def test_what_a_run_names_is_there():
    """A folder that was moved would otherwise be in the other run, unnoticed."""
    named = [one.removeprefix("--ignore=") for arguments in runs().values() for one in arguments]
    assert [one for one in named if not (ROOT / one).is_dir()] == []
