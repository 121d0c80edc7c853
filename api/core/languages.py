"""Chooses the language of a page by the client's `Accept-Language` (RFC 9110, section 12.5.4; RFC 4647, section 3).

Invariants. Any field of a client chooses one of the available languages, so a page has as many forms as there are
languages. A language that the client refuses is chosen only if no other is left: a page in it is better than an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A range of languages, and a weight of at most three decimals (section 12.4.2); an element of another form is ignored.
_ELEMENT = re.compile(
    r"(\*|[a-z]{1,8}(?:-[a-z0-9]{1,8})*)(?:[ \t]*;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?", re.ASCII
)
# Browsers name a handful.
_RANGES_MAX = 50


def negotiate_language(accept_language: str | None, available: Sequence[str]) -> str:
    """Return the language of the answer: the one of the largest weight, of equal ones the one that is named first.

    Args:
        accept_language: the field, several joined by commas; None = not sent.
        available: the available languages, the preferred first; it is the answer if the client names none of them.
    """
    ranges = _ranges(accept_language or "")
    weights = {language: _weight(language.lower(), ranges) for language in available}
    best = max(available, key=lambda language: (weights[language][0], -weights[language][1]))
    return best if weights[best][0] else available[0]


def _ranges(field: str) -> dict[str, tuple[float, int]]:
    """Return the weight and the place of each range; the last weight counts if a range is named twice."""
    ranges: dict[str, tuple[float, int]] = {}
    for place, element in enumerate(field.lower().split(",")[:_RANGES_MAX]):
        found = _ELEMENT.fullmatch(element.strip(" \t"))
        if found is not None:
            ranges[found[1]] = (1.0 if found[2] is None else float(found[2]), place)
    return ranges


def _weight(language: str, ranges: dict[str, tuple[float, int]]) -> tuple[float, int]:
    """Return the weight of a language and the place of the range that gives it."""
    own = ranges.get(language)
    if own is not None and not own[0]:
        return own
    found = [given for named, given in ranges.items() if _is_of(named, language) or _is_of(language, named)]
    return max(found or [ranges.get("*", (0.0, 0))], key=lambda given: (given[0], -given[1]))


def _is_of(language: str, other: str) -> bool:
    """Return whether a language is another one, or a form of it: `ru-RU` of `ru`."""
    return language == other or language.startswith(f"{other}-")
