"""The input of the Archivist, and how its answer becomes a memory (R1.26).

Invariant: a memory is never empty: a blank text is refused. A text that is too long is cut: its length is not worth
another call while the user's next query waits (R1.2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from highwater.streams.models.answers import UnusableAnswerError, clean_text, json_object_in
from highwater.streams.models.tokens import count_tokens, cut_to_tokens

TAGS_MAX = 16
TAG_CHARACTERS_MAX = 64
# The limit of an answer (R1.24): a summary must not be longer than what it summarizes.
SUMMARY_TOKENS_MAX = 2_000
# The names, the quotes and the time around query and answer.
_FRAME_TOKENS = 64


class Summary(NamedTuple):
    """The summary of one query and its answer."""

    tags: tuple[str, ...]
    text: str


def archivist_input(query: str, answer: str, timestamp_iso: str, tokens_max: int | None = None) -> str:
    """Return the message to the Archivist: a JSON object of the query, its answer and its time; the answer is cut where the
    model reads less than all.
    """
    if tokens_max is not None:
        answer = cut_to_tokens(answer, max(0, tokens_max - count_tokens(query) - _FRAME_TOKENS))
    said = {"query": clean_text(query), "answer": clean_text(answer), "timestamp": timestamp_iso}
    return orjson.dumps(said).decode()


def parse_summary(text: str) -> Summary:
    """Parse the memory that the Archivist wrote. Missing tags are allowed; they are cut to 16 of 64 characters, the
    text to 2,000 tokens.

    Raises:
        UnusableAnswerError: no JSON object, a blank or missing text, tags that are not a list of texts.
    """
    found = json_object_in(text)
    said = found.get("text")
    if not isinstance(said, str) or not said.strip():
        raise UnusableAnswerError("text is missing or blank")
    return Summary(_tags(found.get("tags")), cut_to_tokens(said.strip(), SUMMARY_TOKENS_MAX))


def _tags(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise UnusableAnswerError("tags is not a list of texts")
    tags = (" ".join(tag.split())[:TAG_CHARACTERS_MAX].strip() for tag in value)
    first: dict[str, str] = {}
    for tag in filter(None, tags):
        first.setdefault(tag.casefold(), tag)  # tags that differ only in case are one
    return tuple(first.values())[:TAGS_MAX]
