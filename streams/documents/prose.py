"""What a text says: its sentences without marks, and its tables.

Invariant: a sentence is given as the text has it, but for marks of Markdown and spaces; headings, code and rows of tables are
none. The end of a sentence is known in every script that marks one (Unicode TR 29 names the marks); who marks none writes one a
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# More columns or rows than this nobody reads on a page; a table that is larger is told by its beginning.
COLUMNS_MAX, ROWS_MAX = 6, 12
CELL_CHARACTERS_MAX = 160

# Latin, Greek and Cyrillic marks end a sentence before a space; others (East Asian, Devanagari, Arabic, Khmer, Burmese, Tibetan,
# Ethiopic, Armenian) also without one.
_ENDS = re.compile(
    r"(?P<latin>[.!?…]{1,4}[\"'”’»)\]]{0,4})(?=\s)"  # noqa: RUF001 - quotation marks as they are written
    r"|[。！？｡।॥؟۔៕។။།።։]{1,4}[\"'”’»」』）)\]]{0,4}"  # noqa: RUF001 - as above
)
_CLOSING = "」』）)]"  # noqa: RUF001 - as above
# Of Thai and Lao a line of a slide or two.
_PHRASES_CHARACTERS = 80
# What ends with a dot and no sentence.
_ABBREVIATIONS = frozenset(
    "e.g i.e etc vs cf approx fig eq sec ch vol pp dr mr mrs ms prof st jr sr inc ltd co u.s z.b d.h bzw ca vgl nr".split()  # noqa: SIM905
)
_LAST_WORD = re.compile(r"[\w.]+$")
_LIST_MARK = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING_MARK = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})")
_ROW = re.compile(r"\s*\|.*\|\s*")
_RULE = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?\|?\s*")
_QUOTE_MARK = re.compile(r"\A\s*(?:>\s?)+")
_THEMATIC_BREAK = re.compile(r"\s*(?:[-*_]\s*){3,}")

_IMAGE = re.compile(r"!\[([^\]]{0,300})\]\([^)\s]{0,2000}[^)]{0,300}\)")
_LINK = re.compile(r"\[([^\]]{1,300})\](?:\([^)\s]{0,2000}[^)]{0,300}\)|\[[^\]]{0,100}\])")
_CODE = re.compile(r"(`{1,3})(?!`)([^`]{1,300})\1")
_STRONG = re.compile(r"(?<!\w)(\*\*|__)(?=\S)([^*]{1,400}?)(?<=\S)\1(?!\w)")
_EMPHASIS = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_]{1,400}?)(?<=\S)\1(?![\w*])")
# A heading in bold at the beginning of a paragraph: "**Latency.** Batches linger".
_RUN_IN = re.compile(r"\A\s*(\*\*|__)([^*_\n]{2,100}?)(?:[.:]\1|\1:)\s+(?=\S)")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>|<!--.{0,2000}?-->", re.DOTALL)


class Table(NamedTuple):
    """A table: its header, and its first rows, as long as it, of `rows_total`."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_total: int

    @property
    def numbers(self) -> int:
        """Cells with a digit behind the first column."""
        return sum(any(map(str.isdigit, cell)) for row in self.rows for cell in row[1:])


def unmarked(text: str) -> str:
    """A text in one line without marks of Markdown: emphasis, code, links (their text stays), images (theirs too), tags."""
    text = _IMAGE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _TAG.sub("", text)
    text = _CODE.sub(r"\2", text)
    text = _STRONG.sub(r"\2", text)
    return " ".join(_EMPHASIS.sub(r"\2", text).split())


def sentences_of(text: str) -> list[str]:
    """The sentences of a text in Markdown or none, in order. A list item is one at least; a line break ends none by itself."""
    return [sentence for part in _parts(text) for sentence in _cut(unmarked(_RUN_IN.sub(r"\2: ", part)))]


def tables_of(text: str) -> list[Table]:
    """The tables of a text in Markdown (GFM 4.10), in order."""
    return [table for rows in _table_lines(text) if (table := _table(rows)) is not None]


def _parts(text: str) -> Iterator[str]:
    """Paragraphs and list items."""
    held: list[str] = []
    is_code = False
    for line in (*text.split("\n"), ""):
        is_fence = _FENCE.match(line) is not None
        is_none = is_code or is_fence or _is_no_prose(line)
        is_code ^= is_fence
        mark = None if is_none else _LIST_MARK.match(line)
        if held and (is_none or mark is not None):
            yield "\n".join(held)
            held = []
        if not is_none:
            held.append(_QUOTE_MARK.sub("", line) if mark is None else line[mark.end() :])


def _is_no_prose(line: str) -> bool:
    return (
        not line.strip()
        or any(one.fullmatch(line) for one in (_ROW, _RULE, _THEMATIC_BREAK))
        or bool(_HEADING_MARK.match(line))
    )


def _cut(text: str) -> Iterator[str]:
    start = 0
    for end in _ENDS.finditer(text):
        if end["latin"] is None:
            # A quotation that goes on behind its last mark: 「そうです。」と言った。
            if end[0][-1] in _CLOSING and text[end.end() : end.end() + 1].isalpha():
                continue
        elif not _is_end(text, end.start(), end.end()):
            continue
        yield from _phrases(text[start : end.end()].strip())
        start = end.end()
    if text[start:].strip():
        yield from _phrases(text[start:].strip())


def _phrases(sentence: str) -> Iterator[str]:
    """A sentence; of Thai and Lao, which mark no end, the phrases between spaces, put together until they say something."""
    unmarked_letters = sum("\u0e01" <= letter <= "\u0eff" for letter in sentence)
    held = ""
    if 2 * unmarked_letters > len(sentence):
        for phrase in sentence.split(" "):
            if len(held) >= _PHRASES_CHARACTERS:
                yield held
                held = ""
            held = f"{held} {phrase}" if held else phrase
    yield held or sentence


def _is_end(text: str, mark: int, end: int) -> bool:
    """Whether marks end a sentence: no abbreviation or initial stands before a dot, and what follows begins like a sentence."""
    following = text[end:].lstrip()[:1]
    if following.islower():
        return False
    if text[mark] != ".":
        return True
    last = _LAST_WORD.search(text[:mark])
    word = "" if last is None else last[0].strip(".").casefold()
    return word not in _ABBREVIATIONS and not (len(word) == 1 and word.isalpha() and word.isascii())


def _table_lines(text: str) -> Iterator[list[str]]:
    held: list[str] = []
    is_code = False
    for line in (*text.split("\n"), ""):
        is_code ^= _FENCE.match(line) is not None
        if not is_code and "|" in line and line.strip():
            held.append(line)
        elif held:
            yield held
            held = []


def _table(lines: list[str]) -> Table | None:
    if len(lines) < 3 or _RULE.fullmatch(lines[1]) is None:
        return None
    header, *rows = (_cells(line) for line in (lines[0], *lines[2:]))
    width = min(len(header), COLUMNS_MAX)
    if width < 2:
        return None
    told = [tuple((*row, *[""] * width)[:width]) for row in rows[:ROWS_MAX]]
    return Table(tuple(header[:width]), tuple(told), len(rows))


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [_short(unmarked(cell.replace("\\|", "|"))) for cell in re.split(r"(?<!\\)\|", inner)]


def _short(cell: str) -> str:
    """A cell that fits its bound, cut behind a word."""
    return cell if len(cell) <= CELL_CHARACTERS_MAX else f"{cell[: CELL_CHARACTERS_MAX - 1].rsplit(' ', 1)[0]}\u2026"
