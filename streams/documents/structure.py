"""The structure of text documents: plain, Markdown, and pages with font sizes, as blocks.

Invariant: the blocks contain what a reader sees of a document, in order, and nothing else: no markup, scripts or
comments. Reading takes linear time for any text.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from highwater.schemas.errors import HighwaterError
from highwater.streams.documents.chunking import HEADING_CHARACTERS_MAX, Block
from highwater.streams.documents.printed import LIGATURES, full_length, is_of_contents, joined_lines, words_in
from highwater.streams.documents.prose import unmarked
from highwater.streams.documents.tables import csv_block

# Characters that no store accepts (NUL, surrogates) or no reader sees; tabs and line ends stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")

# A heading is larger than the text by at least this much; footnotes, bold words and rounding are not.
HEADING_SIZE_MIN = 1.15
# The first or last line of this many pages, and of this share of them, is a running line.
_EDGE_LINES, _RUNNING_PAGES_MIN, _RUNNING_SHARE_MIN = 1, 3, 0.5
_DIGITS = re.compile(r"\d+")

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
# An item of a table of contents: only a link to a heading of the same document.
_CONTENTS_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+\[.{1,300}\]\(#[^)\s]{0,300}\)\s*")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
# YAML metadata before the text of a document; more lines than this are text between two rules.
_FRONT_MATTER = re.compile(
    r"---[ \t]*\n([\w-]+:.*\n(?:[\w-]+:.*\n|[ \t].*\n|#.*\n|-[ \t].*\n|\n){0,100}?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)"
)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(\S.{0,300}?)\1[ \t]*$", re.MULTILINE)


class UnreadableDocumentError(HighwaterError):
    """A document cannot be read. Check that it is what its media type says, and that it holds text."""


def clean(text: str) -> str:
    """Return a text with one kind of line end, only displayable characters, and no ligatures."""
    return _UNPRINTABLE.sub(" ", _LINE_END.sub("\n", text)).translate(LIGATURES)


def decoded(raw: bytes, charset: str | None = None, *, is_cut: bool = False) -> str:
    """Decode the text of a document, by its byte order mark, else by its declared charset, else as UTF-8.

    `is_cut`: its end is missing, which may be within a letter.

    Raises:
        UnreadableDocumentError: it is not text in that encoding.
    """
    name = next((name for mark, name in _MARKS if raw.startswith(mark)), charset or "utf-8")
    try:
        text = codecs.getincrementaldecoder(name)().decode(raw, final=not is_cut)
    except (UnicodeError, LookupError) as error:
        raise UnreadableDocumentError(f"it is not text in {name[:40]}") from error
    if "\0" in text:
        raise UnreadableDocumentError("it is not text: it holds NUL")
    return clean(text)


_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


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


def sized_blocks(pages: Sequence[Sequence[Run]]) -> list[Block]:
    """Return the blocks of pages whose headings are recognized only by their size, such as those of a PDF.

    The size of most letters is that of the text. A line in a larger size is a heading, the larger the higher;
    consecutive lines of one size are one heading. A short line ends a paragraph, and a table of contents is left out.
    """
    lines = [
        [line for line in page if not is_of_contents(line[0])]
        for page in _without_running_lines([_sized_lines(page) for page in pages])
    ]
    words = words_in(text for page in lines for text, _ in page)
    letters: Counter[float] = Counter()
    for text, size in (line for page in lines for line in page):
        letters[size] += len(text.strip())
    body = max(letters, key=lambda size: (letters[size], -size), default=0.0)
    headings = sorted({size for page in lines for text, size in page if _is_heading(text, size, body)}, reverse=True)
    levels = {size: level for level, size in enumerate(headings, start=1)}
    return [block for page in lines for block in _of_page(page, body, levels, words)]


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


def _without_running_lines(pages: Sequence[list[tuple[str, float]]]) -> list[list[tuple[str, float]]]:
    """Return pages without running headers and footers: the title of the document, the number of the page."""
    edges = [_edges(page) for page in pages]
    counts = Counter(key for keys in edges for key in set(keys.values()))
    running = {
        key for key, count in counts.items() if count >= max(_RUNNING_PAGES_MIN, _RUNNING_SHARE_MIN * len(pages))
    }
    return [
        [line for place, line in enumerate(page) if keys.get(place) not in running]
        for page, keys in zip(pages, edges, strict=True)
    ]


def _edges(page: Sequence[tuple[str, float]]) -> dict[int, str]:
    """Return the first and the last line of a page by their places, without numbers."""
    told = [place for place, (text, _) in enumerate(page) if text.strip()]
    outer = {*told[:_EDGE_LINES], *told[-_EDGE_LINES:]}
    return {place: _DIGITS.sub("", page[place][0]).strip() for place in outer}


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

    A table of contents is left out, since it repeats the headings. The title of front matter is the first heading; the
    rest of it is not shown to a reader.
    """
    title, text = _without_front_matter(text)
    blocks: list[Block] = [Block(title, 1)] if title else []
    held: list[str] = []
    fence = ""

    def close() -> None:
        if held:
            blocks.append(Block("\n".join(held)))
            held.clear()

    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            held.append(line)
            if opened is not None and opened[1].startswith(fence) and not line[opened.end() :].strip():
                fence = ""
                close()
        elif opened is not None:
            close()
            fence = opened[1]
            held.append(line)
        elif (heading := _HEADING.fullmatch(line)) is not None:
            close()
            blocks.append(Block(unmarked((heading[2] or "").strip(" \t#")), len(heading[1])))
        elif len(held) == 1 and (underline := _UNDERLINE.fullmatch(line)) is not None:
            blocks.append(Block(unmarked(held.pop()), 1 if underline[1][0] == "=" else 2))
        elif line.strip() and _CONTENTS_ITEM.fullmatch(line) is None:
            held.append(line)
        else:
            close()
    close()
    return blocks


def _without_front_matter(text: str) -> tuple[str, str]:
    """Return the title in the front matter of a document, and the document without it."""
    front = _FRONT_MATTER.match(text)
    if front is None:
        return "", text
    title = _FRONT_TITLE.search(front[1])
    return "" if title is None else title[2], text[front.end() :]
