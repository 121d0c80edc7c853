"""The words of a query that name its subject, and how words of two texts are compared."""

from __future__ import annotations

import re
from functools import cache

from highwater.streams.languages import (
    COMPOUNDING,
    ENGLISH,
    FUNCTION_WORDS,
    SCRIPT_LANGUAGES,
    language_of,
    script_language,
    stem_in,
    text_language,
)
from highwater.streams.letters import comparable, marks, runs_in, without_ending

_WORD = re.compile(r"[^\W_][\w.+#/-]*[^\W_]|[^\W_]")
# A version is one word: 2.11.2 is not nearly 2.11.0.
VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){1,5}")
# So is a date: the 12th of December is not Debian 12. A year and a month have it.
_DAY = re.compile(r"(?<![\w-])(?:19|20)\d\d-[01]\d-[0-3]\d(?![\w-])")
_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")
# With at least this many meaningful words in a question, a text must share two.
_WORDS_OF_TWO = 3
# Shorter parts of a word are often chance: "ein", "tag". The stem of "Dienst" has four letters.
_PART_CHARACTERS_MIN = 4
# Synonyms in texts about changes; the first names the group.
SAME = (
    ("update", "upgrade", "bump"),
    ("dependency", "library", "package"),
    ("remove", "delete", "drop"),
    ("bug", "defect", "error"),
    ("speed", "performance", "faster", "slow"),
    ("doc", "documentation", "readme"),
    ("deprecate", "deprecation", "obsolete"),
)
# Words of questions and of grammar: they occur in every text, or in none, and do not distinguish texts.
_FAINT = frozenset(
    _WORD.findall(
        "a about after again all also am an and any are as ask asked at be because been before being both but by "
        "can could did do does doing done during each else ever every few for from get give given go got had has "
        "have having he her here hers him his how i if in into is it its just know last latest least let like list "
        "made make many may me mean might mine more most much must my near need new news next no none not now of "
        "off often on once one only or other our out over please recent recently same say she should show since so "
        "some still such tell than that the their them then there these they thing things this those through to "
        "today told too under until up us use used very was we week were what when where which while who whom "
        "whose why will with within without would yes yesterday yet you your"
    )
)


# Phrases of questions for which texts about changes have one word. `stop supporting` is not about support; to begin or to
# start names only the verb after it.
_PHRASES = (
    (
        re.compile(
            r"\b(?:stop(?:s|ped)?|ceas(?:e|es|ed)|quit(?:s|ted)?)\s+(?:supporting|using|to\s+(?:support|use))(?:\s+for)?\b"
            r"|\bno\s+longer\s+(?:supports?|uses?)\b|\b(?:get|gets|got)\s+rid\s+of\b",
            re.IGNORECASE,
        ),
        "drop",
    ),
    (re.compile(r"\b(?:begin|begins|began|start|starts|started)\s+(?=to\s+[a-z]|[a-z]+ing\b)", re.IGNORECASE), ""),
)


def in_words_of_changes(query: str) -> str:
    """Return a query with phrases for which texts about changes have one word in that word."""
    for phrase, word in _PHRASES:
        query = phrase.sub(word, query)
    return query


def query_words(query: str) -> list[str]:
    """Return the words of a query without the unspecific ones, in its order, each once regardless of case."""
    words = (_WORD if query.isascii() else _marked_word()).findall(query)
    language = language_of(word.casefold() for word in words) or script_language(query.lower())
    grammar = frozenset[str]() if language == ENGLISH else FUNCTION_WORDS.get(language or "", frozenset())
    found = {word.casefold(): word for word in reversed(words) if word.casefold() not in _FAINT | grammar}
    return list(reversed(list(found.values())))


@cache
def _marked_word() -> re.Pattern[str]:
    """Return `_WORD` whose letters have their marks."""
    letter, within = rf"[^\W_][{marks()}]*", rf"[\w.+#/{marks()}-]*"
    return re.compile(rf"[^\W_]{within}{letter}|{letter}")


def words_of(text: str, language: str | None = None, parts: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the words by which a text is compared with a question in `language`: identifiers split into their parts, one name
    for synonyms; a version is one word, and so is a date. Without endings in English, in that language, and in its own.

    `parts`: words of the question. In a language with compound words a text has those with which one of its words begins or
    ends: "Systemdienst" has "Dienst".
    """
    found = words_asked(text, None)
    own = text_language(text)
    for other in {language, own} - {None, *SCRIPT_LANGUAGES}:
        found |= words_asked(text, other)
    if own in COMPOUNDING:
        missing = (part for part in parts - found if len(part) >= _PART_CHARACTERS_MIN)
        found |= {part for part in missing if any(word.startswith(part) or word.endswith(part) for word in found)}
    return found


def words_asked(text: str, language: str | None) -> frozenset[str]:
    """Return the words of a question in a language (None: English) in one form each, as `words_of` has them."""
    text = comparable(text)
    versions, days = VERSION.findall(text), _DAY.findall(text)
    if versions or days:
        text = _DAY.sub(" ", VERSION.sub(" ", text))
    parts = _CASE_CHANGE.sub(" ", text)
    runs = runs_in(parts.lower())
    if len(parts) != len(text):
        runs += runs_in(text.lower())
    dated = (start for day in days for start in (day, day[:7], day[:4]))
    stems = [stem_of(run, language) for run in runs]
    return frozenset((*stems, *dated, *(start for version in versions for start in _starts(version))))


def _starts(version: str) -> list[str]:
    """Return a version and those that it belongs to: 2.11.0 is one of 2.11."""
    numbers = version.split(".")
    return [".".join(numbers[:length]) for length in range(2, len(numbers) + 1)]


_GROUP_OF = {without_ending(word): without_ending(group[0]) for group in SAME for word in group}


def stem_of(word: str, language: str | None = None) -> str:
    """Return a word in small letters without its ending, in the language of its script, else in this one (None: English);
    one name for English synonyms.
    """
    stem = stem_in(word, language)
    if stem is None:
        stem = without_ending(word)
        return _GROUP_OF.get(stem, stem)
    return stem


# Words that ask for anything that happened and name no subject.
_ASKING = frozenset(
    """answer change changed changes commit commits contain contained contains days describe discuss discussed
    explain find happen happened happening information insight insights kind many mention mentioned mentions
    month months previous question questions remember said show summarise summarize talk
    talked times way week weeks work working works year years
    bedeutet befindet enthält finde finden geschehen geschieht gibt heisst heißt lange oft passiert
    давно долго значит называется находится означает содержит происходит произошло узнать часто""".split()  # noqa: SIM905 prose reads better
)
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH_OF_YEAR = re.compile(rf"\b({'|'.join(MONTHS)}),? ((?:19|20)\d\d)\b", re.IGNORECASE)
_HOW_MANY = re.compile(r"\bhow (?:many|often)\b", re.IGNORECASE)


def words_needed(count: int) -> int:
    """Return how many of a question's meaningful words a text must share, however near it is: of three or more one alone is
    chance.
    """
    return 2 if count >= _WORDS_OF_TWO else 1


def subject_words(query: str) -> list[str]:
    """Return the words of a query that name a subject, without a month and year, which a source has as its date; else
    all words.
    """
    query = in_words_of_changes(query)
    words = query_words(_MONTH_OF_YEAR.sub(" ", query))
    return [word for word in words if word.casefold() not in _ASKING] or words or query_words(query)


def months_of(query: str) -> list[str]:
    """Return the months with a year that a query names, as ISO dates begin: `2025-07`."""
    return [f"{year}-{MONTHS.index(month.lower()) + 1:02}" for month, year in _MONTH_OF_YEAR.findall(query)]


def asks_how_many(query: str) -> bool:
    """Return whether a query asks for a number of things."""
    return bool(_HOW_MANY.search(query))
