"""What `search_quality` searches: the docstrings of installed packages, read from their sources and cut as documents are.

A source is a module; its docstrings are sections of it, each named by what it documents (`shutil.copytree`). Nothing is imported.
The packages are the standard library and what the product depends on, so the texts are those of one environment: two
environments with other versions differ by the few docstrings that their authors changed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from highwater.connectors.documents.formats import text_blocks
from highwater.streams.documents.chunking import Block, cut
from highwater.streams.models.tokens import count_tokens

# Below the standard library's folder: what documents nothing, or is another's.
_LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "_vendor"})
# Packages with long docstrings; a user of the product has them all.
PACKAGES = ("numpy", "scipy", "click", "starlette", "fastapi", "httpx", "asyncpg", "aiokafka", "redis")
# Of these alone the judged questions are: what a programmer asks, in as many chunks as a handbook has.
_NOT_JUDGED = ("numpy", "scipy")
# Shorter docstrings say no more than the name that they stand below.
_LETTERS_MIN = 40
PAIRS = 3_000
# A summary of fewer words asks nothing; of a shorter rest nobody can tell what it is the rest of.
_SUMMARY_WORDS_MIN, _REST_LETTERS_MIN = 4, 120


class Text(NamedTuple):
    """A chunk of the corpus: its source, its place in it, the headings above it, its text."""

    source_id: str
    number: int
    title: str
    content: str

    @property
    def name(self) -> str:
        """What it documents."""
        return self.title.split(" > ")[1] if " > " in self.title else self.title


class Pair(NamedTuple):
    """A docstring's first line, and what is below it."""

    name: str
    summary: str
    rest: str


@cache
def docstrings() -> dict[str, list[tuple[str, str]]]:
    """The docstrings by module, each with the name of what it documents; a text that several have stands at the first."""
    found: dict[str, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for module, path in _modules():
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # examples of what Python does not read
            continue
        for name, text in _documented(module, tree):
            if len(text) >= _LETTERS_MIN and text not in seen:
                seen.add(text)
                found.setdefault(module, []).append((name, text))
    return found


def _modules() -> Iterator[tuple[str, Path]]:
    standard, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    for base, folders in ((standard, [standard]), (packages, [packages / one for one in PACKAGES])):
        for folder in folders:
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(base).with_suffix("").parts
                if base == standard and parts[0] == "site-packages":
                    continue
                if any(part in _LEFT_OUT or (part.startswith("_") and part != "__init__") for part in parts[:-1]):
                    continue
                name = ".".join(part for part in parts if part != "__init__")
                if "test" not in parts[-1] and name:
                    yield name, path


def _documented(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, ast.AST]] = [(module, tree)]
    while waiting:
        name, node = waiting.pop(0)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield name, text
        if isinstance(node, ast.Module | ast.ClassDef):
            waiting += [
                (f"{name}.{one.name}", one)
                for one in node.body
                if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not one.name.startswith("_")
            ]


@cache
def texts() -> tuple[Text, ...]:
    """All chunks, cut as the product cuts documents of Markdown."""
    found = []
    for module, parts in docstrings().items():
        if module.partition(".")[0] in _NOT_JUDGED:
            continue
        blocks = [Block(module, 1)]
        for name, text in parts:
            blocks.append(Block(name, 2))
            blocks += [
                Block(one.text, one.heading and one.heading + 2)
                for one in text_blocks(text, "text/markdown")
                if one.left_out is None
            ]
        found += [
            Text(module, number, chunk.title or module, chunk.content)
            for number, chunk in enumerate(cut(blocks, count_tokens))
        ]
    return tuple(found)


@cache
def pairs() -> tuple[Pair, ...]:
    """`PAIRS` docstrings taken apart, the same each time; no summary is another's."""
    return _pairs()[:PAIRS]


@cache
def standard_pairs() -> tuple[Pair, ...]:
    """The docstrings of the standard library that are not among `pairs`, up to as many."""
    found = (pair for pair in _pairs()[PAIRS:] if pair.name.partition(".")[0] not in PACKAGES)
    return tuple(found)[:PAIRS]


@cache
def _pairs() -> tuple[Pair, ...]:
    by_summary: dict[str, Pair | None] = {}
    for parts in docstrings().values():
        for name, text in parts:
            summary, _, rest = inspect.cleandoc(text).partition("\n\n")
            summary, rest = " ".join(summary.split()), rest.strip()
            if len(summary.split()) >= _SUMMARY_WORDS_MIN and len(rest) >= _REST_LETTERS_MIN:
                by_summary[summary] = None if summary in by_summary else Pair(name, summary, rest)
    single = [pair for pair in by_summary.values() if pair is not None]
    return tuple(sorted(single, key=lambda pair: hashlib.sha256(pair.name.encode()).digest()))
