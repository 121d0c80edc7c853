"""The structure of text documents: plain, Markdown and HTML, as blocks.

Invariant: the blocks contain what a reader sees of a document, in order, and nothing else: no markup, scripts or
comments. Reading takes linear time for any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from itertools import groupby
from typing import NamedTuple

from highwater.schemas.errors import HighwaterError
from highwater.streams.documents.chunking import HEADING_CHARACTERS_MAX, Block
from highwater.streams.documents.printed import LIGATURES, full_length, is_of_contents, joined_lines, words_in
from highwater.streams.documents.prose import unmarked
from highwater.streams.documents.tables import HtmlTable, csv_block

# Characters that no store accepts (NUL, surrogates) or no reader sees; tabs and line ends stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")

# A heading is larger than the text by at least this much; footnotes, bold words and rounding are not.
HEADING_SIZE_MIN = 1.15

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
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


def decoded(raw: bytes, charset: str | None = None) -> str:
    """Decode the text of a document, by its byte order mark, else by its declared charset, else as UTF-8.

    Raises:
        UnreadableDocumentError: it is not text in that encoding.
    """
    name = next((name for mark, name in _MARKS if raw.startswith(mark)), charset or "utf-8")
    try:
        text = raw.decode(name)
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

    The title of front matter is the first heading; the rest of it is not shown to a reader.
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
        elif line.strip():
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


# What no reader sees. Not the whole head: its end tag may be missing.
_SKIPPED = frozenset({"script", "style", "title", "template", "noscript", "svg", "math", "iframe", "object"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
# What begins or ends a block.
_BREAKING = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog", "div", "dl", "dt"),
        *("fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "li", "main", "nav", "ol"),
        *("option", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul"),
    }
)
# A longer term is a paragraph; more terms than this share no definition, such as those of a table of contents.
_TERM_CHARACTERS_MAX, _TERMS_MAX = 100, 4
# Code within a text.
_CODE = frozenset({"code", "kbd", "samp", "tt"})
# What is only in tables that arrange a page.
_NOT_IN_TABLES = frozenset(
    {"table", "pre", "ul", "ol", "dl", "dt", "dd", "form", "nav", "main", "hr", "article", "section"}
)
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}["']?\s{0,8}([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
# A charset is declared at the beginning of a document, if at all (HTML: within 1,024 bytes).
_CHARSET_BYTES = 1_024
_SPACES = re.compile(r"[ \t\n]+")
# The first or last line of this many pages, and of this share of them, is a running line.
_EDGE_LINES, _RUNNING_PAGES_MIN, _RUNNING_SHARE_MIN = 1, 3, 0.5
_DIGITS = re.compile(r"\d+")


def html_charset(raw: bytes) -> str | None:
    """Return the charset that an HTML document declares."""
    found = _CHARSET.search(raw[:_CHARSET_BYTES])
    return None if found is None else found[1].decode("ascii")


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._held: list[str] = []
        self._heading = 0
        self._skipped = ""
        self._depth = 0
        self._is_kept = 0
        self._main = 0
        self.main_blocks: list[Block] = []
        self._tables: list[HtmlTable] = []
        self._head = 0
        self._is_code = False
        # Terms of a list of definitions that wait for their definition.
        self._is_term = False
        self._terms: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        if tag in _SKIPPED:
            self.close_block()
            self._skipped, self._depth = tag, 1
        elif tag == "br":
            self._held.append("\n")
        elif tag in _CODE:
            self._mark_code(is_begun=True)
        elif tag in {"td", "th"}:
            self._held.append(" ")
            if self._tables:
                self._tables[-1].begin_cell(tag, dict(attrs), is_in_head=self._head > 0)
        elif tag in _HEADINGS:
            self.close_block()
            self._heading = _HEADINGS[tag]
        elif tag in _BREAKING:
            self.close_block()
            self._is_kept += tag == "pre"
            self._main += tag == "main"
            self._is_term = tag == "dt"
        self._note_table(tag)

    def _mark_code(self, *, is_begun: bool) -> None:
        """Begin or end code within a text, as Markdown has it; what is in it is not read as marks."""
        if self._is_code != is_begun and not self._is_kept and not self._heading:
            self._is_code = is_begun
            self.handle_data("`")

    def _note_table(self, tag: str) -> None:
        """Note the beginning of a table or of its row, and what a table of values does not contain."""
        if self._tables and (tag in _NOT_IN_TABLES or tag in _HEADINGS):
            self._tables[-1].is_data = False
        elif self._tables and (tag in _BREAKING or tag == "br"):
            self._tables[-1].add(" ")
        if tag in {"table", "dl"}:
            self._end_terms()
        if tag == "table":
            self._tables.append(HtmlTable())
        elif tag == "tr" and self._tables:
            table = self._tables[-1]
            if table.start is None:
                table.start, table.start_of_main = len(self.blocks), len(self.main_blocks)
            table.begin_row()
        self._head += tag == "thead"

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if self._depth == 0:
                self._skipped = ""
            return
        if tag in _CODE:
            self._mark_code(is_begun=False)
        elif tag in _HEADINGS or tag in _BREAKING:
            self.close_block()
            if tag == "dl":
                self._end_terms()
            self._is_kept = max(0, self._is_kept - (tag == "pre"))
            self._main = max(0, self._main - (tag == "main"))
        self._head = max(0, self._head - (tag == "thead"))
        if tag == "table" and self._tables:
            self._end_table(self._tables.pop())

    def _end_table(self, table: HtmlTable) -> None:
        """Replace the rows of a table by the table, if it has a header."""
        block = table.block()
        if block is not None and table.start is not None:
            self.blocks[table.start :] = [block]
            if self._main:
                self.main_blocks[table.start_of_main :] = [block]

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._held.append(data if self._is_kept else _SPACES.sub(" ", data))
            if self._tables:
                self._tables[-1].add(data)

    def close_block(self) -> None:
        """Make a block of the text since the last one; a term is put before its definition."""
        self._mark_code(is_begun=False)
        text, heading = "".join(self._held).replace("``", ""), self._heading
        is_term, self._is_term = self._is_term, False
        self._held, self._heading = [], 0
        if not text.strip():
            return
        if is_term and not heading and len(text) <= _TERM_CHARACTERS_MAX and len(self._terms) < _TERMS_MAX:
            self._terms.append(" ".join(text.split()))
        elif heading or self._is_kept:
            self._end_terms()
            kept = text.strip("\n")
            self._add(Block(text.strip() if heading else f"```\n{kept}\n```", heading))
        else:
            self._add(Block(f"{_run_in(self._terms)}{text.strip()}"))
            self._terms = []

    def end(self) -> None:
        """Make blocks of what is left at the end of the document."""
        self.close_block()
        self._end_terms()

    def _end_terms(self) -> None:
        """Make blocks of the terms that have no definition."""
        for term in self._terms:
            self._add(Block(term))
        self._terms = []

    def _add(self, block: Block) -> None:
        self.blocks.append(block)
        if self._main:
            self.main_blocks.append(block)


def _run_in(terms: Sequence[str]) -> str:
    """Return terms as the bold beginning of their definition, as Markdown has it."""
    told = ", ".join(terms)
    return f"**{told}{'' if told[-1] in '.:?!' else ':'}** " if told else ""


def html_blocks(text: str) -> list[Block]:
    """Return headings, paragraphs, list items and tables of a document, preformatted texts and tables with a header as
    Markdown; rows of other tables are lines.

    If it marks its main part (`main`), only that: the rest is menus of the site.
    """
    parser = _Html()
    parser.feed(text)
    parser.close()
    parser.end()
    return parser.main_blocks or parser.blocks
