"""Decides whether a text quotes another: by words in a row, with anything between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from highwater.streams.letters import runs_in

# This many words in a row are a quotation: fewer are common speech.
QUOTED_WORDS_MIN = 4


class Quotations:
    """Quotations of some texts and no other: runs of `QUOTED_WORDS_MIN` words, or a whole shorter text.

    `text in quotations`: whether a text contains one of them.
    """

    def __init__(self, texts: Iterable[str], others: Iterable[str] = ()) -> None:
        said = {run for text in others for run in _runs(_words(text))}
        told = [_words(text) for text in texts]
        self._runs = {run for words in told for run in _runs(words)} - said
        self._short = {" ".join(words) for words in told if 0 < len(words) < QUOTED_WORDS_MIN}

    def __contains__(self, text: object) -> bool:
        words = _words(str(text))
        if not self._runs.isdisjoint(_runs(words)):
            return True
        plain = f" {' '.join(words)} "
        return any(f" {short} " in plain for short in self._short)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in runs_in(text)]


def _runs(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + QUOTED_WORDS_MIN]) for place in range(len(words) - QUOTED_WORDS_MIN + 1)}
