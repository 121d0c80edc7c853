"""The sentences of a source that are shown as an answer, unchanged: those that share most with the query.

A sentence that names a thing of the requested kind, a date or an amount is preferred to others that share as much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, groupby, pairwise
from math import log
from typing import NamedTuple

from highwater.streams.documents.prose import paragraphs_of, table_lines, unmarked
from highwater.streams.letters import cut_to
from highwater.streams.queries.asked_kind import AskedKind
from highwater.streams.queries.words import words_of

TEXT_CHARACTERS_MAX = 400
# An answer is read at a glance.
SHOWN_CHARACTERS_MAX = 240
# A line of code says less to a reader than a sentence with the same words.
_CODE_WEIGHT = 0.5
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})")


def passage_of(text: str, words_wanted: frozenset[str], of: AskedKind | None, about: str = "") -> str:
    """Return the part of a long text that shares most with the query: its best sentence, and the following ones that fit.

    `about`: the heading above it.
    """
    lines = _lines(text)
    first = _best(lines, words_wanted, of, about)
    kept, room = [shortened(lines[first].text, TEXT_CHARACTERS_MAX)], TEXT_CHARACTERS_MAX
    for before, line in pairwise(lines[first:]):
        room -= len(before.text)
        # Another row is not about the chosen one.
        if len(line.text) > room or line.is_row:
            break
        kept += [line.text] if line.paragraph == before.paragraph else ["", line.text]
    return "\n".join(kept)


def shown_of(text: str, words_wanted: frozenset[str], of: AskedKind | None = None, about: str = "") -> str:
    """Return the sentence of a text that answers best; of its first one, or one that introduces others, also those."""
    lines = _lines(text)
    first = _best(lines, words_wanted, of, about)
    rest = [line for line in lines[first:] if not line.is_code]
    if not rest or not (first == 0 or lines[first].is_opening):
        return shortened(lines[first].text)
    shown = rest[:1]
    for line in rest[1:]:
        if line.paragraph != shown[-1].paragraph and not any(one.is_opening for one in shown):
            break
        shown.append(line)
    return shortened(" ".join(line.text for line in shown))


class _Line(NamedTuple):
    """A sentence, a row of a table, or a line of code."""

    text: str
    paragraph: int = 0
    is_code: bool = False
    is_row: bool = False

    @property
    def is_opening(self) -> bool:
        """Return whether it introduces the lines behind it."""
        return self.text.endswith((":", "\uff1a"))


def _lines(text: str) -> list[_Line]:
    """Return what a text says, line by line, in order; the text itself if that is nothing."""
    lines: list[_Line] = []
    numbers = count()
    for is_code, group in _segments(text):
        if is_code:
            code = (line.strip() for line in group if not _FENCE.match(line))
            lines += [_Line(line, next(numbers), is_code=True) for line in code]
            continue
        for is_row, part in groupby(group, key=lambda line: line.lstrip().startswith("|")):
            held = list(part)
            paragraphs = [[line] for line in table_lines(held)] if is_row else paragraphs_of("\n".join(held))
            for number, paragraph in zip(numbers, paragraphs, strict=False):
                lines += [_Line(line, number, is_row=is_row) for line in paragraph]
    return [line for line in lines if line.text] or [_Line(unmarked(text))]


def _segments(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield text and code, each with its lines."""
    held: list[str] = []
    is_code = False
    for line in text.splitlines():
        if _FENCE.match(line) is not None:
            yield is_code, held
            held, is_code = [], not is_code
        else:
            held.append(line)
    yield is_code, held


def _best(lines: Sequence[_Line], words_wanted: frozenset[str], of: AskedKind | None, about: str) -> int:
    """Return the line that shares most with the query, words of few lines counting more; if any names a thing of the
    requested kind, only those count.

    Of those with a date, a number or a person, only such that share nearly as much as the best. What the heading shares,
    each line shares.
    """
    bags = [words_wanted & words_of(line.text) for line in lines]
    counts = Counter(word for bag in bags for word in bag)
    scores = [
        sum(1 + 0.5 * log(len(lines) / counts[word]) for word in sorted(bag)) * (_CODE_WEIGHT if line.is_code else 1)
        for line, bag in zip(lines, bags, strict=True)
    ]
    shared = [len(bag | (words_wanted & words_of(about))) for bag in bags]
    least = 1 if of is None or not of.is_value else max(1, max(shared) - 1)
    naming = [place for place, line in enumerate(lines) if of and shared[place] >= least and of.named_in(line.text)]
    return max(naming or range(len(lines)), key=lambda place: (scores[place], -place))


def shortened(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return a text as one line within a limit."""
    return cut_to(" ".join(text[: 4 * characters_max].split()), characters_max)


def words_shared(text: str, words_wanted: frozenset[str], about: str, of: AskedKind | None = None) -> int:
    """Return the most words of the query that a line of a text shares, together with what stands above it; of `of`, only
    lines that name such a thing.
    """
    above = words_wanted & words_of(about)
    bags = (
        above | (words_wanted & words_of(line.text)) for line in _lines(text) if of is None or of.named_in(line.text)
    )
    return max(map(len, bags), default=0)
