"""Searches events for words: whether some shown value of the event contains them.

Invariant: the text of each value is searched and not its JSON, in which quotes and line ends are escaped.
"""

from __future__ import annotations

from typing import Any

from highwater.connectors.replay.decoding import Decoded
from highwater.connectors.replay.text import base64_of, documents
from highwater.schemas.envelope import text_of


def mentioning(decoded: Decoded, words: str) -> list[int]:
    """Return the indexes of events in a batch that contain the words (case-folded); of an undecodable value its bytes
    are searched as text.
    """
    return [
        place
        for place, document in enumerate(documents(decoded))
        if _mentions(document["value"], words)
        or (place in decoded.problems and words in (text_of(decoded.batch.values[place]) or "").casefold())
    ]


def _mentions(value: Any, words: str) -> bool:
    if isinstance(value, str):
        return words in value.casefold()
    if isinstance(value, dict):
        return any(_mentions(one, words) for one in value.values())
    if isinstance(value, list):
        return any(_mentions(one, words) for one in value)
    if value is None:
        return False
    if isinstance(value, bytes):
        return words in base64_of(value).casefold()
    return words in str(value).casefold()
