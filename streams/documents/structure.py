"""The structure of documents that are text: plain, Markdown and HTML, as blocks.

Law: what a reader sees of a document is in its blocks in its order, and nothing that he does not: no markup, scripts or comments.
Reading takes time in proportion to the length, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from highwater.schemas.errors import HighwaterError
from highwater.streams.documents.chunking import Block

# What no store takes (NUL, surrogates) or no reader sees; tabs and line ends stay.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")


class UnreadableDocumentError(HighwaterError):
    """A document cannot be read. Check that it is what its media type says, and that it holds text."""


def clean(text: str) -> str:
    """A text with one kind of line end and nothing that cannot be shown."""
    return _UNPRINTABLE.sub(" ", _LINE_END.sub("\n", text))


def decoded(raw: bytes, charset: str | None = None) -> str:
    """The text of a document, by its byte order mark, else by its own word, else as UTF-8.

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
    """Paragraphs of a plain text: they stand apart by empty lines."""
    return [Block(paragraph) for paragraph in _paragraphs(text.split("\n"))]


def _paragraphs(lines: list[str]) -> Iterator[str]:
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def markdown_blocks(text: str) -> list[Block]:
    """Headings, and what stands between them: paragraphs and lists as they are written, fenced code as one."""
    blocks: list[Block] = []
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
            blocks.append(Block((heading[2] or "").strip(" \t#"), len(heading[1])))
        elif len(held) == 1 and (underline := _UNDERLINE.fullmatch(line)) is not None:
            blocks.append(Block(held.pop().strip(), 1 if underline[1][0] == "=" else 2))
        elif line.strip():
            held.append(line)
        else:
            close()
    close()
    return blocks


# What no reader sees. Not the whole head: its end may be left out.
_SKIPPED = frozenset({"script", "style", "title", "template", "noscript", "svg", "math", "iframe", "object"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
# What begins a block and ends one.
_BREAKING = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog", "div", "dl", "dt"),
        *("fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "li", "main", "nav", "ol"),
        *("option", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul"),
    }
)
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}["']?\s{0,8}([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
# A charset is told at the beginning of a document, if at all (HTML: within 1,024 bytes).
_CHARSET_BYTES = 1_024
_SPACES = re.compile(r"[ \t\n]+")


def html_charset(raw: bytes) -> str | None:
    """The encoding that an HTML document names."""
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

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
        elif tag in _SKIPPED:
            self.close_block()
            self._skipped, self._depth = tag, 1
        elif tag == "br":
            self._held.append("\n")
        elif tag in {"td", "th"}:
            self._held.append(" ")
        elif tag in _HEADINGS:
            self.close_block()
            self._heading = _HEADINGS[tag]
        elif tag in _BREAKING:
            self.close_block()
            self._is_kept += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if self._depth == 0:
                self._skipped = ""
        elif tag in _HEADINGS or tag in _BREAKING:
            self.close_block()
            self._is_kept = max(0, self._is_kept - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._held.append(data if self._is_kept else _SPACES.sub(" ", data))

    def close_block(self) -> None:
        """What was read since the last block is one."""
        text = "".join(self._held)
        if text.strip():
            self.blocks.append(Block(text.strip("\n") if self._is_kept else text.strip(), self._heading))
        self._held, self._heading = [], 0


def html_blocks(text: str) -> list[Block]:
    """Headings, paragraphs, list items, rows of tables and preformatted texts of a document."""
    parser = _Html()
    parser.feed(text)
    parser.close()
    parser.close_block()
    return parser.blocks
