"""Reads a chat completion: its text, or why there is none (OpenAI's `chat.completion`, and how services vary it).

Invariant: the one reader of answers for queries, titles, feeds and decks. Nothing in an answer is trusted, and the reason
of its end is always read: an answer that was cut off, filtered or refused never passes as a complete one.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from highwater.streams.messages import Messages, catalogue, messages_for
from highwater.streams.models.retries import Failure

_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS, _SERVER_ERROR, _GATEWAY_TIMEOUT = 408, 429, 500, 504
_REASONING, _REASONING_END = "<think>", "</think>"
# What a chat template that begins the reasoning itself leaves of it: the end alone, in a line of its own.
_LONE_END = re.compile(rf"^[ \t]*{_REASONING_END}[ \t]*$", re.MULTILINE)


class Completion(NamedTuple):
    """The text of an answer; `is_cut`: the model reached its limit of tokens before the end."""

    text: str
    is_cut: bool = False


class NoCompletion(NamedTuple):
    """Why there is no text; `detail` may quote the service."""

    failure: Failure
    detail: str


def completion_in(found: Any) -> Completion | NoCompletion:
    """Return what the parsed body of a response with status 200 says."""
    if isinstance(found, dict) and found.get("error"):
        return _of_error(found["error"])
    choices = found.get("choices") if isinstance(found, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        return NoCompletion(Failure.UNUSABLE, "the response is not a chat completion with text")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return NoCompletion(Failure.REFUSED, f"the model refused: {refusal}")
    return _ended(first.get("finish_reason"), _content(message.get("content")))


def _ended(reason: Any, text: str | None) -> Completion | NoCompletion:
    if reason == "content_filter":
        return NoCompletion(Failure.REFUSED, "the content filter of the service ended the answer")
    if text is None:
        return NoCompletion(Failure.UNUSABLE, "the response is not a chat completion with text")
    answer = without_reasoning(text)
    if answer is None:
        return NoCompletion(Failure.UNUSABLE, "the answer has the model's reasoning, and not where it begins or ends")
    if not answer.strip():
        why = ": the model reached its limit of tokens before" if reason == "length" else ""
        return NoCompletion(Failure.UNUSABLE, f"the answer is empty{why}")
    return Completion(answer, is_cut=reason == "length")


def cut_off(tokens_max: int) -> str:
    """Return the reason of an answer that reached its limit of tokens, for people, in English."""
    return _cut_off(tokens_max, catalogue().messages(None))


def cut_off_mark(text: str, tokens_max: int) -> str:
    """Return the end of a text that reached its limit of tokens, in the language of the text."""
    return f"\n\n[{_cut_off(tokens_max, messages_for(text))}]"


def _cut_off(tokens_max: int, messages: Messages) -> str:
    return messages.ngettext(
        "the answer was cut off at its limit of {number} token",
        "the answer was cut off at its limit of {number} tokens",
        tokens_max,
    )


def failure_of_status(status: int) -> Failure:
    """Return what kind of failure an HTTP status of a model's service is."""
    if status in (_REQUEST_TIMEOUT, _GATEWAY_TIMEOUT):
        return Failure.TIMEOUT
    if status == _TOO_MANY_REQUESTS:
        return Failure.RATE_LIMITED
    return Failure.UNAVAILABLE if status >= _SERVER_ERROR else Failure.REFUSED


def without_reasoning(text: str) -> str | None:
    """Return an answer without the reasoning that some models write before it; None if only one of its ends is there."""
    begun = text.lstrip()
    if begun.startswith(_REASONING):
        _, end, answer = begun.partition(_REASONING_END)
        return answer.lstrip() if end else None
    lone = _LONE_END.search(text)
    return None if lone is not None and _REASONING not in text[: lone.start()] else text


class ReasoningFilter:
    """Leaves out reasoning at the beginning of an answer that comes in pieces, as `without_reasoning` does of a whole one."""

    def __init__(self) -> None:
        self._held: str | None = ""  # what may still belong to the reasoning; None: the answer has begun

    def passed(self, piece: str) -> str:
        """Return what another piece adds to the answer; empty while that is unknown."""
        if self._held is None:
            return piece
        self._held += piece
        begun = self._held.lstrip()
        if _REASONING.startswith(begun[: len(_REASONING)]) and len(begun) < len(_REASONING):
            return ""
        if not begun.startswith(_REASONING):
            return self._ended(self._held)
        reasoning, end, answer = begun.partition(_REASONING_END)
        answer = answer.lstrip()
        if end and answer:
            return self._ended(answer)
        # Only what may become the end is kept, so that a piece costs its own length, not that of all before it.
        rest = reasoning.removeprefix(_REASONING)[1 - len(_REASONING_END) :]
        self._held = f"{_REASONING}{end or rest}"
        return ""

    def rest(self) -> str:
        """Return what was held back when the answer ended; reasoning without an end is not an answer."""
        held, self._held = self._held or "", None
        return "" if held.lstrip().startswith(_REASONING) else held

    def _ended(self, text: str) -> str:
        self._held = None
        return text


def _of_error(error: Any) -> NoCompletion:
    """Return what an error in the place of an answer says: a service sends status 200 before it knows of the error."""
    told = error if isinstance(error, dict) else {"message": error}
    names = [str(told[name]).lower() for name in ("code", "status", "type") if told.get(name) is not None]
    status = next((int(name) for name in names if name.isascii() and name.isdigit()), None)
    words = " ".join(names)
    if status is not None and status >= 400:
        failure = failure_of_status(status)
    elif "rate_limit" in words or "quota" in words:
        failure = Failure.RATE_LIMITED
    elif "invalid" in words or "context_length" in words or "authentication" in words or "permission" in words:
        failure = Failure.REFUSED
    else:
        failure = Failure.UNAVAILABLE
    name = f" ({words})" if words else ""
    return NoCompletion(
        failure, f"the service answered with an error{name}: {told.get('message') or 'without a reason'}"
    )


def _content(content: Any) -> str | None:
    """Return the text of a message, which may come in parts; other parts are ignored."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str)) if texts else None
    return content if isinstance(content, str) else None
