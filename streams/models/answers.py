"""What any answer of a model must be before it is stored: storable text, or a JSON object where one is required.

Invariant: an answer of another form than requested is refused, with one error class. A text that PostgreSQL cannot
store (U+0000, a lone surrogate) never leaves this module.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from highwater.schemas.errors import HighwaterError

# A more deeply nested object is not a valid answer; other JSON readers fail near this depth.
DEPTH_MAX = 32
# How much of an unusable answer is reported: enough to recognize it.
_SHOWN_CHARACTERS = 120

_FENCED = re.compile(r"```[ \t]*+(?:(?:json|JSON)[ \t]*+)?\r?\n(.*?)```", re.DOTALL)
# Escapes that stay (an escaped backslash, a complete pair), and lone surrogates.
_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UnusableAnswerError(HighwaterError):
    """The language model answered in another form than its prompt asks for. It is asked once more; then check the prompt."""


def clean_text(text: str) -> str:
    """Return the text without characters that PostgreSQL or UTF-8 cannot represent: U+0000 and lone surrogates."""
    return _UNSTORABLE.sub("", text)


def json_object_in(text: str) -> dict[str, Any]:
    """Return the JSON object in an answer, its texts cleaned; a fenced block is accepted, with prose around it too.

    Raises:
        UnusableAnswerError: there is none, or an incomplete one, or several blocks.
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


def _load(body: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # A lone surrogate as an escape: the rest of a cut emoji.
        whole = _ESCAPES.sub(lambda escape: escape[1] or "", body)
        if whole == body:
            raise
    return orjson.loads(whole)


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
