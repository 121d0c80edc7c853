"""Owns what any answer of a model must be before it is stored: a text that can be, a JSON object where one is asked for.

Invariant: an answer of another form than was asked for is refused, with the one error. A text that PostgreSQL cannot store
(U+0000, half of a surrogate pair) never leaves here.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from highwater.schemas.errors import HighwaterError

# An object nested deeper is no answer to a prompt; JSON readers of others give up near it.
DEPTH_MAX = 32
# How much of an unusable answer is reported: enough to see what it was.
_SHOWN_CHARACTERS = 120

_FENCED = re.compile(r"```[ \t]*(?:json|JSON)?[ \t]*\r?\n(.*?)```", re.DOTALL)
# Escapes that stay (an escaped backslash, a whole pair), and halves of a pair.
_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UnusableAnswerError(HighwaterError):
    """The language model answered in another form than its prompt asks for. It is asked once more; then check the prompt."""


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


def _load(body: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # Half of a surrogate pair as an escape: what a cut emoji leaves.
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
