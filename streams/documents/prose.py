"""The contents of a text: its sentences without markup, and its tables.

Invariant: a sentence is returned as written, except for Markdown markup and spaces; headings, code and table rows are
not sentences. The end of a sentence is recognized in every script that marks it (Unicode TR 29 lists the marks);
otherwise each line is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from highwater.streams.documents.markup import restored, without_marks

# Nobody reads more columns or rows on a page; of a larger table the beginning is used.
COLUMNS_MAX, ROWS_MAX = 8, 12
CELL_CHARACTERS_MAX = 160

# Latin, Greek and Cyrillic marks end a sentence before a space; others (East Asian, Devanagari, Arabic, Khmer, Burmese,
# Tibetan, Ethiopic, Armenian) also without one.
_ENDS = re.compile(
    r"(?P<latin>[.!?…]{1,4}[\"'”’»)\]]{0,4})(?=\s)"  # noqa: RUF001 - quotation marks as they are written
    r"|[。！？｡।॥؟۔៕។။།።։]{1,4}[\"'”’»」』）)\]]{0,4}"  # noqa: RUF001 - as above
)
_CLOSING = "」』）)]"  # noqa: RUF001 - as above
# For Thai and Lao, one or two lines of a slide.
_PHRASES_CHARACTERS = 80
# Abbreviations that end with a dot but no sentence.
_ABBREVIATIONS = frozenset(
    "e.g i.e eg ie etc vs cf approx fig eq sec ch vol pp dr mr mrs ms prof st jr sr inc ltd co u.s z.b d.h bzw ca vgl nr".split()  # noqa: SIM905
)
# A remark in brackets before the sentence that it belongs to, also after its term: "dyndep: (Available since 1.10.) Used".
_REMARK = re.compile(r"\s*(?:[^\s:][^:\n]{0,38}:\s)?\([^()]{1,80}\)")
_LAST_WORD = re.compile(r"(?<![\w.])[\w.]+$")
_NEXT = re.compile(r"\s*(\S)")
# No abbreviation is longer: earlier text is not read, or a long text would take quadratic time.
_WORD_CHARACTERS = 40
_LIST_MARK = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
# A line that describes an option of a command: `-o, --output=FILE output file`.
_OPTION = re.compile(r"\s*(?:-\w, --?\w|--\w[\w-]*[=\s]\s*\S)")
_HEADING_MARK = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})")
_ROW = re.compile(r"\s*\|.*\|\s*")
# A cell of the line below the header of a table.
_RULE_CELL = re.compile(r"\s*:?-+:?\s*")
_QUOTE_MARK = re.compile(r"\A\s*(?:>\s?)+")
_THEMATIC_BREAK = re.compile(r"\s*(?:[-*_]\s*){3,}")

# A link to another place of the same site states nothing.
_POINTER = re.compile(r"\[[^\]]{1,300}\]\((?![a-z]+:)[^)\s]{1,2000}\)\s*")
# A bold heading at the beginning of a paragraph: "**Latency.** Batches linger".
_RUN_IN = re.compile(r"\A\s*(\*\*|__)([^*_\n]{2,100}?)(?:[.:]\1|\1:)\s+(?=\S)")


class Table(NamedTuple):
    """A table: its header, and the first `rows` of `rows_total`, each as long as the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_total: int

    @property
    def numbers(self) -> int:
        """Return the number of cells with a digit after the first column."""
        return sum(any(map(str.isdigit, cell)) for row in self.rows for cell in row[1:])


def unmarked(text: str) -> str:
    """Return a text in one line without Markdown markup: emphasis, code, links (their text stays), images (likewise), tags.

    Code and escaped marks stay as they are written: `<inttypes.h>` is not a tag, `**options` not emphasis.
    """
    return restored(*without_marks(text))


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text in Markdown or plain text, in order. A list item is at least one; a line break
    alone does not end one, nor does a mark in code: `println!` is not an exclamation.
    """
    return [sentence for paragraph in paragraphs_of(text) for sentence in paragraph]


def paragraphs_of(text: str) -> list[list[str]]:
    """Return the sentences of each paragraph and list item."""
    return [list(_sentences(_RUN_IN.sub(r"\2: ", part))) for part in _parts(text)]


def _sentences(part: str) -> Iterator[str]:
    plain, codes = without_marks(part)
    return (restored(sentence, codes) for sentence in _cut(plain))


def tables_of(text: str) -> list[Table]:
    """Return the tables of a text in Markdown (GFM 4.10), in order."""
    return [table for rows in _table_lines(text) if (table := _table(rows)) is not None]


def row_text(header: Sequence[str], row: Sequence[str]) -> str:
    """Return a row of a table as a line, each cell after the name of its column: `small: Before (s) 0.9, After (s) 0.1`."""
    first, cells = row[0], row[1:]
    named = [(name, cell) for name, cell in zip(header[1:], cells, strict=False) if cell]
    told = ", ".join(cell if len(cells) == 1 and not cell[0].isdigit() else _named(name, cell) for name, cell in named)
    return f"{first}: {told}" if first and told else first or told


def _named(name: str, cell: str) -> str:
    if not name:
        return cell
    return f"{name} {cell}" if cell[0].isdigit() else f"{name}: {cell}"


def table_lines(lines: Sequence[str]) -> list[str]:
    """Return the rows of a table in Markdown as lines without marks; the cells of one without a header stand side by side."""
    if len(lines) < 3 or not _is_rule(lines[1]):
        return [" \u00b7 ".join(_cells_of(line)) for line in lines]
    header, *rows = (_cells_of(line) for line in (lines[0], *lines[2:]))
    return [row_text(header, row) for row in rows]


def _cells_of(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [unmarked(cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", inner)]


def _parts(text: str) -> Iterator[str]:
    """Yield paragraphs and list items."""
    held: list[str] = []
    is_code = False
    for line in (*text.split("\n"), ""):
        is_fence = _FENCE.match(line) is not None
        is_none = is_code or is_fence or _is_no_prose(line)
        is_code ^= is_fence
        mark = None if is_none else _LIST_MARK.match(line)
        if held and (is_none or mark is not None or _OPTION.match(line)):
            yield "\n".join(held)
            held = []
        if mark is not None and _POINTER.fullmatch(line, mark.end()):
            continue
        if not is_none:
            held.append(_QUOTE_MARK.sub("", line) if mark is None else line[mark.end() :])


def _is_no_prose(line: str) -> bool:
    return (
        not line.strip()
        or _is_rule(line)
        or any((_ROW.fullmatch(line), _THEMATIC_BREAK.fullmatch(line), _HEADING_MARK.match(line)))
    )


def _is_rule(line: str) -> bool:
    """Return whether a line is one below the header of a table: `|---|:-:|`."""
    inner = line.strip().removeprefix("|")
    return "|" in inner and all(map(_RULE_CELL.fullmatch, inner.removesuffix("|").split("|")))


def _cut(text: str) -> Iterator[str]:
    start = 0
    for end in _ENDS.finditer(text):
        if end["latin"] is None:
            # A quotation that continues after its last mark: 「そうです。」と言った。
            if end[0][-1] in _CLOSING and text[end.end() : end.end() + 1].isalpha():
                continue
        elif not _is_end(text, end.start(), end.end()) or _REMARK.fullmatch(text, start, end.end()):
            continue
        yield from _phrases(text[start : end.end()].strip())
        start = end.end()
    if text[start:].strip():
        yield from _phrases(text[start:].strip())


def _phrases(sentence: str) -> Iterator[str]:
    """Yield a sentence; for Thai and Lao, which do not mark ends, the phrases between spaces, joined until they are
    long enough.
    """
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
    """Return whether marks end a sentence: no abbreviation or initial precedes a dot, and what follows begins like a sentence."""
    following = _NEXT.match(text, end)
    if following is not None and following[1].islower():
        return False
    # After a bracket that ends with an abbreviation, a dash continues the sentence.
    if following is not None and following[1] in "\u2013\u2014" and text[end - 1] in ")]":
        return False
    # Three dots with spaces between them leave something out.
    if text[mark - 1 : mark].isspace():
        return False
    if text[mark] != ".":
        return True
    last = _LAST_WORD.search(text[max(0, mark - _WORD_CHARACTERS) : mark])
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
    if len(lines) < 3 or not _is_rule(lines[1]):
        return None
    header, *rows = (_cells(line) for line in (lines[0], *lines[2:]))
    width = min(len(header), COLUMNS_MAX)
    if width < 2:
        return None
    told = [tuple((*row, *[""] * width)[:width]) for row in rows[:ROWS_MAX]]
    return Table(tuple(header[:width]), tuple(told), len(rows))


def _cells(line: str) -> list[str]:
    return list(map(_short, _cells_of(line)))


def _short(cell: str) -> str:
    """Return a cell within its limit, cut after a word."""
    return cell if len(cell) <= CELL_CHARACTERS_MAX else f"{cell[: CELL_CHARACTERS_MAX - 1].rsplit(' ', 1)[0]}\u2026"
