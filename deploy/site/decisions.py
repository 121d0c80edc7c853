"""Generates `docs/decisions/README.md`, the list of decision records; each record is a file beside it with its number
in its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from highwater.deploy.dependencies import ROOT

FOLDER = ROOT / "docs" / "decisions"
PAGE = FOLDER / "README.md"
PARTS = ("**Context.** ", "**Decision.** ", "**Consequence.** ")
_HEAD = """\
# Decisions

<!-- Written by `make generate` from the records beside it; do not edit. -->

For engineers who ask why something is as it is. The records explain where Highwater differs from its specification, and other
choices that may surprise a reader. Each says what the problem was, what was decided, and what that costs.

To add a record, take the next number: `NNNN-name.md` with a title, **Context**, **Decision** and **Consequence**. When a decision
changes, write a new record that names the old one; do not rewrite the old one.

"""


class BadRecordError(ValueError):
    """A record lacks its number, its title or one of its three parts; the message names the file."""


def records(folder: Path = FOLDER) -> Iterator[tuple[str, str]]:
    """Yield each record's file and title, by number.

    Raises:
        BadRecordError: the numbers have a gap, or a record lacks a section.
    """
    for number, path in enumerate(sorted(folder.glob("[0-9]*.md")), 1):
        title, *parts = path.read_text(encoding="utf-8").strip().split("\n\n")
        if not path.name.startswith(f"{number:04d}-") or not re.fullmatch(rf"# {number}\. .+", title):
            raise BadRecordError(f"{path.name} must begin with {number:04d}- and its title with '# {number}. '")
        if len(parts) != len(PARTS) or not all(text.startswith(part) for text, part in zip(parts, PARTS, strict=True)):
            raise BadRecordError(f"{path.name} must have three paragraphs: Context, Decision, Consequence")
        yield path.name, title.removeprefix("# ").removeprefix(f"{number}. ")


def page(folder: Path = FOLDER) -> str:
    """Return the list."""
    return _HEAD + "".join(f"{number}. [{title}]({name})\n" for number, (name, title) in enumerate(records(folder), 1))
