"""The requirements, where each is decided, and the tests that prove it: writes `docs/requirements.md`.

    python -m tests.requirements

The lines are in `requirements.tsv`; which test proves which is said where the test stands, by a marker
`@pytest.mark.requirement("R0.14")`.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

LINES = ROOT / "tests" / "requirements.tsv"
PAGE = ROOT / "docs" / "requirements.md"
# How many requirements each subsystem has, in the order of the specification.
SUBSYSTEMS = {
    "Feeds: rebuilds on demand": 44,
    "Queries: the pipeline of stages": 41,
    "Jobs: state, progress, limits, usage": 43,
    "Chunks: their lifecycle": 25,
    "Leagues: versioned pages": 42,
}
NUMBERS = [f"R{place}.{one}" for place, count in enumerate(SUBSYSTEMS.values()) for one in range(1, count + 1)]

_OPENING = """# Requirements

<!-- Written by `python -m tests.requirements` from tests/requirements.tsv and the markers on tests; do not edit. -->

What the product must do, one line per requirement: its number, its content, the module that decides it, and the tests that
prove it. A test names what it proves (`@pytest.mark.requirement("R0.14")`); `tests/contract/test_requirements.py` compares both.
`pytest -m requirement` runs all of these tests.

{proved} of {all} requirements are proved by {tests} tests. The others say why not.
"""


class Line(NamedTuple):
    """A requirement: its number, its content, the files that decide it, and, if no test proves it, why."""

    number: str
    text: str
    places: tuple[str, ...]
    unproved: str


class Proof(NamedTuple):
    """A test that proves a requirement."""

    number: str
    path: Path
    test: str


def read_lines(path: Path = LINES) -> list[Line]:
    """The requirements in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [Line(row[0], row[1], tuple(row[2].split()), row[3] if len(row) > 3 else "") for row in rows]


def read_proofs(root: Path = ROOT) -> list[Proof]:
    """Every marker on a test, in the order of the files; nothing is imported."""
    return [
        Proof(number, path.relative_to(root), function.name)
        for path in sorted((root / "tests").rglob("test_*.py"))
        for function in _tests(read_marked(path))
        for number in numbers_of(function.decorator_list)
    ]


def read_marked(path: Path) -> ast.Module:
    """A file of tests; an empty one where no marker can be in it, since to read all of them takes seconds."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text if "requirement" in text else "")


def _tests(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def numbers_of(nodes: list[ast.expr]) -> list[str]:
    """The numbers in the markers among these decorators, also in those of parameters."""
    calls = [
        call
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.requirement"
    ]
    return [ast.literal_eval(argument) for call in calls for argument in call.args]


def make_page(lines: list[Line], proofs: list[Proof]) -> str:
    """The page."""
    by_number: dict[str, list[Proof]] = {}
    for proof in proofs:
        by_number.setdefault(proof.number, []).append(proof)
    parts = [
        _OPENING.format(
            proved=sum(line.number in by_number for line in lines),
            all=len(lines),
            tests=len({(proof.path, proof.test) for proof in proofs}),
        )
    ]
    for place, title in enumerate(SUBSYSTEMS):
        parts += [f"\n## {title}\n\n| number | requirement | decided in | proved by |\n|---|---|---|---|\n"]
        of_this = [line for line in lines if line.number.startswith(f"R{place}.")]
        parts += [_row(line, by_number.get(line.number, [])) for line in of_this]
    return "".join(parts)


def _row(line: Line, proofs: list[Proof]) -> str:
    places = ", ".join(f"[{place}](../{place})" for place in line.places)
    tests = ", ".join(f"[{proof.test.removeprefix('test_')}](../{proof.path})" for proof in proofs)
    return f"| {line.number} | {line.text} | {places} | {tests or 'Not proved: ' + line.unproved} |\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(read_lines(), read_proofs()), encoding="utf-8")
