"""The sentences of a source that are shown as an answer, unchanged: those that share most with the query.

A sentence that names a thing of the requested kind, a date or an amount is preferred to others that share as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from highwater.streams.documents.prose import sentences_of, unmarked
from highwater.streams.letters import cut_to
from highwater.streams.queries.asked_kind import AskedKind
from highwater.streams.queries.words import words_of

TEXT_CHARACTERS_MAX = 400
# An answer is read at a glance.
SHOWN_CHARACTERS_MAX = 240


def passage_of(text: str, wanted: frozenset[str], of: AskedKind | None) -> str:
    """Return the part of a long text that shares most with the query: its best sentence, and the following ones that fit."""
    sentences = _sentences(text)
    first = _best_sentence(sentences, wanted, of)
    kept, room = [shortened(sentences[first], TEXT_CHARACTERS_MAX)], TEXT_CHARACTERS_MAX
    for sentence in sentences[first + 1 :]:
        room -= len(kept[-1])
        if len(sentence) > room:
            break
        kept.append(sentence)
    return "\n".join(kept)


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text and the rows of its tables, in order; the text if it has none."""
    lines: list[str] = []
    for is_row, group in groupby(text.splitlines(), key=lambda line: line.lstrip().startswith("|")):
        held = list(group)
        rows = [" \u00b7 ".join(cell.strip() for cell in line.strip().strip("|").split("|")) for line in held]
        lines += map(unmarked, rows) if is_row else sentences_of("\n".join(held))
    return [line for line in lines if line] or [unmarked(text)]


def _best_sentence(sentences: Sequence[str], wanted: frozenset[str], of: AskedKind | None = None) -> int:
    """Return the sentence that shares most with the query; if any names a thing of the requested kind, only those count.

    Of those with a date or a number, only such that share nearly as much as the best.
    """
    shared = [len(wanted & words_of(sentence)) for sentence in sentences]
    least = 1 if of is None or not of.is_value else max(1, max(shared, default=0) - 1)
    naming = [
        i for i, sentence in enumerate(sentences) if of is not None and shared[i] >= least and of.named_in(sentence)
    ]
    return max(naming or range(len(sentences)), key=lambda i: (shared[i], -i))


def shown_of(text: str, wanted: frozenset[str], of: AskedKind | None = None) -> str:
    """Return the sentence of a text that answers best, and the following ones while it is short."""
    sentences = _sentences(text)
    first = _best_sentence(sentences, wanted, of)
    return shortened(" ".join(sentences[first:]) if first == 0 else sentences[first])


def shortened(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return a text as one line within a limit."""
    return cut_to(" ".join(text[: 4 * characters_max].split()), characters_max)
