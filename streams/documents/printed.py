"""Text as it was before it was printed: lines of a page become paragraphs again.

Invariant: no word is lost or moved, except for the lines of a table of contents, which repeat the headings. Reading takes
linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# Letters that print joins into one sign, as their parts: nobody types the sign into a search.
LIGATURES = str.maketrans(
    {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st"}
)
# A line of a table of contents: a heading, dots up to the margin, and the number of its page.
_LEADER = re.compile(r"(?:[ \t]?[.\u2024\u2026\u00b7]){5}[ \t.\u2024\u2026\u00b7]*[\divxlc]{0,6}\s*\Z")
# A word that is divided at the end of a line, and the line of its second part.
_DIVIDED = re.compile(r"([^\W\d_]{2,})[-\u2010\u00ad]\s*\Z")
_SECOND_PART = re.compile(r"\s*([^\W\d_]{2,})(\S*)[ \t]*")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
# The last line of a paragraph is short: it has less than this share of the letters of a full line. A page of fewer lines
# does not show how long a full line is.
_FULL_SHARE, _LINES_MIN = 0.6, 8
# Of the lines of a page by length, this one is full; longer ones stick out.
_FULL_RANK = 0.8


def is_of_contents(line: str) -> bool:
    """Return whether a line belongs to a table of contents."""
    return _LEADER.search(line) is not None


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
        first = None if held is None else _DIVIDED.search(held)
        second = _SECOND_PART.match(line)
        if held is None or first is None or second is None or not second[1][0].islower():
            if held is not None:
                yield held
            held = line
            continue
        # "re-compute" keeps its hyphen where only this form of it stands elsewhere.
        whole, compound = f"{first[1]}{second[1]}".casefold(), f"{first[1]}-{second[1]}".casefold()
        begin = held[: first.end(1)] + ("-" if compound in words and whole not in words else "")
        yield f"{begin}{second[1]}{second[2]}"
        held = line[second.end() :]
    if held is not None:
        yield held
