"""Figures of a page that count something and lead nowhere, found in its HTML.

A figure is a whole number that is all of a cell of a table, of a value beside its name, of a tile or of a legend. It leads
somewhere if it is, or holds, a link. Nought need not, nor what counts no things (`COUNTS_NOTHING`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

# Places, versions, settings and measures: names of columns and values whose numbers count no things that could be listed.
COUNTS_NOTHING = frozenset(
    {
        *(
            "partition",
            "reads from",
            "end of the log",
            "first offset",
            "next offset",
            "offset",
            "leader",
            "copies (in sync)",
        ),
        *("schema id", "version", "characters", "bytes", "attempt", "[n]", "number", "value", "round", "coordinator"),
        *("tokens in", "tokens out"),
        *("place", "played", "won", "drawn", "lost", "points", "minute"),  # the table of a league
        *("requests", "rebuilds", "skipped", "titles asked"),  # a backtest, which published none of them
    }
)
_WHOLE = re.compile(r"[+-]?\d[\d,]*(?: [kMG])?")
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_HOLDERS = {"td", "dd", "b"}


@dataclass
class _Held:
    """An element that may hold a figure."""

    tag: str
    name: str
    is_linked: bool
    words: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    """Reads a page; `found` has the names of figures without a link, each with its figure."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._heads: list[list[str]] = []  # the open tables
        self._column = 0
        self._term = ""
        self._words: list[str] = []
        self._held: list[_Held] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        given = dict(attrs)
        if tag in _VOID:
            return
        self._open.append((tag, given))
        if tag == "table":
            self._heads.append([])
        elif tag == "tr":
            self._column = 0
        elif tag in ("th", "dt"):
            self._words = []
        elif tag == "a" and "href" in given:
            for held in self._held:
                held.is_linked = True
        if tag in _HOLDERS:
            self._held.append(_Held(tag, self._name(tag), self._is_in_link()))

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if tag not in (name for name, _ in self._open):
            return
        while self._open.pop()[0] != tag:
            continue
        if tag == "table":
            self._heads.pop()
        elif tag == "th" and self._heads:
            self._heads[-1].append(" ".join("".join(self._words).split()).rstrip("↕↑↓ "))
        elif tag == "dt":
            self._term = "".join(self._words).strip()
        if tag in _HOLDERS and self._held and self._held[-1].tag == tag:
            self._judge(self._held.pop())
        self._column += tag == "td"

    def handle_data(self, data: str) -> None:
        """Words."""
        self._words.append(data)
        for held in self._held:
            held.words.append(data)

    def _name(self, tag: str) -> str:
        if tag == "td":
            heads = self._heads[-1] if self._heads else []
            return heads[self._column] if self._column < len(heads) else ""
        return self._term if tag == "dd" else ""

    def _is_in_link(self) -> bool:
        return any(tag == "a" and "href" in given for tag, given in self._open)

    def _is_shown(self) -> bool:
        return not any("aria-hidden" in given for _, given in self._open)

    def _judge(self, held: _Held) -> None:
        words = "".join(held.words).strip()
        is_figure = _WHOLE.fullmatch(words) is not None and words != "0"
        if is_figure and not held.is_linked and held.name not in COUNTS_NOTHING and self._is_shown():
            self.found.append((held.name, words))


def unlinked(html: str) -> list[tuple[str, str]]:
    """The figures of a page that lead nowhere: the name of each, as its column has it, and what it says."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.found
