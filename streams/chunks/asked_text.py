"""What a question says about words that a text must or must not have: `"in quotes"`, `NOT word`, `NOT "in quotes"`.

Source: the query syntax that users of search engines know (Lucene's query parser). A hyphen before a word excludes nothing: it
is an option of a program in most texts about programs (`tar -x`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

# As many as a person writes; more are text that was pasted.
PHRASES_MAX = 8
# The beginning and the end of a word, and what means something else than itself (PostgreSQL manual, 9.7.3).
_EDGE, _END = r"\m", r"\M"
_SPECIAL = re.compile(r"[^\w\s]")
_PART = re.compile(r'(?P<not>(?<!\S)NOT\s+|(?<!\S)-(?="))?"(?P<phrase>[^"]+)"|(?<!\S)NOT\s+(?P<word>[^\s"]+)')


def is_word(phrase: str) -> bool:
    """Return whether it is one word, which a text has in any of its forms; a phrase of several stands in it as it is written."""
    return phrase.isalnum()


def pattern_of(phrase: str) -> str:
    """Return PostgreSQL's regular expression of a phrase: its characters, any space between them, and no letter beside it."""
    words = r"\s+".join(_SPECIAL.sub(r"\\\g<0>", word) for word in phrase.split())
    return f"{_EDGE if phrase.strip()[:1].isalnum() else ''}{words}{_END if phrase.strip()[-1:].isalnum() else ''}"


class AskedText(NamedTuple):
    """`text`: the question without what is excluded; phrases that a text must have, and words or phrases that it must not."""

    text: str
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def asked_text(question: str) -> AskedText:
    """Return the parts of a question; one without any word besides what is excluded has an empty text."""
    required: list[str] = []
    excluded: list[str] = []

    def taken(part: re.Match[str]) -> str:
        phrase = part["phrase"] or part["word"]
        if part["word"] or part["not"]:
            excluded.append(phrase)
            return " "
        required.append(phrase)
        return f" {phrase} "

    if '"' not in question and "NOT" not in question:
        return AskedText(question)
    text = " ".join(_PART.sub(taken, question).split())
    if len(required) + len(excluded) > PHRASES_MAX:
        return AskedText(question)
    return AskedText(text, tuple(required), tuple(excluded))
