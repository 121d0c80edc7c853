"""Cuts a document into chunks: by its structure, each within a limit of tokens.

Invariant: every word of a document is in exactly one chunk, in titles above chunks or in a part that is marked as left
out, in order, and the same document gives the same chunks, since a chunk is identified by its number. A chunk never
crosses a heading: its title is its subject. Only the header of a table is repeated, in each chunk that the table continues
in: rows mean nothing without it.

The token count is an argument. A count must be 0 only for the empty text, must not fall when a text grows, and two
texts together must never count more than separately.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Count = Callable[[str], int]

# The limit of the usual embedding models; a chunk of it is some two thousand letters, a page.
TOKENS_MAX = 512
# A heading is a line; a longer one is a paragraph that was marked as a heading.
HEADING_CHARACTERS_MAX = 200
# A title contains the innermost headings that fit; those above them are in the titles of other chunks, or are chunks.
TITLE_CHARACTERS_MAX = 500
_BETWEEN = "\n\n"
_TITLE_BETWEEN = " > "
# A text with more letters per token is cut without being counted: its parts are joined again as far as they fit.
_LETTERS_PER_TOKEN = 16
# Where a text is cut, the best places first.
_CUTS = (
    re.compile(r"\n\s*\n\s*"),  # paragraphs
    re.compile(r"\n\s*"),  # lines
    # Sentences. Each repetition is bounded: in a page of dots every dot is matched a few times, not each with all
    # others.
    re.compile(r"[.!?…]{1,4}[\"'”’»)\]]{0,4}\s+|[。！？]"),  # noqa: RUF001 (East Asian texts end their sentences so)
)
# The header of a table in Markdown. One of more than this share of a chunk is not repeated.
_TABLE_HEADER = re.compile(r"[ \t]*\|[^\n]*\n[ \t]*\|(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*\n")
_HEADER_SHARE_MAX = 0.25
_WORDS = re.compile(r"\s*\S+\s*|\s+")


class LeftOut(StrEnum):
    """Why a part of a document is in no chunk. Each is counted in the answer of an ingest, and shown on request."""

    RUNNING_HEAD = "running_head"  # a PDF prints the same line at the edge of most pages
    PAGE_NUMBER = "page_number"  # at the edge of a page, it counts up with the pages
    CONTENTS = "contents"  # a line of a table of contents, whose heading is in the text
    NAVIGATION = "navigation"  # menus, breadcrumbs, links to the next and the previous page
    OUTSIDE_MAIN = "outside_main"  # an HTML document marks another part as its main part
    PAGE_TITLE = "page_title"  # the name of a browser's tab; the document has headings
    NO_SCRIPT = "no_script"  # shown only by a browser without scripts
    FRONT_MATTER = "front_matter"  # the metadata before a text in Markdown
    REMARK = "remark"  # a comment that somebody pinned to a page of a PDF
    PICTURE_PAGE = "picture_page"  # a page of a PDF that has pictures and no text: a scan
    ATTACHMENT = "attachment"  # a file within a PDF


class Block(NamedTuple):
    """A part of a document. `heading`: its level from 1, 0 for other parts. `left_out`: why it is in no chunk."""

    text: str
    heading: int = 0
    left_out: LeftOut | None = None


class Chunk(NamedTuple):
    """A part of a document that can be found separately; its number is its place, from 0."""

    content: str
    title: str | None = None


@dataclass
class _Heading:
    level: int
    text: str
    is_told: bool = False


@dataclass
class _Cutter:
    count: Count
    tokens_max: int
    path: list[_Heading] = field(default_factory=list)
    section: list[str] = field(default_factory=list)

    def take(self, block: Block) -> Iterator[Chunk]:
        text = block.text.strip()
        if not text or block.left_out is not None:
            return
        if not block.heading or len(text) > HEADING_CHARACTERS_MAX:
            self.section.append(text)
            return
        yield from self.close()
        yield from self.leave(block.heading)
        self.path.append(_Heading(block.heading, " ".join(text.split())))

    def close(self) -> Iterator[Chunk]:
        """Yield the chunks of the section so far."""
        if self.section:
            title = _title(self.path)
            for content in pack(self.section, self.count, self.tokens_max):
                yield Chunk(content, title)
            self.section = []

    def leave(self, level: int) -> Iterator[Chunk]:
        """End the sections of this level and below; a heading with nothing below it is a chunk of its own."""
        while self.path and self.path[-1].level >= level:
            left = self.path.pop()
            if not left.is_told:
                title = _title(self.path)
                for content in pack([left.text], self.count, self.tokens_max):
                    yield Chunk(content, title)


def cut(blocks: Iterable[Block], count: Count, tokens_max: int = TOKENS_MAX) -> list[Chunk]:
    """Return the chunks of a document.

    Args:
        blocks: its parts in order.
        count: returns the number of tokens of a text.
        tokens_max: limit for a chunk's content. A single letter above it is still a chunk.
    """
    cutter = _Cutter(count, tokens_max)
    chunks = [chunk for block in blocks for chunk in cutter.take(block)]
    return [*chunks, *cutter.close(), *cutter.leave(0)]


def below(title: str, blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks of a document below a separate title; as they are if it is empty."""
    if not title:
        return list(blocks)
    return [Block(title, 1), *(block._replace(heading=block.heading and block.heading + 1) for block in blocks)]


def kept(blocks: Iterable[Block]) -> list[Block]:
    """Return all blocks as parts of the text, those that would be left out included."""
    return [block._replace(left_out=None) for block in blocks]


def left_out_of(blocks: Iterable[Block]) -> list[tuple[LeftOut, str]]:
    """Return the parts of a document that are in no chunk, in order, each with the reason."""
    return [(block.left_out, block.text.strip()) for block in blocks if block.left_out is not None]


def counts_of(parts: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the numbers of parts by reason, reasons in alphabetical order."""
    return dict(sorted(Counter(str(reason) for reason, _ in parts).items()))


def _title(path: Sequence[_Heading]) -> str | None:
    """Return the headings above a chunk, the innermost ones that fit."""
    names: list[str] = []
    length = 0
    for heading in reversed(path):
        length += len(heading.text) + len(_TITLE_BETWEEN)
        if length > TITLE_CHARACTERS_MAX:
            break
        heading.is_told = True
        names.append(heading.text)
    return _TITLE_BETWEEN.join(reversed(names)) or None


def pack(texts: Iterable[str], count: Count, tokens_max: int) -> Iterator[str]:
    """Join texts as long as they fit; one that does not is cut, and its end is joined with what follows."""
    for content in _packed(texts, count, tokens_max):
        if content.strip():
            yield content.strip()


def _packed(texts: Iterable[str], count: Count, tokens_max: int) -> Iterator[str]:
    between = count(_BETWEEN)
    held: list[str] = []
    tokens = 0
    for text in texts:
        header = table_header(text)
        header_tokens = count(header)
        if header_tokens > _HEADER_SHARE_MAX * tokens_max:
            header, header_tokens = "", 0
        parts = [(part, count(part)) for part in divided(text, count, tokens_max - header_tokens)]
        for place, (part, cost) in enumerate(parts):
            # Parts of one text are joined unchanged; only the first is separated from the text before.
            gap = (_BETWEEN, between) if place == 0 and held else ("", 0)
            if held and tokens + gap[1] + cost > tokens_max:
                yield "".join(held)
                held, tokens, gap = [], 0, ("", 0)
                if header and place:
                    held, tokens = [header], header_tokens
            held += [gap[0], part]
            tokens += gap[1] + cost
    yield "".join(held)


def table_header(text: str) -> str:
    """Return the lines of a text that are the header of a table in Markdown; "" if it does not begin with one."""
    found = _TABLE_HEADER.match(text)
    return "" if found is None else found[0]


def divided(text: str, count: Count, tokens_max: int) -> Iterator[str]:
    """Split a text into parts that fit, at the best available places; joined they are the text."""
    yield from _divided(text, count, tokens_max, 0)


def _divided(text: str, count: Count, tokens_max: int, level: int) -> Iterator[str]:
    if len(text) <= tokens_max * _LETTERS_PER_TOKEN and count(text) <= tokens_max:
        yield text
    elif level < len(_CUTS):
        for part in _cut_behind(_CUTS[level], text):
            yield from _divided(part, count, tokens_max, level + 1)
    else:
        for run in _fitting(_WORDS.findall(text), count, tokens_max):
            yield from _fitting(run, count, tokens_max) if count(run) > tokens_max else [run]


def _cut_behind(place: re.Pattern[str], text: str) -> Iterator[str]:
    start = 0
    for found in place.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:]


def _fitting(parts: Sequence[str], count: Count, tokens_max: int) -> Iterator[str]:
    """Yield words, or letters, in the longest runs that fit; a single one that does not fit is a run."""
    first = 0
    while first < len(parts):
        end = first + _longest(parts, first, count, tokens_max)
        yield "".join(parts[first:end])
        first = end


def _longest(parts: Sequence[str], first: int, count: Count, tokens_max: int) -> int:
    """Return how many parts from a place on fit together, at least one; checks at most twice as many."""

    def fits(number: int) -> bool:
        return count("".join(parts[first : first + number])) <= tokens_max

    low, high, left = 1, 2, len(parts) - first
    while high <= left and fits(high):
        low, high = high, high * 2
    high = min(high, left + 1)
    while high - low > 1:  # `low` fits or is one, `high` does not or is past the end
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
