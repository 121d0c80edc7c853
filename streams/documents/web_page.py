"""The structure of an HTML document, as blocks.

Invariant: the blocks contain what a reader sees of a document, in order, and nothing else: no markup, scripts or
comments. What repeats the text or belongs to the site is marked as left out. Reading takes linear time for any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from html.parser import HTMLParser
from typing import NamedTuple

from highwater.streams.documents.chunking import Block, LeftOut
from highwater.streams.documents.printed import keys_of, keys_sought
from highwater.streams.documents.tables import HtmlTable
from highwater.streams.letters import unbroken

# What no reader sees: programs, parts that a program may show, old fallbacks of frames, what else a formula is written as.
# Not the whole head: its end tag may be missing.
_SKIPPED = frozenset({"script", "style", "template", "iframe", "annotation", "annotation-xml", "metadata"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
# What begins or ends a block.
_BREAKING = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog", "div", "dl", "dt"),
        *(
            "fieldset",
            "figcaption",
            "figure",
            "footer",
            "form",
            "header",
            "hr",
            "html",
            "li",
            "main",
            "nav",
            "noscript",
            "ol",
        ),
        *("option", "p", "pre", "section", "summary", "svg", "table", "tbody", "tfoot", "thead", "title", "tr", "ul"),
    }
)
# A longer term is a paragraph; more terms than this share no definition, such as those of a table of contents.
_TERM_CHARACTERS_MAX, _TERMS_MAX = 100, 4
# Links to the pages around this one (HTML 4.6.7).
_NEIGHBOURS = frozenset({"next", "prev", "previous", "up"})
# Parts of a page that lead elsewhere, by their role (ARIA 5.3) or, in older pages, by their class.
_NAVIGATION_ROLES = frozenset({"navigation", "doc-toc", "menu", "menubar"})
_NAVIGATION_CLASSES = frozenset({"breadcrumb", "breadcrumbs", "wy-breadcrumbs"})
# Fields of a form whose values a reader does not see as text.
_UNSEEN_FIELDS = frozenset({"hidden", "password", "checkbox", "radio", "file", "image", "range", "color"})
# Code within a text.
_CODE = frozenset({"code", "kbd", "samp", "tt"})
# What is only in tables that arrange a page.
_NOT_IN_TABLES = frozenset(
    {"table", "pre", "ul", "ol", "dl", "dt", "dd", "form", "nav", "main", "hr", "article", "section"}
)
_TAG = re.compile(r"</?[A-Za-z][^<>`]{0,200}>")
_SPACES = re.compile(r"[ \t\n]+")


class _Read(NamedTuple):
    """A block, and what decides at the end of the document whether it is left out."""

    block: Block
    is_in_main: bool
    is_link: bool = False


class _Term(NamedTuple):
    text: str
    is_link: bool


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._read: list[_Read] = []
        self._held: list[str] = []
        self._heading = 0
        self._skipped = ""
        self._depth = 0
        self._is_kept = 0
        self._main = self._no_script = self._svg = 0
        self._title: list[str] | None = None
        self._tables: list[HtmlTable] = []
        self._head = 0
        self._is_code = False
        # Terms of a list of definitions that wait for their definition.
        self._is_term = False
        self._terms: list[_Term] = []
        # Whether text within a link to a heading was read since the last block, and other text.
        self._is_linked = self._has_linked = self._has_unlinked = False
        # The links of the open block, its words outside of them, and whether one leads to the next or the previous page.
        self._is_in_link = self._is_navigation = False
        self._links = self._words_between = 0
        # The tag of the open part that leads elsewhere, the open elements of that tag within it, and its first block.
        self._navigation = ("", 0, 0)

    def parse_html_declaration(self, i: int) -> int:
        """Return where a declaration ends; one that the parser gives up on (`<![<`) is a comment, as in browsers."""
        try:
            return super().parse_html_declaration(i)
        except AssertionError:
            return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        attributes = dict(attrs)
        if tag in _SKIPPED and "shadowrootmode" not in attributes:
            self.close_block()
            self._skipped, self._depth = tag, 1
        elif tag in _HEADINGS or tag in _BREAKING:
            self._begin_block(tag)
            self._begin_navigation(tag, attributes)
        else:
            self._begin_inline(tag, attributes)
        self._note_table(tag)
        if tag in {"img", "input"}:
            self._tell_value(tag, attributes)

    def _begin_block(self, tag: str) -> None:
        self.close_block()
        self._heading = _HEADINGS.get(tag, 0)
        self._is_kept += tag == "pre"
        self._main += tag == "main"
        self._svg += tag == "svg"
        self._no_script += tag == "noscript"
        self._is_term = tag == "dt"
        if tag == "title":
            self._title = []

    def _begin_navigation(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        open_tag, depth, first = self._navigation
        if depth:
            self._navigation = (open_tag, depth + (tag == open_tag), first)
        elif (
            tag == "nav"
            or (attributes.get("role") or "").lower() in _NAVIGATION_ROLES
            or not _NAVIGATION_CLASSES.isdisjoint((attributes.get("class") or "").lower().split())
        ):
            self._navigation = (tag, 1, len(self._read))

    def _end_navigation(self, tag: str) -> None:
        """Leave out what a part that leads elsewhere contains, once it ends: one without an end tag may hold the page."""
        open_tag, depth, first = self._navigation
        if tag != open_tag:
            return
        self._navigation = (open_tag, depth - 1, first) if depth > 1 else ("", 0, 0)
        if depth == 1:
            self._end_terms()
            self._read[first:] = [
                read if read.block.left_out else read._replace(block=read.block._replace(left_out=LeftOut.NAVIGATION))
                for read in self._read[first:]
            ]

    def _begin_inline(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag == "br" or (tag == "text" and self._svg):
            self._held.append("\n")
        elif tag == "a":
            self._begin_link(attributes)
        elif tag in _CODE:
            self._mark_code(is_begun=True)
        elif tag in {"td", "th"}:
            self._held.append(" ")
            if self._tables:
                self._tables[-1].begin_cell(tag, attributes, is_in_head=self._head > 0)

    def _tell_value(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        """Read what stands for a picture, and what a field of a form contains."""
        is_seen = tag == "img" or (attributes.get("type") or "").lower() not in _UNSEEN_FIELDS
        value = attributes.get("alt" if tag == "img" else "value") if is_seen else None
        if value:
            self.handle_data(f" {value} ")

    def _begin_link(self, attributes: Mapping[str, str | None]) -> None:
        """Note where a link leads: to a heading of this manual, or to the page after this one."""
        address = attributes.get("href") or ""
        self._is_linked = "#" in address and ":" not in address
        self._is_in_link, self._links = True, self._links + 1
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
                table.start = len(self._read)
            table.begin_row()
        self._head += tag == "thead"

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if self._depth == 0:
                self._skipped = ""
            return
        if tag == "a":
            self._is_linked = self._is_in_link = False
        elif tag == "title":
            self._end_title()
        elif tag in _CODE:
            self._mark_code(is_begun=False)
        elif tag in _HEADINGS or tag in _BREAKING:
            self.close_block()
            self._end_navigation(tag)
            if tag == "dl":
                self._end_terms()
            self._is_kept = max(0, self._is_kept - (tag == "pre"))
            self._main = max(0, self._main - (tag == "main"))
            self._svg = max(0, self._svg - (tag == "svg"))
            self._no_script = max(0, self._no_script - (tag == "noscript"))
        self._head = max(0, self._head - (tag == "thead"))
        if tag == "table" and self._tables:
            self._end_table(self._tables.pop())

    def _end_title(self) -> None:
        """Keep the name of the page; that of a drawing is shown only when it is pointed at."""
        text = " ".join("".join(self._title or ()).split())
        self._title = None
        if text and not self._svg:
            self._add(Block(text, 1, LeftOut.PAGE_TITLE))

    def _end_table(self, table: HtmlTable) -> None:
        """Replace the rows of a table by the table, if it has a header."""
        block = table.block()
        if block is not None and table.start is not None:
            beside = [read for read in self._read[table.start :] if read.block.left_out is not None]
            self._read[table.start :] = [*beside, _Read(block, self._main > 0)]

    def handle_data(self, data: str) -> None:
        if self._title is not None:
            self._title.append(data)
        elif not self._skipped:
            if self._is_linked and data.strip() and not any(map(str.isalnum, data)):
                return  # the sign beside a heading that is a link to it
            self._held.append(data if self._is_kept else _SPACES.sub(" ", unbroken(self._literal(data))))
            if any(map(str.isalpha, data)):
                self._has_linked |= self._is_linked
                self._has_unlinked |= not self._is_linked
                if not self._is_in_link:
                    self._words_between += sum(any(map(str.isalpha, word)) for word in data.split())
            if self._tables and not self._no_script:
                self._tables[-1].add(data)

    def unknown_decl(self, data: str) -> None:
        """Read a section of XHTML in which no marks are read."""
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def _literal(self, text: str) -> str:
        """Return a text with what would be read as tags as code: `&lt;include&gt;` is a word of the text."""
        return text if self._is_code or self._heading or "<" not in text else _TAG.sub(r"`\g<0>`", text)

    def close_block(self) -> None:
        """Make a block of the text since the last one; a term is put before its definition."""
        self._mark_code(is_begun=False)
        text, heading = "".join(self._held).replace("``", ""), self._heading
        is_term, self._is_term = self._is_term, False
        is_link = self._has_linked and not self._has_unlinked and not heading and not self._is_kept
        # Links, each with one word beside it at most: "Next: Offsets, Up: Log".
        is_navigation = self._is_navigation and not heading and self._words_between <= self._links
        self._held, self._heading = [], 0
        self._has_linked = self._has_unlinked = self._is_navigation = False
        self._links = self._words_between = 0
        if not text.strip():
            return
        if is_navigation or self._no_script:
            self._add(Block(text.strip(), 0, LeftOut.NO_SCRIPT if self._no_script else LeftOut.NAVIGATION))
        elif is_term and not heading and len(text) <= _TERM_CHARACTERS_MAX and len(self._terms) < _TERMS_MAX:
            self._terms.append(_Term(" ".join(text.split()), is_link))
        elif heading or self._is_kept:
            self._end_terms()
            kept = text.strip("\n")
            self._add(Block(text.strip() if heading else f"```\n{kept}\n```", heading))
        else:
            terms = [term.text for term in self._terms]
            self._add(Block(f"{_run_in(terms)}{text.strip()}"), is_link=is_link and not terms)
            self._terms = []

    def blocks(self) -> list[Block]:
        """Return the blocks of the document, at its end, with what is left out of them.

        A link is of a table of contents if the words that it consists of are also a block of their own.
        """
        self.close_block()
        self._end_terms()
        if self._title is not None:
            self._end_title()
        if all(read.block.left_out is not None for read in self._read):  # a page of links alone, such as a site map
            self._read = [_with_navigation(read) for read in self._read]
        has_main = any(read.is_in_main and read.block.left_out is None for read in self._read)
        told = [read for read in self._read if read.block.left_out is None and (read.is_in_main or not has_main)]
        keys = {key for read in told if not read.is_link for key in keys_of(read.block.text)}
        has_heading = any(read.block.heading for read in told)
        return [_judged(read, keys, has_main=has_main, has_heading=has_heading) for read in self._read]

    def _end_terms(self) -> None:
        """Make blocks of the terms that have no definition."""
        for term in self._terms:
            self._add(Block(term.text), is_link=term.is_link)
        self._terms = []

    def _add(self, block: Block, *, is_link: bool = False) -> None:
        self._read.append(_Read(block, self._main > 0, is_link))


def _with_navigation(read: _Read) -> _Read:
    block = read.block
    return read._replace(block=block._replace(left_out=None)) if block.left_out is LeftOut.NAVIGATION else read


def _judged(read: _Read, keys: AbstractSet[str], *, has_main: bool, has_heading: bool) -> Block:
    block = read.block
    if block.left_out is LeftOut.PAGE_TITLE and not has_heading:
        return block._replace(left_out=None)
    if block.left_out is None and has_main and not read.is_in_main:
        return block._replace(left_out=LeftOut.OUTSIDE_MAIN)
    if block.left_out is None and read.is_link and not keys.isdisjoint(keys_sought(block.text)):
        return block._replace(left_out=LeftOut.CONTENTS)
    return block


def _run_in(terms: Sequence[str]) -> str:
    """Return terms as the bold beginning of their definition, as Markdown has it."""
    told = ", ".join(terms)
    if "*" in told:  # a pointer of C would end what is bold
        return f"{told}: "
    return f"**{told}{'' if told[-1] in '.:?!' else ':'}** " if told else ""


def html_blocks(text: str) -> list[Block]:
    """Return headings, paragraphs, list items and tables of a document, preformatted texts and tables with a header as
    Markdown; rows of other tables are lines.

    If it marks its main part (`main`), the rest is left out: menus of the site.
    """
    parser = _Html()
    parser.feed(text)
    parser.close()
    return parser.blocks()
