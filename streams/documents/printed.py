"""Text as it was before it was printed: lines of a page become paragraphs again, and what print adds is found.

Invariant: no word is lost or moved. A line is judged to be a running head, the number of a page or of a table of contents
only on evidence from other pages; what merely looks like one is text. Reading takes linear time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from highwater.streams.documents.chunking import LeftOut

# Letters that print joins into one sign, as their parts: nobody types the sign into a search.
LIGATURES = str.maketrans(
    {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st"}
)
# A line of a table of contents: a heading, dots up to the margin, and the number of its page.
_LEADER = " \t.\u2024\u2026\u00b7"
_LEADER_DOTS_MIN = 5
_PAGE_OF_ENTRY = re.compile(r"(?:\d{1,4}|[ivxlc]{1,6})\Z")
# A page is one of contents if at least this many and this share of its entries lead to the pages of their headings.
_ENTRIES_MIN, _ENTRIES_SHARE_MIN = 2, 0.5
# A line runs through a document if it is the first or the last of this many pages, and of this share of them.
_RUNNING_PAGES_MIN, _RUNNING_SHARE_MIN = 3, 0.5
_NUMBER = re.compile(r"\d{1,5}")
# What stands before the number of a page, and after it: how many there are. Words of the ten languages with most PDFs.
_PAGE_WORD = re.compile(
    r"(?:\b(?:pages?|pg\.?|p\.|seite|s\.|p[\u00e1a]gina|p[\u00e1a]g\.|strona|str\.|sida|side|"
    r"\u0441\u0442\u0440\u0430\u043d\u0438\u0446\u0430|\u0441\u0442\u0440\.)|\u7b2c)\s*\Z",
    re.IGNORECASE,
)
_OF_PAGES = re.compile(r"(?<!\s)\s*+(?:/|of|von|de|sur|di|z|av|\u0438\u0437)\s*\d{1,5}(?=\D*\Z)", re.IGNORECASE)
_AROUND_NUMBER = frozenset(" \t-\u2013\u2014|\u00b7\u2022[](){}<>.~=*_")
# The number of a section before its heading; and the letters of a heading that are compared.
_NUMBERING = re.compile(r"\s*\d+(?:\.\d+)*[.)]?\s+(?=\S)")
_KEY_CHARACTERS_MAX = 400
# What divides a word at the end of a line, and the line of its second part. Only the end of a line is searched: a line may
# be a whole document.
_HYPHENS = ("-", "\u2010", "\u00ad")
_WORD_CHARACTERS_MAX = 100
_DIVIDED = re.compile(r"[^\W\d_]{2,100}\Z")
_SECOND_PART = re.compile(r"\s*([^\W\d_]{2,})(\S*)[ \t]*")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
# The last line of a paragraph is short: it has less than this share of the letters of a full line. A page of fewer lines
# does not show how long a full line is.
_FULL_SHARE, _LINES_MIN = 0.6, 8
# Of the lines of a page by length, this one is full; longer ones stick out.
_FULL_RANK = 0.8


def keys_of(line: str) -> tuple[str, ...]:
    """Return by what a line is found that has the same words; without the number of its section, it begins with `#`."""
    number = _NUMBERING.match(line[:_KEY_CHARACTERS_MAX])
    keys = (_letters(line), f"#{_letters(line[number.end() :])}" if number else "")
    return tuple(key for key in keys if key.strip("#"))


def keys_sought(line: str) -> tuple[str, ...]:
    """Return the keys (`keys_of`) of the lines that have all words of this one; only a section's number may be missing."""
    number, whole = _NUMBERING.match(line[:_KEY_CHARACTERS_MAX]), _letters(line)
    keys = (whole, f"#{whole}", _letters(line[number.end() :]) if number else "")
    return tuple(key for key in keys if key.strip("#"))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text[:_KEY_CHARACTERS_MAX].casefold()))


class Entry(NamedTuple):
    """A line that looks like one of a table of contents; `page` None: a Roman number."""

    words: str
    page: int | None


def entry_of(line: str) -> Entry | None:
    """Return what a line with dots up to a page number says; None for any other line."""
    text = line.rstrip()
    number = _PAGE_OF_ENTRY.search(text)
    if number is None:
        return None
    before = text[: number.start()]
    words = before.rstrip(_LEADER)
    dots = sum(3 if sign == "\u2026" else not sign.isspace() for sign in before[len(words) :])
    if dots < _LEADER_DOTS_MIN or not any(map(str.isalnum, words)):
        return None
    return Entry(words, int(number[0]) if number[0].isdigit() else None)


def left_out_lines(pages: Sequence[Sequence[str]]) -> list[dict[int, LeftOut]]:
    """Return by page the places of lines that print adds, each with what it is.

    A running head is the same line at the same edge of most pages. The number of a page counts up with the pages, beside
    nothing but a word for a page, a bar, or words that are a line elsewhere. An entry of a table of contents leads to the
    page of its heading.
    """
    keys = _pages_by_key(pages)
    found: list[dict[int, LeftOut]] = [{} for _ in pages]
    for is_last in (False, True):
        edges = {number: _edge(page, is_last=is_last) for number, page in enumerate(pages)}
        at_edge = {number: place for number, place in edges.items() if place is not None}
        lines = {number: " ".join(pages[number][place].split()) for number, place in at_edge.items()}
        for number, reason in _running(lines, len(pages), keys).items():
            found[number].setdefault(at_edge[number], reason)
    for number, places in _contents(pages, keys).items():
        found[number].update(dict.fromkeys(places, LeftOut.CONTENTS))
    return found


def _edge(page: Sequence[str], *, is_last: bool) -> int | None:
    places = range(len(page))
    return next((place for place in (reversed(places) if is_last else places) if page[place].strip()), None)


def _pages_by_key(pages: Sequence[Sequence[str]]) -> dict[str, set[int]]:
    """Return the pages on which the words of a line are a line, also two lines together, except entries of contents."""
    found: dict[str, set[int]] = {}
    for number, page in enumerate(pages):
        before = ""
        for line in page:
            is_text = entry_of(line) is None
            for key in (*keys_of(line), *keys_of(f"{before} {line}")) if is_text else ():
                found.setdefault(key, set()).add(number)
            before = line if is_text else ""
    return found


def _running(lines: Mapping[int, str], pages: int, keys: Mapping[str, set[int]]) -> dict[int, LeftOut]:
    """Return which pages have a running head at one edge, and which their number."""
    least = max(_RUNNING_PAGES_MIN, _RUNNING_SHARE_MIN * pages)
    counts = Counter(lines.values())
    found = {number: LeftOut.RUNNING_HEAD for number, line in lines.items() if counts[line] >= least}
    counted: dict[int, list[tuple[int, tuple[str, str]]]] = {}
    for number, line in lines.items():
        if number not in found:
            for value, around in _page_numbers(line, keys):
                counted.setdefault(value - number, []).append((number, around))
    for of in counted.values():
        if len({number for number, _ in of}) >= least:
            forms = Counter(around for _, around in of)
            found |= {number: LeftOut.PAGE_NUMBER for number, around in of if forms[around] >= _RUNNING_PAGES_MIN}
    return found


def _page_numbers(line: str, keys: Mapping[str, set[int]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the numbers of a line that may be its page's, each with what is around it."""
    if len(line) > _KEY_CHARACTERS_MAX:  # no line of a page, and each number would cost its length
        return
    for number in _NUMBER.finditer(line):
        before, after = line[: number.start()], line[number.end() :]
        after = _OF_PAGES.sub("", after, count=1)
        if before[-1:].isalnum() or after[:1].isalnum():
            continue
        is_alone = _AROUND_NUMBER.issuperset(before + after)
        is_told = not (before and after) and _letters(before + after) in keys
        if is_alone or is_told or _PAGE_WORD.search(before):
            yield int(number[0]), (before, after)


def _contents(pages: Sequence[Sequence[str]], keys: Mapping[str, set[int]]) -> dict[int, list[int]]:
    """Return the places of entries on pages of contents: most of them lead to the page of a line with their words, by one
    distance between printed and counted pages.
    """
    entries = {
        number: [(place, entry) for place, line in enumerate(page) if (entry := entry_of(line)) is not None]
        for number, page in enumerate(pages)
    }
    distances: dict[tuple[int, int], set[int]] = {
        (number, place): {entry.page - page for key in keys_sought(entry.words) for page in keys.get(key, ())}
        for number, found in entries.items()
        for place, entry in found
        if entry.page is not None
    }
    counts = Counter(distance for told in distances.values() for distance in told)
    if not counts:
        return {}
    distance = max(counts, key=lambda one: (counts[one], -one))
    judged: dict[int, list[int]] = {}
    for number, found in entries.items():
        leading = sum(distance in distances.get((number, place), ()) for place, _ in found)
        if leading >= _ENTRIES_MIN and leading >= _ENTRIES_SHARE_MIN * len(found):
            judged[number] = [place for place, _ in found]
    return judged


def words_in(lines: Iterable[str]) -> frozenset[str]:
    """Return the words of a document that stand within lines, in small letters, those with hyphens as a whole."""
    return frozenset(word.group().casefold() for line in lines for word in _WORD.finditer(line))


def full_length(lines: Sequence[str]) -> int:
    """Return the number of letters of a full line of a page; 0 if there are too few lines to know."""
    lengths = sorted(len(line.strip()) for line in lines if line.strip())
    return lengths[int(_FULL_RANK * len(lengths))] if len(lengths) >= _LINES_MIN else 0


def joined_lines(lines: Sequence[str], full: int, words: frozenset[str]) -> str:
    """Return lines of a page with an empty line after each that ends a paragraph, and words that were divided at the end
    of a line as one.

    `full`: the number of letters of a full line, 0 if unknown. `words`: those of the document.
    """
    return "\n".join(_spaced(list(_whole(lines, words)), full))


def _spaced(lines: Sequence[str], full: int) -> Iterator[str]:
    for place, line in enumerate(lines):
        yield line
        is_last = place + 1 == len(lines)
        if line.strip() and not is_last and len(line.strip()) < _FULL_SHARE * full:
            yield ""


def _whole(lines: Sequence[str], words: frozenset[str]) -> Iterator[str]:
    """Yield lines; the second part of a divided word is on the line of its first part."""
    held: str | None = None
    for line in lines:
        first = None if held is None else _divided(held)
        second = _SECOND_PART.match(line)
        if held is None or first is None or second is None or not second[1][0].islower():
            if held is not None:
                yield held
            held = line
            continue
        # "re-compute" keeps its hyphen where only this form of it stands elsewhere.
        whole, compound = f"{first}{second[1]}".casefold(), f"{first}-{second[1]}".casefold()
        begin = held.rstrip()[:-1] + ("-" if compound in words and whole not in words else "")
        yield f"{begin}{second[1]}{second[2]}"
        held = line[second.end() :]
    if held is not None:
        yield held


def _divided(line: str) -> str | None:
    """Return the first part of a word that is divided at the end of a line; None if there is none."""
    text = line.rstrip()
    if not text.endswith(_HYPHENS):
        return None
    word = _DIVIDED.search(text[-_WORD_CHARACTERS_MAX - 1 : -1])
    return None if word is None else word[0]
