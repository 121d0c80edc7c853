"""The words of a query that say what it is about."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_][\w.+#/-]*[^\W_]|[^\W_]")
# Words of questions and of grammar: they are in every text, or in none, and tell no text from another.
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


def query_words(query: str) -> list[str]:
    """The words of a query without the faint ones, in its order, each once whatever its case."""
    found = {word.casefold(): word for word in reversed(_WORD.findall(query)) if word.casefold() not in _FAINT}
    return list(reversed(list(found.values())))
