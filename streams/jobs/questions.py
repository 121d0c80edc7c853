"""Decides when the answer to one question may be given to another: pure comparison of texts.

Invariant: a vector represents the subject of a question, not the question itself. Vectors of "migrate from Redis to
Kafka" and "migrate from Kafka to Redis" are nearly the same, as are those of "scale up" and "scale down", of two years
and of two ids. So near vectors are necessary and not enough: the texts must have the same words in the same order,
except for spelling, for words that only ask for a deck, and for the synonyms below. Measured in
`tests/unit/jobs/question_pairs.tsv`.
"""

from __future__ import annotations

import re
import unicodedata

# A word with the characters that may be inside one: v1.2, can't, kraft-mode, 2025-06, a_b, 9f8e7d.
_WORD = re.compile(r"[^\W_]+(?:[._'\u2019:/+#-]+[^\W_]+)*", re.UNICODE)
# Asking for a deck about something, in any of these ways, asks for the same deck.
_OPENING = re.compile(
    r"(?:please )?(?:explain|describe|tell (?:me|us) about|show (?:me|us)|what (?:is|are)"
    r"|(?:make|create|prepare|write|give (?:me|us)) (?:an? |the )?(?:deck|slides|presentation) (?:about|on)) "
)
_ARTICLES = frozenset(("a", "an", "the", "please"))
# Each line: words that may stand for each other in any question. Words with a second meaning, in which another of the
# line cannot replace them (a client, an issue, good), are not here.
_SYNONYMS = """
advantages benefits
disadvantages drawbacks
advice tips
automobiles cars
begin start
brief short
choices options
colleagues coworkers
create make
employees staff
figures numbers
findings outcome results
goals objectives targets
increase raise
lower reduce
newcomers beginners
purchase buy
reasons causes
schedule timeline
vacation holiday
"""
_SAME_AS = {word: line.split()[0] for line in _SYNONYMS.strip().splitlines() for word in line.split()}


def normalised(question: str) -> str:
    """Return a question without differences of spelling: Unicode forms, case, spaces, marks at its end."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split()).rstrip(" .!?…")


def may_share_answer(question: str, answered: str) -> bool:
    """Return whether a question may get the answer to another one with a near vector."""
    return normalised(question) == normalised(answered) or _asked(question) == _asked(answered) != []


def _asked(question: str) -> list[str]:
    """Return the words that decide what is asked."""
    said = normalised(question)
    opening = _OPENING.match(said)
    words = _WORD.findall(said[opening.end() :] if opening else said)
    names = _names(question)
    return [word if word in names else _SAME_AS.get(word, word) for word in words if word not in _ARTICLES]


def _names(question: str) -> set[str]:
    """Return the words with a capital letter, which have no synonyms: Lower Saxony. The first word has one in any case, and is
    one of them if the next word has one too.
    """
    words = _WORD.findall(unicodedata.normalize("NFKC", question))
    is_name = [word != word.casefold() for word in words]
    is_name[:1] = [all(is_name[:2])]
    return {word.casefold() for word, is_one in zip(words, is_name, strict=False) if is_one}
