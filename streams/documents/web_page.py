"""The structure of an HTML document, as blocks.

Invariant: the blocks contain what a reader sees of a document, in order, and nothing else: no markup, scripts or
comments; a list of links to its headings is left out, since it repeats them. Reading takes linear time for any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser

from highwater.streams.documents.chunking import Block
from highwater.streams.documents.tables import HtmlTable
from highwater.streams.letters import unbroken

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
# Links to the pages around this one (HTML 4.6.7), and the most characters of the line that they are in.
_NEIGHBOURS = frozenset({"next", "prev", "previous", "up"})
_NAVIGATION_CHARACTERS_MAX = 400
# Code within a text.
_CODE = frozenset({"code", "kbd", "samp", "tt"})
# What is only in tables that arrange a page.
_NOT_IN_TABLES = frozenset(
    {"table", "pre", "ul", "ol", "dl", "dt", "dd", "form", "nav", "main", "hr", "article", "section"}
)
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}["']?\s{0,8}([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
# A charset is declared at the beginning of a document, if at all (HTML: within 1,024 bytes).
_CHARSET_BYTES = 1_024
_TAG = re.compile(r"</?[A-Za-z][^<>`]{0,200}>")
_SPACES = re.compile(r"[ \t\n]+")


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
        # Whether text within a link to a heading was read since the last block, and other text.
        self._is_linked = self._has_linked = self._has_unlinked = False
        # Whether the open block has a link to the next or the previous page.
        self._is_navigation = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        if tag in _SKIPPED:
            self.close_block()
            self._skipped, self._depth = tag, 1
        elif tag == "br":
            self._held.append("\n")
        elif tag == "a":
            self._begin_link(dict(attrs))
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

    def _begin_link(self, attributes: Mapping[str, str | None]) -> None:
        """Note where a link leads: to a heading of this manual, or to the page after this one."""
        address = attributes.get("href") or ""
        self._is_linked = "#" in address and ":" not in address
        self._is_navigation |= (attributes.get("rel") or "").lower() in _NEIGHBOURS

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
        if tag == "a":
            self._is_linked = False
        elif tag in _CODE:
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
            if self._is_linked and data.strip() and not any(map(str.isalnum, data)):
                return  # the sign beside a heading that is a link to it
            self._held.append(data if self._is_kept else _SPACES.sub(" ", unbroken(self._literal(data))))
            if any(map(str.isalpha, data)):
                self._has_linked |= self._is_linked
                self._has_unlinked |= not self._is_linked
            if self._tables:
                self._tables[-1].add(data)

    def _literal(self, text: str) -> str:
        """Return a text with what would be read as tags as code: `&lt;include&gt;` is a word of the text."""
        return text if self._is_code or self._heading or "<" not in text else _TAG.sub(r"`\g<0>`", text)

    def close_block(self) -> None:
        """Make a block of the text since the last one; a term is put before its definition."""
        self._mark_code(is_begun=False)
        text, heading = "".join(self._held).replace("``", ""), self._heading
        is_term, self._is_term = self._is_term, False
        is_repeat = self._is_repeat(text) and not heading
        self._held, self._heading = [], 0
        self._has_linked = self._has_unlinked = self._is_navigation = False
        if not text.strip() or is_repeat:
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

    def _is_repeat(self, text: str) -> bool:
        """Return whether a block only leads to other places: an item of a table of contents, the links to the pages around
        this one.
        """
        is_of_contents = self._has_linked and not self._has_unlinked
        return is_of_contents or (self._is_navigation and len(text) <= _NAVIGATION_CHARACTERS_MAX)

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
    if "*" in told:  # a pointer of C would end what is bold
        return f"{told}: "
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
