"""Parses an answer of the Analyzer (R1.18).

Invariant: an answer is refused if a field that later stages need has another type; optional fields get a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from highwater.streams.models.answers import UnusableAnswerError, json_object_in

# A label and a phrase: a longer one is prose in the wrong place, and is cut.
LABEL_CHARACTERS_MAX = 200
# More words than this match everything; a query of 4,000 tokens repeats words long before.
KEYWORDS_MAX = 32
KEYWORD_CHARACTERS_MAX = 80
# The limit of the model's reference to memories: a hundred times the ids of 20 records. A longer object is not a reference.
CONTEXT_CHARACTERS_MAX = 16_384


def parse_analysis(text: str) -> dict[str, Any]:
    """Return the analysis with the five fields of R1.18, in their order; further fields are dropped.

    `needs_context` is required and boolean. The others may be missing or null; if present they have their types: two
    texts, a list of words, an object.

    Raises:
        UnusableAnswerError: the answer is not such an object.
    """
    found = json_object_in(text)
    needs_context = found.get("needs_context")
    if not isinstance(needs_context, bool):
        raise UnusableAnswerError("needs_context is neither true nor false")
    context_found = found.get("context_found")
    if context_found is None:
        context_found = {}
    if not isinstance(context_found, dict):
        raise UnusableAnswerError("context_found is not an object")
    if len(orjson.dumps(context_found)) > CONTEXT_CHARACTERS_MAX:
        raise UnusableAnswerError(f"context_found is larger than {CONTEXT_CHARACTERS_MAX} bytes")
    return {
        "needs_context": needs_context,
        "context_type": _label(found, "context_type", "none" if not needs_context else "general"),
        "time_scope": _label(found, "time_scope", "unspecified"),
        "search_keywords": _keywords(found),
        "context_found": context_found,
    }


def finds_context(analysis: Mapping[str, Any] | None) -> bool:
    """Return whether an analysis names anything as context (R1.39): `{"lsm_ids": []}` names nothing."""
    return _names_something((analysis or {}).get("context_found"))


def _names_something(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_names_something, value.values()))
    if isinstance(value, list):
        return any(map(_names_something, value))
    if isinstance(value, str):
        return bool(value.strip())
    return value is True or (isinstance(value, int | float) and not isinstance(value, bool))


def _label(found: Mapping[str, Any], field: str, default: str) -> str:
    value = found.get(field)
    if value is None:
        return default
    if not isinstance(value, str):
        raise UnusableAnswerError(f"{field} is not a text")
    return " ".join(value.split())[:LABEL_CHARACTERS_MAX] or default


def _keywords(found: Mapping[str, Any]) -> list[str]:
    value = found.get("search_keywords")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UnusableAnswerError("search_keywords is not a list of texts")
    words = (" ".join(word.split())[:KEYWORD_CHARACTERS_MAX].strip() for word in value)
    return list(dict.fromkeys(word for word in words if word))[:KEYWORDS_MAX]
