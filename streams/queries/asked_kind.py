"""The kind of thing that a question asks for by "which" or "what", or the value that it asks for by "when" or "how long", if
a text shows one by its form.

Invariant: a kind only prefers sources and sentences and names what they contain; a thing named in the question is not an
answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# Words after "which" that may name the kind: "which Spring Boot version", "what environment variables".
_WORDS_MAX = 5
_ASKED = re.compile(r"\b(?:which|what)\s+((?:[^\s?,;:]+\s*){1,5})", re.IGNORECASE)
# Where the noun ends and the rest of the question begins.
_ENDS = frozenset(
    (
        *("a", "an", "are", "at", "be", "by", "can", "could", "did", "do", "does", "for", "from", "had", "happened"),
        *("happens", "has", "have", "if", "in", "is", "made", "makes", "may", "might", "must", "of", "on", "shall"),
        *("should", "that", "the", "to", "was", "were", "when", "will", "with", "would"),
    )
)
_ACRONYM = re.compile(r"[A-Z]{2,8}s?")
_NUMBER = r"v?\d+(?:\.\d+)*"
_VERSION = r"(?<![\w.])(?:v\d+(?:\.\d+)*|\d+(?:\.\d+)+)(?:[-.]?(?:rc|alpha|beta|a|b)[-.]?\d+)?(?!\w)"
_ISSUE = r"\b[A-Z][A-Z0-9]+-\d+\b|(?<!\w)#\d+\b|\bGH-\d+\b"
_CVE = r"\bCVE-\d{4}-\d{4,}\b|\bGHSA(?:-[0-9a-z]{4}){3}\b"
_CONSTANT = r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|\b[a-z]+(?:\.[a-z0-9]+){2,}\b"
# Bounded, so that a long text of dots does not take quadratic time.
_CALL = r"\b[A-Za-z_][\w.]{0,80}\(\)|\b[a-z]\w{0,40}_\w{1,40}\b"
_CLASS = r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b"
# Kinds that always have this form.
_CERTAIN = (_ISSUE, _CVE)
# The form of each kind, by the words that name it.
_WRITTEN = {
    ("version", "release"): _VERSION,
    ("cve", "vulnerability", "advisory"): _CVE,
    ("issue", "ticket"): _ISSUE,
    ("pr",): _ISSUE,
    ("setting", "variable", "constant"): _CONSTANT,
    ("method", "function"): _CALL,
    ("class", "exception", "alert"): _CLASS,
}
_PATTERNS = {word: pattern for words, pattern in _WRITTEN.items() for word in words}


# A handle, or names after a word that introduces the author. Longer words are no names: each of their letters would be tried.
_NAME = r"[A-Z][\w'-]{1,40}"
PERSON = re.compile(
    rf"(?<![\w@/])@[A-Za-z0-9][\w-]{{1,38}}|(?<=\b[Bb]y ){_NAME}(?: {_NAME}){{1,2}}"
    rf"|(?<=[Tt]hanks to ){_NAME}(?: {_NAME}){{0,2}}"
    rf"|{_NAME}(?: [A-Z]\.)?(?: {_NAME}){{1,2}}(?=,? [<(]?[\w.+-]{{1,64}}@[\w-]+\.)"
    rf"|(?<=[Aa]uthor: ){_NAME}(?: {_NAME}){{1,2}}|(?<=[Mm]aintainer: ){_NAME}(?: {_NAME}){{1,2}}"
)
# The names of values.
DATE, NUMBER, NAME = "date", "number", "person"
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = (
    rf"\b\d{{1,2}}(?:st|nd|rd|th)? {_MONTH},? (?:19|20)\d\d\b|\b{_MONTH} (?:\d{{1,2}}(?:st|nd|rd|th)?, )?(?:19|20)\d\d\b"
    r"|\b(?:19|20)\d\d-[01]\d(?:-[0-3]\d)?\b|\b(?:[Ii]n|[Ss]ince|[Ff]rom) (?:19|20)\d\d\b"
)
# A number, also in words before what it counts.
_AMOUNT = (
    r"\d[\d.,]*|\b(?:half an?|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|several)"
    r" (?:(?:milli|micro)?seconds?|minutes?|hours?|days?|weeks?|months?|years?|bytes?|times?|lines?)\b"
)
_HOW = re.compile(r"\bhow\s+(?:many|much|long|wide|large|big|often|old|fast|far|high|deep|small)\b", re.IGNORECASE)
_WHO = re.compile(r"\b(?:who|whom)\b", re.IGNORECASE)
_WHEN = re.compile(r"\b(?:when|since when|(?:on|in) (?:which|what) (?:day|date|month|year))\b", re.IGNORECASE)


class AskedKind(NamedTuple):
    """A kind of thing: its name in the question, and its form.

    `is_certain`: a text without this form names none. `given`: the things named in the question, in lower case.
    `is_value`: it is a date, a number or a person, which many sentences have.
    """

    name: str
    written: re.Pattern[str]
    is_certain: bool
    given: frozenset[str]
    is_value: bool = False

    def named_in(self, text: str) -> list[str]:
        """Return the things that a text names and the question does not, in order, without repeats."""
        found = (one.group() for one in self.written.finditer(text))
        return [one for one in dict.fromkeys(found) if one.casefold() not in self.given]


def asked_kind(query: str) -> AskedKind | None:
    """Return the kind of thing that a question asks for; None: it asks for none with a known form."""
    asked = _ASKED.search(query)
    if asked is None:
        return None
    words = _noun(asked[1].split()[:_WORDS_MAX])
    for place, word in enumerate(words):
        singular = _singular(word)
        if pattern := _PATTERNS.get(singular.casefold()):
            if pattern is _VERSION and (product := _product(query, words, word)):
                pattern = rf"\b{re.escape(product)}\s+{_NUMBER}"
            return _kind(singular, pattern, query, is_certain=pattern in _CERTAIN)
        # "Which KIP", "which Kafka KIP"; but not "which company bought IBM".
        if _ACRONYM.fullmatch(word) and all(before[0].isupper() for before in words[:place]):
            return _kind(singular, rf"\b{re.escape(singular)}[-\s#]?\d+(?:[.-]\d+)*\b", query, is_certain=True)
    return None


def asked_value(query: str) -> AskedKind | None:
    """Return the value that a question asks for, a date, an amount or a person; None: it asks for none.

    A text is not about the question because it has one, so it decides only between the sentences of one.
    """
    if _HOW.search(query):
        return _kind(NUMBER, _AMOUNT, query, is_certain=False)._replace(is_value=True)
    if _WHO.search(query):
        return AskedKind(NAME, PERSON, is_certain=False, given=frozenset(), is_value=True)
    return _kind(DATE, _DATE, query, is_certain=False)._replace(is_value=True) if _WHEN.search(query) else None


def _kind(name: str, pattern: str, query: str, *, is_certain: bool) -> AskedKind:
    written = re.compile(pattern)
    return AskedKind(name, written, is_certain, frozenset(one.group().casefold() for one in written.finditer(query)))


def _noun(words: Sequence[str]) -> list[str]:
    end = next((place for place, word in enumerate(words) if word.casefold() in _ENDS), len(words))
    return list(words[:end])


def _singular(word: str) -> str:
    if word.casefold().endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _product(query: str, words: Sequence[str], version: str) -> str:
    """Return the product whose version the question asks for: "which Python version", "which version of Spring Boot";
    "" if it names none.
    """
    before = [word for word in words[: words.index(version)] if word[:1].isupper()]
    if before:
        return " ".join(before)
    behind = re.search(rf"\b{re.escape(version)}\s+of\s+((?:[A-Z][\w.+-]*\s?)+)", query)
    return behind[1].strip() if behind else ""
