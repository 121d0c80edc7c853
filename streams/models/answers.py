"""Owns how an answer of the Analyzer is read (R1.18), and what any answer of a model must be before it is stored.

Law: what later stages rely on is of its type or the answer is refused; what they can do without gets a default. A text that
PostgreSQL cannot store (U+0000, half of a surrogate pair) never leaves here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from highwater.schemas.errors import HighwaterError

# A label and a phrase: longer ones are prose in the wrong place, and are cut.
LABEL_CHARACTERS_MAX = 200
# More words than this select everything; a query of 4,000 tokens repeats itself long before.
KEYWORDS_MAX = 32
KEYWORD_CHARACTERS_MAX = 80
# What a model may say about the memory: the ids of 20 records fit a hundred times. Beyond it the object is no pointer.
CONTEXT_CHARACTERS_MAX = 16_384
# An object nested deeper is no answer to a prompt; JSON readers of others give up near it.
DEPTH_MAX = 32
# How much of an unusable answer is told: enough to see what it was.
_SHOWN_CHARACTERS = 120

_FENCED = re.compile(r"```[ \t]*(?:json|JSON)?[ \t]*\r?\n(.*?)```", re.DOTALL)
# Escapes that stay (an escaped backslash, a whole pair), and halves of a pair.
_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UnusableAnswerError(HighwaterError):
    """The language model answered in another form than its prompt asks for. It is asked once more; then look at the prompt."""


def clean_text(text: str) -> str:
    """The text without what PostgreSQL or UTF-8 cannot hold: U+0000 and halves of surrogate pairs."""
    return _UNSTORABLE.sub("", text)


def json_object_in(text: str) -> dict[str, Any]:
    """The JSON object that an answer consists of, its texts cleaned; a fenced block is accepted, prose around one too.

    Raises:
        UnusableAnswerError: there is none, or half of one, or several blocks.
    """
    body = text.strip().removeprefix("\ufeff")
    if not body.startswith("{"):
        blocks = _FENCED.findall(body)
        if len(blocks) != 1:
            raise UnusableAnswerError(f"the answer is not a JSON object: {_shown(body)}")
        body = blocks[0].strip()
    elif body.endswith("```"):
        body = body[:-3]
    try:
        found = _load(clean_text(body))
    except ValueError as error:
        raise UnusableAnswerError(f"the answer is not JSON ({error}): {_shown(body)}") from error
    if not isinstance(found, dict):
        raise UnusableAnswerError(f"the answer is not a JSON object: {_shown(body)}")
    cleaned = _cleaned(found, DEPTH_MAX)
    assert isinstance(cleaned, dict)
    return cleaned


def parse_analysis(text: str) -> dict[str, Any]:
    """The analysis in the five fields of R1.18, in their order; further fields are left out.

    `needs_context` must be there and be true or false. The others may be missing or null; when they are there they are of
    their type: two texts, a list of words, an object.

    Raises:
        UnusableAnswerError: the answer is no such object.
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


def _load(body: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # Half of a surrogate pair as an escape: what a cut emoji leaves.
        whole = _ESCAPES.sub(lambda escape: escape[1] or "", body)
        if whole == body:
            raise
    return orjson.loads(whole)


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


def _cleaned(value: Any, depth: int) -> Any:
    if depth == 0:
        raise UnusableAnswerError(f"the answer is nested deeper than {DEPTH_MAX}")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return {clean_text(name): _cleaned(one, depth - 1) for name, one in value.items()}
    return value


def _shown(text: str) -> str:
    line = " ".join(clean_text(text[: 4 * _SHOWN_CHARACTERS]).split())
    return repr(line[:_SHOWN_CHARACTERS]) if line else "it is empty"
