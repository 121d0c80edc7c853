"""The texts that only readers of the repository see: docstrings, comments and documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from tests.contract.visible_texts import Text

ROOMS = ("api", "connectors", "deploy", "schemas", "streams")
_COMMENT = re.compile(r"^(?:.*  |\s*)# (.*)$", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Names of the code, and the lines of examples.
_CODE = re.compile(r"`[^`]*`|^ {4}(?=.*[=()]).*$", re.MULTILINE)

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PARAGRAPH = re.compile(r"\S.*?(?=\n\s*\n|\Z)", re.DOTALL)
_ADDRESS = re.compile(r"\]\([^)]*\)")
# A released section of the changelog stays as it is; notices quote licences; the table of tasks quotes threads of other projects,
# and the page about searches the questions that were searched.
NOT_HELD = ("CHANGELOG.md", "THIRD_PARTY.md", "docs/benchmarks/search.md")


def code_texts() -> Iterator[Text]:
    """The docstrings and comments of every module, without names and examples in them."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield from _of_module(path)


def test_texts() -> Iterator[Text]:
    """The docstrings and comments of the tests."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        yield from _of_module(path)


test_texts.__test__ = False  # type: ignore[attr-defined]  # not a test, wherever it is imported


def document_texts() -> Iterator[Text]:
    """The paragraphs of every document, without names, blocks of code and addresses of links; place and line of each."""
    folders = (ROOT / folder for folder in (*ROOMS, "docs", "tests"))
    for path in sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]):
        place = str(path.relative_to(ROOT))
        if place in NOT_HELD:
            continue
        source = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
        for paragraph in _PARAGRAPH.finditer(source):
            line = source.count("\n", 0, paragraph.start()) + 1
            yield Text(f"{place}:{line}", _ADDRESS.sub("]", _CODE.sub("", paragraph[0])))


def _of_module(path: Path) -> Iterator[Text]:
    """A module's docstrings, with the name of their owner, and its comments, with their line."""
    place, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield Text(f"{place} {getattr(node, 'name', '')}", _CODE.sub("", docstring))
    for comment in _COMMENT.finditer(source):
        line = source.count("\n", 0, comment.start()) + 1
        yield Text(f"{place}:{line}", _CODE.sub("", comment[1]))
