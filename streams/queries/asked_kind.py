"""What kind of thing a question asks for by "which" or "what", where a text shows one by how it is written.

Invariant: a kind only prefers sources and says what they name; what the question itself names is no answer to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# Words behind "which" in which the kind is looked for: "which Spring Boot version", "what environment variables".
_WORDS_MAX = 5
_ASKED = re.compile(r"\b(?:which|what)\s+((?:[^\s?,;:]+\s*){1,5})", re.IGNORECASE)
# Where the noun ends and the question goes on.
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
# Bounded, so that a long text of dots costs no time that grows with its square.
_CALL = r"\b[A-Za-z_][\w.]{0,80}\(\)|\b[a-z]\w{0,40}_\w{1,40}\b"
_CLASS = r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b"
# Those of which a text that has none of this form names none.
_CERTAIN = (_ISSUE, _CVE)
# How each kind is written, by the words that name it.
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


class AskedKind(NamedTuple):
    """A kind of thing: its name as the question has it, and how one is written.

    `is_certain`: a text without one that is written so names none. `given`: what the question itself names, in lower case.
    """

    name: str
    written: re.Pattern[str]
    is_certain: bool
    given: frozenset[str]

    def named_in(self, text: str) -> list[str]:
        """Those that a text names and the question does not, in order, each once."""
        found = (one.group() for one in self.written.finditer(text))
        return [one for one in dict.fromkeys(found) if one.casefold() not in self.given]


def asked_kind(query: str) -> AskedKind | None:
    """The kind of thing that a question asks for; None: it asks for none that is known by how it is written."""
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
    """Whose version is asked for: "which Python version", "which version of Spring Boot"; "" where it is not said in a name."""
    before = [word for word in words[: words.index(version)] if word[:1].isupper()]
    if before:
        return " ".join(before)
    behind = re.search(rf"\b{re.escape(version)}\s+of\s+((?:[A-Z][\w.+-]*\s?)+)", query)
    return behind[1].strip() if behind else ""
