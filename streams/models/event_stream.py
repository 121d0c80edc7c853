"""Combines an answer that a chat service sends in pieces (server-sent events, `stream: true`).

Invariant: the pieces together equal the text of the same answer in one piece. An incomplete one is not an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from highwater.streams.models.answers import clean_text
from highwater.streams.models.completion import ReasoningFilter

_DONE = "[DONE]"


class StreamedAnswer:
    """Passes on the pieces of an answer as the bytes come, which may be split anywhere."""

    def __init__(self, on_delta: Callable[[str], None]) -> None:
        self._on_delta = on_delta
        self._rest = b""
        self._filter = ReasoningFilter()

    def feed(self, part: bytes) -> None:
        """Process more bytes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._tell(self._filter.passed(clean_text(_text_of(_event_in(line)))))

    def end(self) -> None:
        """Note that there are no more bytes."""
        self._tell(self._filter.rest())

    def _tell(self, text: str) -> None:
        if text:
            self._on_delta(text)


def completion_of(body: bytes) -> bytes:
    """Return the answer as it would have come in one piece, as JSON; without choices if it is incomplete."""
    texts: list[str] = []
    refusals: list[str] = []
    usage, has_ended, reason, error = None, False, None, None
    for line in body.split(b"\n"):
        has_ended |= _data_of(line) == _DONE
        event = _event_in(line)
        texts.append(_text_of(event))
        refusals.append(_text_of(event, "refusal"))
        usage, error = event.get("usage") or usage, error or event.get("error")
        reason = _choice_of(event).get("finish_reason") or reason
    message = {"content": "".join(texts), "refusal": "".join(refusals) or None}
    choices = [{"message": message, "finish_reason": reason}] if has_ended or reason else []
    return json.dumps({"choices": choices, "usage": usage, "error": error}).encode()


def _data_of(line: bytes) -> str:
    """Return the data of a line of the stream; empty for any other field or a comment."""
    name, _, value = line.partition(b":")
    return value.decode(errors="replace").strip() if name == b"data" else ""


def _event_in(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(_data_of(line) or "{}")
    except (ValueError, RecursionError):  # the end, or another line: what is missing then shows at the end
        return {}
    return found if isinstance(found, dict) else {}


def _choice_of(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _text_of(event: dict[str, Any], name: str = "content") -> str:
    delta = _choice_of(event).get("delta")
    content = delta.get(name) if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""
