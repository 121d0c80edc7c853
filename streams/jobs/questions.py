"""Decides when the answer to one question may be given to another: pure comparison of texts.

Invariant: a vector represents the subject of a question, not the question itself. Vectors of "migrate from Redis to
Kafka" and "migrate from Kafka to Redis" are nearly the same, as are those of two years and of two ids. So an answer is
shared only between questions that are the same text except for spelling, and, with vectors from a model of meaning,
between questions with the same numbers, names, negations and directions.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# A word with the characters that may be inside one: v1.2, can't, kraft-mode, 2025-06, a_b, 9f8e7d.
_WORD = re.compile(r"[^\W_]+(?:[._'\u2019:/+#-]+[^\W_]+)*", re.UNICODE)
_NEGATING = """
no not never none neither nor without cannot except unless instead avoid stop dont doesnt didnt isnt arent cant wont shouldnt
не нет ни без никогда кроме nicht kein keine nie ohne pas sans jamais sin nunca jamás senza
"""
# A word after one of these is a side of a relation: the same two words swapped are another question.
_RELATING = """
from to into onto in out of over under before after since until than against versus vs by for with via between and or
из в на от до с к над под перед после чем против von zu nach vor aus de à vers avant après desde hacia
"""  # noqa: RUF001 - Russian
_NEGATIONS, _RELATIONS = frozenset(_NEGATING.split()), frozenset(_RELATING.split())
_APOSTROPHES = str.maketrans("", "", "'\u2019")


def normalised(question: str) -> str:
    """Return a question without differences of spelling: Unicode forms, case, spaces, marks at its end."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split()).rstrip(" .!?…")


def may_share_answer(question: str, answered: str, *, by_meaning: bool) -> bool:
    """Return whether a question may get the answer to a similar one.

    `by_meaning`: their vectors come from a model of meaning, so that other words may ask the same.
    """
    if normalised(question) == normalised(answered):
        return True
    return by_meaning and _Question(question).binds == _Question(answered).binds


class _Question:
    """What another wording must keep."""

    def __init__(self, question: str) -> None:
        text = unicodedata.normalize("NFKC", question)
        words = _WORD.findall(text)
        plain = [word.casefold().translate(_APOSTROPHES) for word in words]
        numbers = [word for word in plain if any(letter.isdigit() for letter in word)]
        # The first word is always capitalized; a name is recognized by its capitals elsewhere.
        names = [word.casefold() for place, word in enumerate(words) if _is_name(word, is_first=place == 0)]
        negations = sum(word in _NEGATIONS for word in plain)
        sides = sorted((one, other) for one, other in pairwise(plain) if one in _RELATIONS and other not in _RELATIONS)
        self.binds = (numbers, names, negations, sides)


def _is_name(word: str, *, is_first: bool) -> bool:
    """Return whether a word is a name: KRaft, IBM, kafka.apache.org; also Anna, except as the very first word."""
    if any(letter.isupper() for letter in word[1:]):
        return True
    return word[0].isupper() and not is_first
