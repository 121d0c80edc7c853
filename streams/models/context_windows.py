"""How many tokens a model reads and writes at most: as configured, or as learnt from the refusal of a longer call.

Invariant: sizes are counted by `tokens.py`, which errs on the high side, so a call that fits here fits the model. A learnt size
only falls. The answer's share is taken off first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.tokens import count_tokens

# A model with less than this cannot answer our questions; a smaller number in a refusal is another number.
WINDOW_TOKENS_MIN = 1_024
# What a chat template and field names add to a call.
_FRAME_TOKENS = 64
# Of the window, at most this part is kept for the answer: what is asked needs the rest.
_ANSWER_SHARE = 4
# How services say that a call is too long: OpenAI, vLLM, llama.cpp, Mistral, Gemini, Anthropic, text-generation-inference.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (?:length|size|window)|too long|too many tokens"
    r"|maximum number of tokens|max_new_tokens` must be",
    re.IGNORECASE,
)
_SIZE = re.compile(
    r"context (?:length|size|window)(?: is| of|:)? (?P<a>\d{1,9})|n_ctx\D{1,4}(?P<b>\d{1,9})|> (?P<c>\d{1,9}) maximum"
    r"|allowed \((?P<d>\d{1,9})\)"
    r"|(?<!\d)(?P<e>\d{1,9}) maximum context|must be <= (?P<f>\d{1,9})",
    re.IGNORECASE,
)


def is_too_long(refusal: str) -> bool:
    """Return whether a service refuses a call because of its length, by its words."""
    return _TOO_LONG.search(refusal) is not None


class ContextWindows:
    """The windows of models by name, in tokens."""

    def __init__(self, by_model: Mapping[str, int] | None = None) -> None:
        self._by_model = dict(by_model or {})

    def learn(self, model: str, refusal: str, sent_tokens: int) -> bool:
        """Note a call that was refused for its length; return whether its model's window is now known to be smaller, so that
        less can be sent.

        Args:
            model: as it was requested.
            refusal: the service's words.
            sent_tokens: of the call, with the answer that it asked for.
        """
        named = _SIZE.search(refusal)
        sizes = [int(size) for size in named.groups() if size is not None] if named is not None else []
        size = sizes[0] if sizes and WINDOW_TOKENS_MIN <= sizes[0] < sent_tokens else sent_tokens * 3 // 4
        if size < WINDOW_TOKENS_MIN or size >= self._by_model.get(model, size + 1):
            return False
        self._by_model[model] = size
        return True

    def answer_tokens(self, model: str, tokens_max: int) -> int:
        """Return how many tokens an answer may have that should have `tokens_max`."""
        window = self._by_model.get(model)
        return tokens_max if window is None else min(tokens_max, window // _ANSWER_SHARE)

    def room(self, model: str, system: str, tokens_max: int) -> int | None:
        """Return how many tokens of a message fit beside a system prompt and the answer; None if nothing is known, from 0."""
        window = self._by_model.get(model)
        if window is None:
            return None
        return max(0, window - self.answer_tokens(model, tokens_max) - count_tokens(system) - _FRAME_TOKENS)


def parse_context_windows(text: str) -> dict[str, int]:
    """Parse the setting `HIGHWATER_LLM_CONTEXT_TOKENS`: `model=tokens`, separated by commas; a blank text has none.

    Raises:
        ConfigurationError: a part is not that, a number is too small, or a model has two.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, sign, size = part.rpartition("=")
        if not sign or not model.strip() or not size.strip().isascii() or not size.strip().isdigit():
            raise ConfigurationError(f"HIGHWATER_LLM_CONTEXT_TOKENS: {part!r} is not model=tokens")
        if int(size) < WINDOW_TOKENS_MIN:
            raise ConfigurationError(f"HIGHWATER_LLM_CONTEXT_TOKENS: {part!r} is below {WINDOW_TOKENS_MIN:,} tokens")
        if model.strip() in found:
            raise ConfigurationError(f"HIGHWATER_LLM_CONTEXT_TOKENS: {model.strip()} has two sizes")
        found[model.strip()] = int(size)
    return found
