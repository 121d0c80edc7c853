"""The structure of text documents: plain, Markdown, and pages with font sizes, as blocks.

Invariant: the blocks contain what a reader sees of a document, in order, and nothing else: no markup, scripts or
comments. What is judged not to be text is marked as left out, never removed. Reading takes linear time for any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import NamedTuple

from highwater.streams.documents.chunking import HEADING_CHARACTERS_MAX, Block, LeftOut
from highwater.streams.documents.printed import (
    full_length,
    joined_lines,
    keys_of,
    keys_sought,
    left_out_lines,
    words_in,
)
from highwater.streams.documents.prose import unmarked
from highwater.streams.documents.tables import csv_block

# A heading is larger than the text by at least this much; footnotes, bold words and rounding are not.
HEADING_SIZE_MIN = 1.15

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?", re.DOTALL)
# What may be an item of a table of contents: only a link to a heading of the same document.
_CONTENTS_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+\[(.{1,300})\]\(#[^)\s]{0,300}\)\s*")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
# YAML metadata before the text of a document; more lines than this are text between two rules.
_FRONT_MATTER = re.compile(
    r"---[ \t]*\n([\w-]+:.*\n(?:[\w-]+:.*\n|[ \t].*\n|#.*\n|-[ \t].*\n|\n){0,100}?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)"
)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(\S.{0,300}?)\1[ \t]*$", re.MULTILINE)


def plain_blocks(text: str) -> list[Block]:
    """Return the paragraphs of a plain text, which are separated by empty lines."""
    return [Block(paragraph) for paragraph in _paragraphs(text.split("\n"))]


def _paragraphs(lines: list[str]) -> Iterator[str]:
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def csv_blocks(text: str) -> list[Block]:
    """Return a table of comma-separated values; of any other text its paragraphs."""
    table = csv_block(text)
    return plain_blocks(text) if table is None else [table]


class Run(NamedTuple):
    """A piece of text in one font size; lines end within runs. `size` in points; 0 if unknown."""

    text: str
    size: float


def sized_blocks(pages: Sequence[Sequence[Run]]) -> list[list[Block]]:
    """Return the blocks of each page of a document whose headings are recognized only by their size, such as a PDF.

    The size of most letters is that of the text. A line in a larger size is a heading, the larger the higher;
    consecutive lines of one size are one heading. A short line ends a paragraph. What print adds is left out
    (`printed.left_out_lines`).
    """
    sized = [_sized_lines(page) for page in pages]
    marked = left_out_lines([[text for text, _ in page] for page in sized])
    lines = [
        [line for place, line in enumerate(page) if place not in places]
        for page, places in zip(sized, marked, strict=True)
    ]
    words = words_in(text for page in lines for text, _ in page)
    letters: Counter[float] = Counter()
    for text, size in (line for page in lines for line in page):
        letters[size] += len(text.strip())
    body = max(letters, key=lambda size: (letters[size], -size), default=0.0)
    headings = sorted({size for page in lines for text, size in page if _is_heading(text, size, body)}, reverse=True)
    levels = {size: level for level, size in enumerate(headings, start=1)}
    return [
        _with_left_out(page, places, list(_of_page(kept, body, levels, words)))
        for page, places, kept in zip(sized, marked, lines, strict=True)
    ]


def _with_left_out(
    page: Sequence[tuple[str, float]], places: Mapping[int, LeftOut], blocks: Sequence[Block]
) -> list[Block]:
    """Return the blocks of a page between those that are left out of it."""
    first = next((place for place, (text, _) in enumerate(page) if text.strip() and place not in places), len(page))
    marked = {place: Block(page[place][0].strip(), 0, reason) for place, reason in sorted(places.items())}
    before = [block for place, block in marked.items() if place < first]
    return [*before, *blocks, *(block for place, block in marked.items() if place > first)]


def _sized_lines(page: Sequence[Run]) -> list[tuple[str, float]]:
    """Return lines with the size of most of their letters, rounded: sizes are computed and may differ in their last digits."""
    lines: list[tuple[str, Counter[float]]] = [("", Counter())]
    for text, size in page:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append(("", Counter()))
            before, sizes = lines[-1]
            sizes[round(size, 1)] += len(part.strip())
            lines[-1] = (before + part, sizes)
    return [(text, max(sizes, key=lambda size: (sizes[size], size), default=0.0)) for text, sizes in lines]


def _is_heading(text: str, size: float, body: float) -> bool:
    is_word = any(letter.isalpha() for letter in text)
    return is_word and body > 0 and size >= body * HEADING_SIZE_MIN and len(text) <= HEADING_CHARACTERS_MAX


def _of_page(
    page: Sequence[tuple[str, float]], body: float, levels: Mapping[float, int], words: frozenset[str]
) -> Iterator[Block]:
    full = full_length([text for text, _ in page])

    def level_of(line: tuple[str, float]) -> int:
        return levels[line[1]] if _is_heading(*line, body) else 0

    for level, lines in groupby(page, key=level_of):
        texts = [text for text, _ in lines]
        if level:
            yield Block(" ".join(text.strip() for text in texts), level)
        else:
            yield from plain_blocks(joined_lines(texts, full, words))


def markdown_blocks(text: str) -> list[Block]:
    """Return headings without marks, and what is between them: paragraphs and lists as written, fenced code as one block.

    An item of a table of contents is left out if its heading is in the text, and so is front matter; the title in it is
    the first heading.
    """
    front, text = _front_matter(text)
    blocks = _marked_blocks(text, frozenset())
    if "](#" in text:
        blocks = _marked_blocks(text, {key for block in blocks if block.heading for key in keys_of(block.text)})
    return [*front, *blocks]


def _marked_blocks(text: str, headings: AbstractSet[str]) -> list[Block]:
    """Return the blocks of a text in Markdown; `headings`: keys of those whose items of contents are left out."""
    blocks: list[Block] = []
    held: list[str] = []
    fence = ""

    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            held.append(line)
            if opened is not None and _is_end(opened, fence):
                fence = ""
                blocks += _closed(held)
        elif opened is not None:
            blocks += _closed(held)
            fence = opened[1]
            held.append(line)
        elif (heading := _HEADING.fullmatch(line)) is not None:
            blocks += _closed(held)
            blocks.append(Block(unmarked(_unclosed((heading[2] or "").strip())), len(heading[1])))
        elif len(held) == 1 and (underline := _UNDERLINE.fullmatch(line)) is not None:
            blocks.append(Block(unmarked(held.pop()), 1 if underline[1][0] == "=" else 2))
        elif _is_of_contents(line, headings):
            blocks += _closed(held)
            blocks.append(Block(line.strip(), 0, LeftOut.CONTENTS))
        elif line.strip():
            held.append(line)
        else:
            blocks += _closed(held)
    blocks += _closed(held)
    return blocks


def _closed(held: list[str]) -> list[Block]:
    """Return the block of the lines that are held, if any, and hold none."""
    blocks = [Block("\n".join(held))] if held else []
    held.clear()
    return blocks


def _unclosed(heading: str) -> str:
    """Return a heading without the signs that close it, which are after a space: "C#" is a word."""
    text = heading.rstrip("#")
    return heading if text and not text[-1].isspace() else text.rstrip()


def _is_end(opened: re.Match[str], fence: str) -> bool:
    """Return whether a fence ends the code that another one began."""
    return opened[1].startswith(fence) and not opened.string[opened.end() :].strip()


def _is_of_contents(line: str, headings: AbstractSet[str]) -> bool:
    item = _CONTENTS_ITEM.fullmatch(line) if headings else None
    return item is not None and not headings.isdisjoint(keys_sought(unmarked(item[1])))


def _front_matter(text: str) -> tuple[list[Block], str]:
    """Return the front matter of a document, its title as a heading, and the document without it."""
    front = _FRONT_MATTER.match(text)
    if front is None:
        return [], text
    title = _FRONT_TITLE.search(front[1])
    blocks = [Block(front[1].strip(), 0, LeftOut.FRONT_MATTER)]
    return ([*blocks, Block(title[2], 1)] if title else blocks), text[front.end() :]
