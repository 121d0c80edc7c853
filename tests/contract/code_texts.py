"""The texts that only readers of the code see: docstrings and comments."""

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


def code_texts() -> Iterator[Text]:
    """The docstrings and comments of every module, without names and examples in them."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield from _of_module(path)


def _of_module(path: Path) -> Iterator[Text]:
    """A module's docstrings, with the name of their owner, and its comments, with their line."""
    place, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield Text(f"{place} {getattr(node, 'name', '')}", _CODE.sub("", docstring))
    for comment in _COMMENT.finditer(source):
        line = source.count("\n", 0, comment.start()) + 1
        yield Text(f"{place}:{line}", _CODE.sub("", comment[1]))
