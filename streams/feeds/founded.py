"""Whether the title that a language model gives a cluster is founded in what it was given."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.streams.feeds.tokens import STOP_WORDS
from highwater.streams.languages import FUNCTION_WORDS, text_language
from highwater.streams.letters import comparable, runs_in, without_ending

# Words that connect a title ("improvements of ...") are the model's own; more of them say something else than the texts.
FOUNDED_SHARE_MIN = 0.5


def is_founded(title: str, summary: str, given: Iterable[str]) -> bool:
    """Return whether a title has a word of the given texts, at least half of its words are theirs, and they have each word with
    a digit of title and summary. Words are compared without their English endings.
    """
    known = {word for text in given for word in _words(text)}
    said = _words(title)
    shared = said & known
    numbers = {word for word in said | _words(summary) if any(map(str.isdigit, word))}
    return bool(shared) and len(shared) >= FOUNDED_SHARE_MIN * len(said) and numbers <= known


def _words(text: str) -> set[str]:
    function_words = FUNCTION_WORDS.get(text_language(text) or "", frozenset[str]())
    runs = runs_in(comparable(text).lower())
    return {
        without_ending(run)
        for run in runs
        if (len(run) > 1 or run.isdigit()) and run not in STOP_WORDS and run not in function_words
    }
